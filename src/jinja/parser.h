// Parser: tokens to a syntax tree. Recursive descent for statements, precedence climbing for
// expressions; the grammar and its quirks are jinja2's ("-1 | abs" is 1, "2 ** 3 ** 2" is 64).
// Thread: pure function.
#pragma once

#include <string_view>

#include "base/result.h"
#include "jinja/ast.h"

namespace tern::jinja {

// Errors: kInvalidArgument "line N: ..." for malformed templates, nesting beyond what the engine
// walks safely, and (as jinja2 does) filters and tests that do not exist, unless they stand in a
// branch of an `if`, where they fail only when reached.
Result<Body> Parse(std::string_view source);

}  // namespace tern::jinja
