// Unicode 16 properties of code points, as sets of bits, from tables of tern's own: the pieces that
// a tokenizer cuts must not depend on the Unicode version of a library.
// Thread: pure functions; the tables are immutable and built at first use.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/utf8.h"

namespace tern {

// The order is that of tools/make_unicode_tables.py.
enum class GeneralCategory : uint8_t {
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCo,
  kCn,
};
inline constexpr int kGeneralCategories = 29;

// One bit per general category, then the properties below. Every code point has exactly one
// category bit.
using UnicodeSet = uint32_t;

constexpr UnicodeSet SetOf(GeneralCategory category) {
  return UnicodeSet{1} << static_cast<int>(category);
}
// The categories from `first` to `last`, in the order of the enumeration.
constexpr UnicodeSet SetOf(GeneralCategory first, GeneralCategory last) {
  return (SetOf(last) << 1) - SetOf(first);
}

inline constexpr UnicodeSet kHan = UnicodeSet{1} << 29;         // Script=Han, not its extensions
inline constexpr UnicodeSet kWhiteSpace = UnicodeSet{1} << 30;  // \s
inline constexpr UnicodeSet kWord = UnicodeSet{1} << 31;        // \w of UTS 18, annex C
inline constexpr UnicodeSet kLetter = SetOf(GeneralCategory::kLu, GeneralCategory::kLo);
inline constexpr UnicodeSet kMark = SetOf(GeneralCategory::kMn, GeneralCategory::kMe);
inline constexpr UnicodeSet kNumber = SetOf(GeneralCategory::kNd, GeneralCategory::kNo);
inline constexpr UnicodeSet kPunctuation = SetOf(GeneralCategory::kPc, GeneralCategory::kPo);
inline constexpr UnicodeSet kSymbol = SetOf(GeneralCategory::kSm, GeneralCategory::kSo);
inline constexpr UnicodeSet kSeparator = SetOf(GeneralCategory::kZs, GeneralCategory::kZp);
inline constexpr UnicodeSet kOther = SetOf(GeneralCategory::kCc, GeneralCategory::kCn);

// REQUIRES: code_point <= U+10FFFF. Surrogates count as unassigned.
UnicodeSet PropertiesOf(char32_t code_point);

// A character of a text: what it is and how many bytes it takes. An invalid part of UTF-8 is one
// character U+FFFD.
struct TextChar {
  char32_t code_point = 0;
  UnicodeSet properties = 0;  // 0: past the end of the text
  size_t size_bytes = 0;

  bool In(UnicodeSet set) const { return (properties & set) != 0; }
  bool AtEnd() const { return properties == 0; }
};

// The character at text[pos]; one with AtEnd() when pos >= text.size().
TextChar CharAt(std::string_view text, size_t pos);

}  // namespace tern
