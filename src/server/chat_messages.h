// The messages and tools of a chat request, checked and in the shape that chat templates read.
// Thread: pure functions.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "base/result.h"
#include "text/output_format.h"

namespace tern {

// body.messages: role developer as system, content parts joined, arguments of earlier tool calls as
// objects, `reasoning` of assistant messages as `reasoning_content`. Errors: kInvalidArgument
// naming the field.
Result<Json> ParseMessages(const Json& body);

// body.tools; null when there are none, or tool_choice is "none". Errors: kInvalidArgument naming
// the field; so for a tool_choice other than "none" and "auto", which are not supported.
Result<Json> ParseTools(const Json& body);

// Kimi's models know their calls by ids functions.NAME:IDX, counted over the conversation, and call
// worse when the history shows them others. So ids that other software made, and indices that don't
// grow, are rewritten, in the calls and in the tool messages that answer them. The templates of
// other formats print no ids. Returns the index of the answer's first call.
int64_t AdoptToolCallIds(ToolCallFormat format, Json* messages);

}  // namespace tern
