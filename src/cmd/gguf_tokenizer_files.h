// The tokenizer of a GGUF file as Hugging Face's tokenizer.json and tokenizer_config.json.
// Thread: pure functions.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/gguf_tokenizer.h"

namespace tern {

struct TokenizerFiles {
  std::string tokenizer_json, tokenizer_config_json;
};

// Errors: kUnimplemented naming `path`: no byte-level BPE, or a pre-tokenizer that is unknown.
Result<TokenizerFiles> TokenizerFilesOf(const GgufTokenizer& tokenizer, int64_t context_length,
                                        const std::string& path);

}  // namespace tern
