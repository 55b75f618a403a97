// Translates the regular expressions of tokenizer.json (Oniguruma, Rust) to PCRE2.
// Thread: a pure function.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tern {

// A PCRE2 pattern that matches the same text. PCRE2 would take most patterns as they are, and match
// other text: it reads `&&` in a class as two characters, \p{Han} as script extensions, and has
// older Unicode tables. So classes are evaluated here, with tern's own tables, and written out as
// ranges; what has the same meaning everywhere is copied; anything else is refused.
// Errors: kUnimplemented or kInvalidArgument, naming the part of the pattern.
Result<std::string> TranslateRegex(std::string_view pattern);

}  // namespace tern
