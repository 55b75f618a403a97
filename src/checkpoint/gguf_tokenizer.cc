#include "checkpoint/gguf_tokenizer.h"

#include <fmt/format.h>

namespace tern {
namespace {

Result<std::optional<int32_t>> TokenId(const Gguf& gguf, const char* key, size_t vocab) {
  TERN_ASSIGN_OR_RETURN(const auto id, gguf.Int(key));
  if (!id) return std::optional<int32_t>();
  if (*id < 0 || static_cast<uint64_t>(*id) >= vocab) {
    return InvalidArgument(
        fmt::format("{}: {} {} is outside the vocabulary of {}", gguf.path(), key, *id, vocab));
  }
  return std::optional(static_cast<int32_t>(*id));
}

}  // namespace

Result<GgufTokenizer> TokenizerFromGguf(const Gguf& gguf) {
  GgufTokenizer tokenizer;
  TERN_ASSIGN_OR_RETURN(const auto model, gguf.String("tokenizer.ggml.model"));
  if (!model) return InvalidArgument(gguf.path() + ": tokenizer.ggml.model is missing");
  tokenizer.model = *model;
  TERN_ASSIGN_OR_RETURN(const auto pre, gguf.String("tokenizer.ggml.pre"));
  tokenizer.pre = pre.value_or("");

  TERN_ASSIGN_OR_RETURN(const auto tokens, gguf.Strings("tokenizer.ggml.tokens"));
  if (!tokens || tokens->empty()) {
    return InvalidArgument(gguf.path() + ": tokenizer.ggml.tokens is missing or empty");
  }
  tokenizer.tokens.assign(tokens->begin(), tokens->end());
  TERN_ASSIGN_OR_RETURN(const auto merges, gguf.Strings("tokenizer.ggml.merges"));
  if (merges) tokenizer.merges.assign(merges->begin(), merges->end());

  const size_t vocab = tokenizer.tokens.size();
  tokenizer.token_types.assign(vocab, GgufTokenType::kNormal);
  TERN_ASSIGN_OR_RETURN(const auto types, gguf.Ints("tokenizer.ggml.token_type"));
  if (types && types->size() != vocab) {
    return InvalidArgument(fmt::format("{}: tokenizer.ggml.token_type has {} entries for {} tokens",
                                       gguf.path(), types->size(), vocab));
  }
  for (size_t id = 0; types && id < vocab; ++id) {
    const int64_t type = (*types)[id];
    if (type < 1 || type > 6) {
      return InvalidArgument(
          fmt::format("{}: tokenizer.ggml.token_type of token {} is {}", gguf.path(), id, type));
    }
    tokenizer.token_types[id] = static_cast<GgufTokenType>(type);
  }

  TERN_ASSIGN_OR_RETURN(tokenizer.bos, TokenId(gguf, "tokenizer.ggml.bos_token_id", vocab));
  TERN_ASSIGN_OR_RETURN(tokenizer.eos, TokenId(gguf, "tokenizer.ggml.eos_token_id", vocab));
  TERN_ASSIGN_OR_RETURN(const auto prefix, gguf.Bool("tokenizer.ggml.add_space_prefix"));
  tokenizer.add_space_prefix = prefix.value_or(false);
  TERN_ASSIGN_OR_RETURN(tokenizer.add_bos, gguf.Bool("tokenizer.ggml.add_bos_token"));
  TERN_ASSIGN_OR_RETURN(tokenizer.add_eos, gguf.Bool("tokenizer.ggml.add_eos_token"));
  TERN_ASSIGN_OR_RETURN(const auto chat_template, gguf.String("tokenizer.chat_template"));
  if (chat_template) tokenizer.chat_template = std::string(*chat_template);
  return tokenizer;
}

}  // namespace tern
