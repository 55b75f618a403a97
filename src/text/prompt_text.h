// PromptText: what a chat template makes of a request, in which text that the template writes is
// told apart from text that came in the messages: a control token in a message stays plain text.
//
// The template runs twice: as it is, and with the characters that control tokens start or end with
// (mostly '<' and '>') replaced by stand-ins in every string of the messages, tools and options; in
// a string that is a piece out of the middle of one ("end"), the first character. The second
// text goes to the tokenizer, which puts the characters back once it has looked for control
// tokens. Where the template looks at such characters itself, and so writes something else, the
// second text still stands unless neither text has a control token more than the other.
// Reasoning markers in an assistant message's own text stay control tokens: templates split there,
// and the model wrote them.
// Thread: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/chat_template.h"
#include "text/disguise.h"
#include "text/tokenizer.h"

namespace tern {

struct PromptText {
  std::string text;  // in `disguise`
  Disguise disguise;
  std::string Plain() const { return disguise.Undo(text); }
};

// `inputs`: as ChatTemplate::Render takes them; bos_token and eos_token remain control tokens.
// Errors: those of Render; kInvalidArgument for messages with control tokens that the template
// escapes in a way that hides the stand-ins.
Result<PromptText> RenderPrompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                const Json& inputs);

}  // namespace tern
