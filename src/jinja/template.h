// Template: a compiled Jinja template. The door to this area.
//
// The language is jinja2's as Hugging Face transformers configures it for chat templates:
// ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, no autoescape, its
// tojson, raise_exception and strftime_now. docs/jinja.md lists what is there and what differs.
// Templates come with models and are not trusted: a render is bounded in steps, memory, output
// and depth, reads nothing but its inputs and the clock, and changes nothing.
//
// Owner: shared by whoever renders. Thread: Compile and Render from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

namespace tern::jinja {

class Template {
 public:
  // Errors: kInvalidArgument, "line N: ...".
  static Result<std::shared_ptr<const Template>> Compile(std::string_view source);
  virtual ~Template() = default;

  // `inputs`: the names that the template can read. Errors: kInvalidArgument, "line N: ...".
  virtual Result<std::string> Render(const Dict& inputs, const Limits& limits = {},
                                     const Clock& clock = SystemClock()) const = 0;
};

}  // namespace tern::jinja
