// A TokenizerSpec made of any bytes, as GGUF metadata gives it: an error, or a tokenizer whose ids
// are its own and whose text is the text that it read.
// Input: five parts, a NUL byte between them, lines in each: pre-tokenizer; vocab; merges; added
// tokens (a character: flags and id; then the content); a text to encode.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(separator));
    parts.push_back(part);
    text.remove_prefix(part.size());
    if (!text.empty()) text.remove_prefix(1);
  }
  return parts;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string_view> parts = Split({reinterpret_cast<const char*>(data), size}, '\0');
  parts.resize(5);
  tern::TokenizerSpec spec;
  spec.pre_tokenizer = parts[0];
  for (const auto line : Split(parts[1], '\n')) spec.vocab.emplace_back(line);
  for (const auto line : Split(parts[2], '\n')) spec.merges.emplace_back(line);
  for (const auto line : Split(parts[3], '\n')) {
    if (line.empty()) continue;
    const auto byte = static_cast<unsigned char>(line[0]);
    tern::AddedToken token;
    token.id = static_cast<tern::TokenId>(byte & 31) - 1;
    token.special = (byte & 32) != 0;
    token.lstrip = (byte & 64) != 0;
    token.rstrip = (byte & 128) != 0;
    token.content = line.substr(1);
    if (token.special) (spec.bos ? spec.eos : spec.bos) = token.id;
    spec.added.push_back(std::move(token));
  }
  spec.ignore_merges = size % 2 == 1;
  spec.add_prefix_space = size % 3 == 1;
  const auto made = tern::Tokenizer::FromSpec(std::move(spec));
  if (!made.ok()) {
    if (made.status().message().empty()) std::abort();
    return 0;
  }
  for (const bool parse_special : {true, false}) {
    const auto ids = (*made)->Encode(parts[4], parse_special);
    for (const tern::TokenId id : ids) {
      if (id < 0 || id >= (*made)->vocab_size()) std::abort();
    }
    (*made)->Decode(ids, parse_special);
  }
  return 0;
}
