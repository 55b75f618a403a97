#include "text/regex_translator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/piece_regex.h"

namespace tern {
namespace {

TEST(TranslateRegex, EvaluatesClasses) {
  // [a-f] without b and d, by hand.
  const auto translated = TranslateRegex("[a-f&&[^bd]]+?(?i:k)");
  ASSERT_TRUE(translated.ok()) << translated.status().ToString();
  EXPECT_EQ(*translated, "[\\x{61}\\x{63}\\x{65}-\\x{66}]+?(?i:\\x{6b})");
}

TEST(TranslateRegex, WritesIntervalsThatPcre2Reads) {
  EXPECT_EQ(*TranslateRegex("a{,3}b{2}c{1,}"), "\\x{61}{0,3}\\x{62}{2,2}\\x{63}{1,}");
}

TEST(TranslateRegex, RefusesWhatItCannotTranslate) {
  struct Case {
    const char* pattern;
    const char* says;
  };
  const Case cases[] = {
      {"a$", "'$'"},
      {"^a", "'^'"},
      {"\\bword", "'\\b'"},
      {"\\w+", "'\\w'"},
      {"\\h", "'\\h'"},
      {"(a)\\1", "'\\1'"},
      {"(?<name>a)", "a group of an unknown kind"},
      {"(?i)abc", "a group of an unknown kind"},
      {"\\p{Greek}", "the unknown property 'Greek'"},
      {"\\p{L", "a property without braces"},
      {"\\pL", "a property without braces"},
      {"[a--b]", "'--' in a class"},
      {"[[:alpha:]]", "'[:' in a class"},
      {"[abc", "a class without its ']'"},
      {"[]a]", "a class that starts with ']'"},
      {"[z-a]", "a range that ends before it starts"},
      {"[a&&b]", "an empty class"},
      {"(a", "a group without its ')'"},
      {"a)", "an unmatched ')'"},
      {"*a", "'*'"},
      {"a{1,3}+", "'+' after an interval"},
      {"a{2}?", "'?' after '{n}'"},
      {"a{b}", "'{'"},
      {"a{1000000}", "'{'"},
      {"a**", "a repeated repetition"},
      {"\\x{110000}", "a hexadecimal escape"},
      {"\\ud800", "a hexadecimal escape"},
      {"a\\", "a '\\' at the end"},
      {"(?i:ss)", "letters that fold to one character"},
      {"(?i:\xC3\xA9)", "a non-ASCII letter without regard to case"},
  };
  for (const Case& c : cases) {
    const auto result = TranslateRegex(c.pattern);
    ASSERT_FALSE(result.ok()) << c.pattern << " gave " << *result;
    EXPECT_THAT(result.status().message(), testing::HasSubstr(c.says)) << c.pattern;
  }
}

TEST(TranslateRegex, IsBoundedInDepthAndSize) {
  EXPECT_FALSE(TranslateRegex(std::string(2000, '(') + "a" + std::string(2000, ')')).ok());
  EXPECT_FALSE(TranslateRegex(std::string(2000, '[') + "a" + std::string(2000, ']')).ok());
  EXPECT_FALSE(TranslateRegex(std::string(5000, 'a')).ok());
  // PCRE2 has a limit of its own on the size of a compiled pattern.
  EXPECT_FALSE(PieceRegex::Compile("((\\p{L}{999}){999}){999}").ok());
}

}  // namespace
}  // namespace tern
