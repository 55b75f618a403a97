// Disguise: characters that stand in for others in a prompt, so that a tokenizer finds no control
// token there; each stand-in is one printable character that the text does not hold otherwise.
// Thread: values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tern {

class Disguise {
 public:
  // Adds a stand-in for `character` (one UTF-8 character), one that no text of `avoid` holds.
  // Returns it, or nothing when all are taken.
  std::string_view Add(std::string_view character, const std::vector<std::string_view>& avoid);
  bool empty() const { return stand_ins_.empty(); }
  // `text` with every stand-in replaced by what it stands for.
  std::string Undo(std::string_view text) const;
  // How many stand-ins `text` holds.
  size_t CountIn(std::string_view text) const;
  // The stand-in of text[pos]'s character; empty when it has none.
  std::string_view For(std::string_view character) const;

 private:
  // Index of the stand-in at text[pos], or -1.
  int At(std::string_view text, size_t pos) const;

  char32_t next_ = 0;
  std::vector<std::pair<std::string, std::string>> stand_ins_;  // character, stand-in
};

}  // namespace tern
