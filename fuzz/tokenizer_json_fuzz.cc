// Any bytes as tokenizer.json: an error, or a tokenizer that encodes any text to ids of its own.
// Input: the file, a NUL byte, a text to encode; without a NUL byte the file is encoded too.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view json = input.substr(0, end);
  const std::string_view text = end == std::string_view::npos ? json : input.substr(end + 1);

  const auto tokenizer = tern::Tokenizer::FromTokenizerJson(json, "");
  const auto tiktoken = tern::Tokenizer::FromTiktoken(json, text);
  if (!tokenizer.ok() && tokenizer.status().message().empty()) std::abort();
  if (!tiktoken.ok() && tiktoken.status().message().empty()) std::abort();
  for (const auto* made : {&tokenizer, &tiktoken}) {
    if (!made->ok()) continue;
    for (const bool parse_special : {true, false}) {
      tern::Detokenizer detokenizer(**made, false);
      for (const tern::TokenId id : (**made)->Encode(text, parse_special)) {
        if (id < 0 || id >= (**made)->vocab_size()) std::abort();
        detokenizer.Push(id);
      }
      detokenizer.Flush();
    }
    for (const tern::TokenId id : (**made)->EncodeFramed(text)) {
      if (id < 0 || id >= (**made)->vocab_size()) std::abort();
    }
  }
  return 0;
}
