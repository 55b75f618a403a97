// Lexer: template text to tokens, with jinja2's whitespace rules for trim_blocks and lstrip_blocks:
// one newline after a block tag and blanks before one vanish; `-` strips all whitespace on its
// side, `+` keeps it; a single newline at the end of the template is dropped.
// Thread: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tern::jinja {

struct Token {
  enum class Kind {
    kData,
    kBlockBegin,
    kBlockEnd,
    kVariableBegin,
    kVariableEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;  // data; name; string with escapes resolved; operator as written
  int64_t integer = 0;
  double number = 0;
};

// Ends with a kEnd token. `source` is valid UTF-8.
// Errors: kInvalidArgument "line N: ...".
Result<std::vector<Token>> Tokenize(std::string_view source);

// "line N: message", the form of all errors of this area.
Status ErrorAt(int line, std::string_view message);

}  // namespace tern::jinja
