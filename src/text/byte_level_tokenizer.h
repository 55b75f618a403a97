// What the makers of tokenizers (tokenizer.json, tiktoken.model, TokenizerSpec) have in common:
// they gather parts, and MakeByteLevelTokenizer checks them and builds the tokenizer. Thread: call
// at start; the tokenizer is immutable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace tern {

struct TokenizerParts {
  struct Token {
    std::string text;    // as the file spells it
    std::string bytes;   // what it stands for
    bool plain = false;  // merging may give it; false when its text is no byte string
  };
  std::vector<std::optional<Token>> tokens;  // by id
  std::vector<MergeRule> merges;
  BpeOptions bpe;
  PreTokenizer pre_tokenizer;
  NormalizationForm normalization = NormalizationForm::kNone;
  std::vector<AddedToken> added;
  std::optional<TokenId> bos, eos;
  PromptFrame frame;
};

// Ids stay below twice the number of tokens plus this, so that a file of a few bytes cannot ask for
// gigabytes of tables.
inline constexpr int64_t kMaxUnusedIds = 4096;

// Fills parts->tokens from (text in the byte alphabet, id). Errors: kInvalidArgument naming `field`
// and the token: an id out of range or given twice, a text given twice.
// `other_tokens`: how many tokens the file has besides these.
Status FillVocabulary(const std::vector<std::pair<std::string_view, int64_t>>& vocabulary,
                      size_t other_tokens, std::string_view field, TokenizerParts* parts);

// Fills parts->merges from (left, right), best first, in the byte alphabet.
// Errors: kInvalidArgument naming `field`, its index and the token that is not in the vocabulary.
Status FillMerges(const std::vector<std::pair<std::string_view, std::string_view>>& merges,
                  std::string_view field, TokenizerParts* parts);

// Errors: kInvalidArgument naming the added token, bos, eos or token of the frame that does not
// fit.
Result<std::shared_ptr<const Tokenizer>> MakeByteLevelTokenizer(TokenizerParts parts);

}  // namespace tern
