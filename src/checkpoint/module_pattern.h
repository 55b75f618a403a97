// ModulePattern: one entry of a quantization config's `ignore` list: a module's exact name, or
// "re:" and a regular expression that matches from the name's start (Python's re.match).
// Thread: immutable after Make; matching uses no shared state.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tern {

class ModulePattern {
 public:
  // Errors: kInvalidArgument for an expression that does not compile.
  static Result<ModulePattern> Make(std::string_view entry);

  const std::string& text() const { return text_; }  // as written
  // An expression that needs absurdly many steps does not match.
  bool Matches(std::string_view module) const;

 private:
  std::string text_;
  std::shared_ptr<const void> code_;  // pcre2_code; null: an exact name
};

}  // namespace tern
