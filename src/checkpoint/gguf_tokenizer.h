// GgufTokenizer: the tokenizer of a GGUF file as plain data. cmd turns it into a TokenizerSpec
// (text may not include checkpoint). Thread: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/gguf.h"

namespace tern {

// tokenizer.ggml.token_type
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct GgufTokenizer {
  std::string model;                // "gpt2" = byte-level BPE, "llama" = SentencePiece, ...
  std::string pre;                  // pre-tokenizer: "smollm", "llama-bpe", ...; empty when absent
  std::vector<std::string> tokens;  // by id
  std::vector<GgufTokenType> token_types;  // by id
  std::vector<std::string> merges;         // "left right", best first
  std::optional<int32_t> bos, eos;
  bool add_space_prefix = false;
  std::optional<bool> add_bos, add_eos;  // around a text that is a prompt by itself
  std::optional<std::string> chat_template;
};

// Errors: kInvalidArgument naming the file and the key (missing, mistyped, ids outside the
// vocabulary, lists of unequal length).
Result<GgufTokenizer> TokenizerFromGguf(const Gguf& gguf);

}  // namespace tern
