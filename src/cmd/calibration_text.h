// The text that calibration runs through a model: a plain text, or JSON lines of texts and
// conversations, as token ids. Thread: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tern {

// FILE.jsonl (or .json lines): each line an object with "text", or "messages" (and "tools"), which
// `chat_template` renders (null: conversations are an error). Any other file is one text.
// Errors, naming file and line: kNotFound, kInvalidArgument (no JSON, neither key, no text at all).
Result<std::vector<std::vector<int32_t>>> LoadCalibrationText(const std::string& path,
                                                              const Tokenizer& tokenizer,
                                                              const ChatTemplate* chat_template);

}  // namespace tern
