#include "base/utf8.h"

#include <algorithm>

namespace tern {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// Bytes of the sequence that `lead` opens and the allowed range of its second byte (Unicode 15,
// table 3-7); 0 when no sequence starts with it.
int SequenceLength(unsigned char lead, unsigned char* low, unsigned char* high) {
  *low = 0x80;
  *high = 0xBF;
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) {
    if (lead == 0xE0) *low = 0xA0;
    if (lead == 0xED) *high = 0x9F;
    return 3;
  }
  if (lead < 0xF5) {
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
  }
  return 0;
}

// Length of the valid prefix of the sequence at pos (0 when the lead byte is invalid); *whole is
// the length that the lead byte asks for.
int ValidPrefix(std::string_view text, size_t pos, int* whole) {
  unsigned char low, high;
  *whole = SequenceLength(static_cast<unsigned char>(text[pos]), &low, &high);
  if (*whole == 0) return 0;
  int n = 1;
  while (n < *whole && pos + static_cast<size_t>(n) < text.size()) {
    const auto byte = static_cast<unsigned char>(text[pos + static_cast<size_t>(n)]);
    if (byte < low || byte > high) break;
    low = 0x80;
    high = 0xBF;
    ++n;
  }
  return n;
}

}  // namespace

char32_t DecodeUtf8(std::string_view text, size_t pos, size_t* length) {
  int whole = 0;
  const int n = ValidPrefix(text, pos, &whole);
  *length = static_cast<size_t>(std::max(n, 1));
  if (whole == 0 || n < whole) return kReplacement;
  const auto at = [&](int i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[pos + static_cast<size_t>(i)]));
  };
  switch (whole) {
    case 1:
      return at(0);
    case 2:
      return (at(0) & 0x1F) << 6 | (at(1) & 0x3F);
    case 3:
      return (at(0) & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
    default:
      return (at(0) & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 | (at(3) & 0x3F);
  }
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool IsValidUtf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    int whole = 0;
    const int n = ValidPrefix(text, pos, &whole);
    if (whole == 0 || n < whole) return false;
    pos += static_cast<size_t>(n);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    AppendUtf8(DecodeUtf8(text, pos, &length), &out);
    pos += length;
  }
  return out;
}

size_t CompleteUtf8Prefix(std::string_view text) {
  // An open sequence starts at most three bytes before the end.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t pos = text.size() - back;
    int whole = 0;
    const int n = ValidPrefix(text, pos, &whole);
    if (whole > 1 && n < whole && pos + static_cast<size_t>(n) == text.size()) return pos;
  }
  return text.size();
}

}  // namespace tern
