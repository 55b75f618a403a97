#include "jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"
#include "jinja/special_casing.h"

namespace tern::jinja {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

enum class Case { kUpper, kTitle };

void AppendMapped(char32_t c, Case to, std::u32string* out) {
  const auto* row = std::lower_bound(
      std::begin(kSpecialCasing), std::end(kSpecialCasing), c,
      [](const SpecialCasing& r, char32_t code_point) { return r.code_point < code_point; });
  if (row != std::end(kSpecialCasing) && row->code_point == c) {
    for (const char32_t m : to == Case::kUpper ? row->upper : row->title) {
      if (m != 0) out->push_back(m);
    }
    return;
  }
  const auto code_point = static_cast<utf8proc_int32_t>(c);
  out->push_back(static_cast<char32_t>(to == Case::kUpper ? utf8proc_toupper(code_point)
                                                          : utf8proc_totitle(code_point)));
}

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }

bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019;
  }
}

// A sigma is final when a cased letter precedes it and none follows (Unicode 3.13).
bool IsFinalSigma(std::u32string_view text, size_t i) {
  size_t before = i;
  while (before > 0 && IsCaseIgnorable(text[before - 1])) --before;
  if (before == 0 || !IsCased(text[before - 1])) return false;
  size_t after = i + 1;
  while (after < text.size() && IsCaseIgnorable(text[after])) ++after;
  return after == text.size() || !IsCased(text[after]);
}

void AppendLower(std::u32string_view text, size_t i, std::u32string* out) {
  if (text[i] == 0x3A3) {
    out->push_back(IsFinalSigma(text, i) ? 0x3C2 : 0x3C3);
  } else if (text[i] == 0x130) {
    out->append({'i', 0x307});
  } else {
    out->push_back(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(text[i]))));
  }
}

}  // namespace

int64_t CodePointCount(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::u32string ToCodePoints(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    out.push_back(DecodeUtf8(text, pos, &length));
    pos += length;
  }
  return out;
}

std::string FromCodePoints(std::u32string_view code_points) {
  std::string out;
  for (const char32_t c : code_points) AppendUtf8(c, &out);
  return out;
}

std::string_view CodePointRange(std::string_view text, int64_t begin, int64_t end) {
  size_t pos = 0;
  const auto advance = [&](int64_t count) {
    for (; count > 0 && pos < text.size(); --count) {
      ++pos;
      while (pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) ++pos;
    }
    return pos;
  };
  const size_t from = advance(begin);
  return text.substr(from, advance(end - begin) - from);
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool IsAlpha(char32_t c) {
  const auto category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsDigit(char32_t c) {
  return IsDecimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
         (c >= 0x2460 && c <= 0x2468);
}

bool IsNumeric(char32_t c) {
  const auto category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU; }

bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA; }

bool IsTitle(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LT; }

bool IsIdentifierStart(char32_t c) {
  return c == '_' || IsAlpha(c) || Category(c) == UTF8PROC_CATEGORY_NL;
}

bool IsIdentifierPart(char32_t c) {
  if (IsIdentifierStart(c) || IsDecimal(c)) return true;
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_PC;
}

std::string Upper(std::string_view text) {
  std::u32string out;
  for (const char32_t c : ToCodePoints(text)) AppendMapped(c, Case::kUpper, &out);
  return FromCodePoints(out);
}

std::string Lower(std::string_view text) {
  const std::u32string in = ToCodePoints(text);
  std::u32string out;
  for (size_t i = 0; i < in.size(); ++i) AppendLower(in, i, &out);
  return FromCodePoints(out);
}

std::string Capitalize(std::string_view text) {
  const std::u32string in = ToCodePoints(text);
  std::u32string out;
  for (size_t i = 0; i < in.size(); ++i) {
    if (i == 0) {
      AppendMapped(in[i], Case::kTitle, &out);
    } else {
      AppendLower(in, i, &out);
    }
  }
  return FromCodePoints(out);
}

std::string Title(std::string_view text) {
  const std::u32string in = ToCodePoints(text);
  std::u32string out;
  bool in_word = false;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in_word) {
      AppendLower(in, i, &out);
    } else {
      AppendMapped(in[i], Case::kTitle, &out);
    }
    in_word = IsCased(in[i]);
  }
  return FromCodePoints(out);
}

std::string SwapCase(std::string_view text) {
  const std::u32string in = ToCodePoints(text);
  std::u32string out;
  for (size_t i = 0; i < in.size(); ++i) {
    if (IsUpper(in[i])) {
      AppendLower(in, i, &out);
    } else if (IsLower(in[i])) {
      AppendMapped(in[i], Case::kUpper, &out);
    } else {
      out.push_back(in[i]);
    }
  }
  return FromCodePoints(out);
}

std::string_view StripLeft(std::string_view text, const CodePointTest& drop) {
  while (!text.empty()) {
    size_t length = 0;
    if (!drop(DecodeUtf8(text, 0, &length))) break;
    text.remove_prefix(length);
  }
  return text;
}

std::string_view StripRight(std::string_view text, const CodePointTest& drop) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t length = 0;
    if (!drop(DecodeUtf8(text, start, &length))) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    const char32_t c = DecodeUtf8(text, pos, &length);
    if (!IsLineEnd(c)) {
      pos += length;
      continue;
    }
    size_t end = pos + length;
    if (c == '\r' && end < text.size() && text[end] == '\n') ++end;
    lines.push_back(text.substr(start, (keep_ends ? end : pos) - start));
    pos = start = end;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace tern::jinja
