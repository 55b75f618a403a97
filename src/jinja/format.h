// Python's two ways to format text: "%s" % x and "{}".format(x).
// Thread: the one that renders.
#pragma once

#include "jinja/value.h"

namespace tern::jinja {

class Interpreter;

// format % args: args is a tuple of values, a dict for %(name)s, or one value.
// Errors: Python's TypeError and ValueError texts.
Result<Value> PercentFormat(Budget& budget, const Value& format, const Value& args);
// format.format(*args, **kwargs) with the sandbox's attribute access.
Result<Value> BraceFormat(Interpreter& interpreter, const Value& format, const Args& args);

}  // namespace tern::jinja
