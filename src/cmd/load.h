// What commands load from a checkpoint path: the tokenizer and the chat template.
// Thread: call at start; the results are immutable and shared.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "checkpoint/gguf_tokenizer.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tern {

// The folder of a model: `path` itself, or the one that the file lies in.
std::string ModelFolder(const std::string& path);

// DIR (tokenizer.json + tokenizer_config.json, or tiktoken.model), FILE.gguf (its metadata),
// FILE.json (tokenizer.json) or FILE.model (tiktoken). Errors name the file and field.
Result<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path);

// Whether a GGUF file's tokenizer.ggml.pre names tokenizers that look a whole piece up before
// merging (Llama 3's `ignore_merges`; GGUF has no key for it).
bool IgnoresMerges(const std::string& pre);

// What is put around a text that is a prompt by itself: BOS and EOS as the file's add_bos_token and
// add_eos_token say; where it is silent, llama.cpp's BOS for Llama 3 and nothing for others.
PromptFrame FrameOf(const GgufTokenizer& gguf);

// For a model of made-up weights: the tokenizer beside its config.json, else one whose 256 tokens
// are the bytes.
Result<std::shared_ptr<const Tokenizer>> LoadDummyTokenizer(const std::string& path);

// The template's source: DIR/chat_template.jinja, or the `chat_template` of
// tokenizer_config.json, or GGUF's tokenizer.chat_template. kNotFound when there is none.
Result<std::string> LoadChatTemplateSource(const std::string& model_path);

}  // namespace tern
