#include "text/unicode.h"

#include <gtest/gtest.h>

#include "text/code_point_set.h"

namespace tern {
namespace {

size_t CountOf(const CodePointSet& set) {
  size_t count = 0;
  for (const auto& [first, last] : set.ranges()) count += last - first + 1;
  return count;
}

// Counted with the classes of tokenizers 0.23.3 (Oniguruma) over all scalar values:
// len of what Split(Regex(class), "removed") takes out.
TEST(Unicode, HasTheSetsOfOniguruma) {
  using enum GeneralCategory;
  const std::pair<UnicodeSet, size_t> kCounts[] = {
      {SetOf(kLu), 1858},   {SetOf(kLl), 2258},  {SetOf(kLt), 31}, {SetOf(kLm), 404},
      {SetOf(kLo), 136477}, {kLetter, 141028},   {kMark, 2501},    {kNumber, 1911},
      {SetOf(kNd), 760},    {kPunctuation, 855}, {kSymbol, 8514},  {kWhiteSpace, 25},
      {kHan, 99030},        {kSeparator, 19},    {SetOf(kPc), 10}};
  for (const auto& [set, count] : kCounts) {
    EXPECT_EQ(CountOf(CodePointSet::WithProperties(set)), count) << std::hex << set;
  }
}

TEST(Unicode, KnowsSingleCharacters) {
  using enum GeneralCategory;
  EXPECT_TRUE(PropertiesOf(U'A') & SetOf(kLu));
  EXPECT_TRUE(PropertiesOf(0x01C5) & SetOf(kLt));
  EXPECT_TRUE(PropertiesOf(0x05C9) & SetOf(kCn));    // unassigned in Unicode 16
  EXPECT_TRUE(PropertiesOf(0x1C89) & SetOf(kLu));    // new in Unicode 16
  EXPECT_FALSE(PropertiesOf(0x180E) & kWhiteSpace);  // was a space up to Unicode 6.2
  EXPECT_TRUE(PropertiesOf(0x0085) & kWhiteSpace);
  EXPECT_TRUE(PropertiesOf(0x3007) & kHan & ~kLetter);
  EXPECT_TRUE(PropertiesOf(0x10FFFF) & SetOf(kCn));
  EXPECT_TRUE(PropertiesOf(U'_') & kWord);
}

TEST(Unicode, EveryCodePointHasOneCategory) {
  constexpr UnicodeSet kAll = SetOf(GeneralCategory::kLu, GeneralCategory::kCn);
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    const UnicodeSet category = PropertiesOf(c) & kAll;
    ASSERT_TRUE(category != 0 && (category & (category - 1)) == 0) << static_cast<uint32_t>(c);
  }
}

TEST(CharAt, GivesOneCharacterPerInvalidPart) {
  const std::string_view text = "\xE4\xB8x";
  EXPECT_EQ(CharAt(text, 0).code_point, 0xFFFDu);
  EXPECT_EQ(CharAt(text, 0).size_bytes, 2u);
  EXPECT_EQ(CharAt(text, 2).code_point, U'x');
  EXPECT_TRUE(CharAt(text, 3).AtEnd());
}

}  // namespace
}  // namespace tern
