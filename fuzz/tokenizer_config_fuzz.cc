// Any bytes as tokenizer_config.json beside a tokenizer.json: an error, or a tokenizer whose ids
// are its own. Input: tokenizer_config.json, a NUL byte, tokenizer.json, a NUL byte, a text to
// encode.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::array<std::string_view, 3> parts;
  for (std::string_view& part : parts) {
    part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(part.size());
    if (!rest.empty()) rest.remove_prefix(1);
  }
  const auto& [config, json, text] = parts;
  const auto made = tern::Tokenizer::FromTokenizerJson(json, config);
  if (!made.ok()) {
    if (made.status().message().empty()) std::abort();
    return 0;
  }
  const tern::Tokenizer& tokenizer = **made;
  for (const auto& id : {tokenizer.bos(), tokenizer.eos()}) {
    if (id && (*id < 0 || *id >= tokenizer.vocab_size())) std::abort();
  }
  for (const tern::TokenId id : tokenizer.Encode(text)) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  }
  return 0;
}
