// Detokenizer: token ids to text as they arrive, one stream each. Never gives half a character:
// bytes of an unfinished UTF-8 sequence wait for the next token. Bytes that can never become a
// character come out as U+FFFD.
// Thread: not shared; each stream has its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tern {

class Detokenizer {
 public:
  // skip_special: special tokens give no text, but for those in `shown`.
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
              std::vector<TokenId> shown = {});

  // Text that became complete with this token; often empty.
  std::string Push(TokenId id);
  // What is left at the end of the stream: an unfinished sequence becomes U+FFFD.
  std::string Flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::vector<TokenId> shown_;
  std::string pending_;  // less than one character
};

}  // namespace tern
