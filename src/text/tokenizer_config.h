// What tokenizer_config.json adds to a tokenizer: BOS, EOS, whether texts get a BOS and, beside
// tiktoken.model, the added tokens. Thread: a pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tern {

struct TokenizerConfig {
  std::string bos_token, eos_token;  // empty: none
  std::vector<AddedToken> added;     // added_tokens_decoder, by id
  // Llama's tokenizer classes put a BOS before every text, whatever tokenizer.json says, unless
  // add_bos_token is false: DeepSeek's files rely on it. That leaves in force what tokenizer.json
  // says, a BOS too.
  bool adds_bos = false;
};

// `json` may be empty. Errors: kInvalidArgument naming the field.
Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json);

// The id of `text` among `added`, else in the vocabulary `tokens` of the parts; nullopt when there
// is none. A BOS or EOS that the vocabulary lacks is no error: some published files name one.
struct TokenizerParts;
std::optional<TokenId> FindToken(std::string_view text, const TokenizerParts& parts);

}  // namespace tern
