#include "text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace tern {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                         std::vector<TokenId> shown)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), shown_(std::move(shown)) {}

std::string Detokenizer::Push(TokenId id) {
  if (skip_special_ && tokenizer_->IsSpecial(id) &&
      std::find(shown_.begin(), shown_.end(), id) == shown_.end()) {
    return {};
  }
  pending_ += tokenizer_->TokenBytes(id);
  const size_t complete = CompleteUtf8Prefix(pending_);
  std::string text = ReplaceInvalidUtf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string Detokenizer::Flush() { return ReplaceInvalidUtf8(std::exchange(pending_, {})); }

}  // namespace tern
