#include "text/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace tern {
namespace {

// The printable bytes of Latin-1 stand for themselves; the other 68 get U+0100 and up, in order.
constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr char32_t kAlphabetEnd = 0x100 + 68;

struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int, kAlphabetEnd> byte_of{};  // -1: not in the alphabet
  constexpr Alphabet() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      of_byte[b] = IsPrintable(b) ? static_cast<char32_t>(b) : next++;
      byte_of[of_byte[b]] = b;
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

bool DecodeByteAlphabet(std::string_view token, std::string* bytes) {
  bytes->clear();
  for (size_t pos = 0; pos < token.size();) {
    size_t length = 0;
    const char32_t c = DecodeUtf8(token, pos, &length);
    if (c >= kAlphabetEnd || kAlphabet.byte_of[c] < 0) {
      *bytes = token;
      return false;
    }
    bytes->push_back(static_cast<char>(kAlphabet.byte_of[c]));
    pos += length;
  }
  return true;
}

std::string EncodeByteAlphabet(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) AppendUtf8(kAlphabet.of_byte[static_cast<unsigned char>(b)], &out);
  return out;
}

}  // namespace tern
