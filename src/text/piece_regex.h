// PieceRegex: a compiled regular expression that finds pieces of text; the one wrapper of PCRE2.
// Immutable once made. Thread: const methods may be called from any thread.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace tern {

class PieceRegex {
 public:
  // `pattern` as tokenizer.json spells it. Errors: kUnimplemented or kInvalidArgument, saying what
  // in the pattern.
  static Result<std::unique_ptr<const PieceRegex>> Compile(std::string_view pattern);
  ~PieceRegex();
  PieceRegex(const PieceRegex&) = delete;
  PieceRegex& operator=(const PieceRegex&) = delete;

  // Start and end of the first match at or after pos. A search that runs into PCRE2's limits has no
  // match: the rest of the text is then one piece, and the request goes on.
  std::optional<std::pair<size_t, size_t>> Find(std::string_view text, size_t pos) const;

 private:
  struct Code;
  explicit PieceRegex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace tern
