// FilterLines: what `tokenize` and `template` share: a line in, a line out.
// Thread: the main thread.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace tern {

// Writes transform(line) and a newline for each line of standard input. Stops at the first line
// that fails, with "<unit> <number>: " before its message; what was written before stays written.
// Errors beside transform's: kInvalidArgument for a line over 256 MiB, kUnavailable when standard
// output can't be written.
Status FilterLines(const char* unit,
                   const std::function<Result<std::string>(const std::string&)>& transform);

}  // namespace tern
