// AddedTokenMatcher: finds added tokens in a text before the pre-tokenizer sees it, with
// HuggingFace's rules: the leftmost and then longest match; lstrip and rstrip take the white space
// beside it; single_word matches only between non-word characters.
// Immutable once made. Thread: const methods may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace tern {

class AddedTokenMatcher {
 public:
  // Longer contents are refused: a search costs the length of the longest for each byte of text.
  static constexpr size_t kMaxContentBytes = 512;

  // REQUIRES: 0 < content.size() <= kMaxContentBytes. A repeated content keeps its first token.
  void Add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  struct Segment {
    std::string_view text;
    TokenId token;  // -1: text between added tokens, never empty
  };
  // The segments of `text` in order.
  std::vector<Segment> Split(std::string_view text) const;

 private:
  // Index and end of the longest token at pos; -1 when there is none.
  int LongestAt(std::string_view text, size_t pos, size_t* end) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{};                // bytes that a token starts with
  std::unordered_map<uint64_t, uint32_t> edges_;  // (node, byte) -> node; the root is 0
  std::vector<int> token_at_{-1};                 // by node: index into tokens_, or -1
};

}  // namespace tern
