// Text as Python's str sees it: code points, Unicode whitespace, line ends and case.
// The one wrapper around utf8proc in this area. All text is valid UTF-8.
// Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tern::jinja {

int64_t CodePointCount(std::string_view text);
std::u32string ToCodePoints(std::string_view text);
std::string FromCodePoints(std::u32string_view code_points);
// Code points [begin, end) of `text`. REQUIRES: 0 <= begin <= end <= CodePointCount(text)
std::string_view CodePointRange(std::string_view text, int64_t begin, int64_t end);

bool IsSpace(char32_t c);      // str.isspace
bool IsLineEnd(char32_t c);    // where str.splitlines cuts
bool IsPrintable(char32_t c);  // what repr() leaves as it is
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsNumeric(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);

// Full case mappings (one code point may become three; final sigma).
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);  // first code point in title case, the rest lower
std::string Title(std::string_view text);       // str.title
std::string SwapCase(std::string_view text);

using CodePointTest = std::function<bool(char32_t)>;
std::string_view StripLeft(std::string_view text, const CodePointTest& drop);
std::string_view StripRight(std::string_view text, const CodePointTest& drop);
inline std::string_view StripSpace(std::string_view text) {
  return StripRight(StripLeft(text, IsSpace), IsSpace);
}
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);
// `&`, `<`, `>`, `'` and `"` as HTML entities.
std::string EscapeHtml(std::string_view text);

}  // namespace tern::jinja
