// ChatTemplate: a model's Jinja template, as Hugging Face renders it (immutable sandbox,
// trim_blocks, lstrip_blocks, loop controls). Compiled once; immutable afterwards. Thread: Render
// may be called from any thread at the same time; time and output are bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace tern {

class ChatTemplate {
 public:
  // Errors: kInvalidArgument with "line N: ..." for a template that does not parse.
  static Result<std::shared_ptr<const ChatTemplate>> Compile(std::string source);
  virtual ~ChatTemplate() = default;

  // `inputs`: {messages, tools?, documents?, add_generation_prompt?, bos_token?, eos_token?,
  // ...kwargs}. Absent `tools` and `documents` are none, absent `add_generation_prompt` is false,
  // any other absent key is undefined. Errors: kInvalidArgument that says where ("line N: ...":
  // what jinja2 raises, raise_exception, or a bound on steps, output or depth).
  virtual Result<std::string> Render(const Json& inputs) const = 0;
};

}  // namespace tern
