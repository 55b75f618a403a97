// UTF-8: validation and decoding. Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tern {

// Decodes the code point at text[pos] (REQUIRES: pos < text.size()) and sets *length to its bytes.
// Overlong forms, surrogates, values over U+10FFFF and cut sequences give U+FFFD with length =
// the maximal valid prefix, at least 1 (Unicode 15, section 3.9, "substitution of maximal
// subparts").
char32_t DecodeUtf8(std::string_view text, size_t pos, size_t* length);
// REQUIRES: a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);
bool IsValidUtf8(std::string_view text);
// `text` with each maximal invalid part replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);
// Bytes of `text` that can be shown now: without a trailing sequence that later bytes may complete.
size_t CompleteUtf8Prefix(std::string_view text);

}  // namespace tern
