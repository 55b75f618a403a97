#include "text/normalizer.h"

#include <gtest/gtest.h>

#include <chrono>

namespace tern {
namespace {

using enum NormalizationForm;

// From Unicode's NormalizationTest.txt, parts 1 and 2, and UAX 15, figures 3 to 6.
TEST(Normalize, FollowsUax15) {
  struct Case {
    const char *source, *nfc, *nfd, *nfkc, *nfkd;
  };
  const Case cases[] = {
      // 1E0A; D with dot above
      {"\xE1\xB8\x8A", "\xE1\xB8\x8A", "D\xCC\x87", "\xE1\xB8\x8A", "D\xCC\x87"},
      // 1E0A 0323: the marks are reordered, then composed with the one below
      {"\xE1\xB8\x8A\xCC\xA3", "\xE1\xB8\x8C\xCC\x87", "D\xCC\xA3\xCC\x87", "\xE1\xB8\x8C\xCC\x87",
       "D\xCC\xA3\xCC\x87"},
      // AC01; a Hangul syllable
      {"\xEA\xB0\x81", "\xEA\xB0\x81", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81",
       "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"},
      // FB01; the ligature fi has a compatibility decomposition only
      {"\xEF\xAC\x81", "\xEF\xAC\x81", "\xEF\xAC\x81", "fi", "fi"},
      // 212B; the Angstrom sign is a singleton
      {"\xE2\x84\xAB", "\xC3\x85", "A\xCC\x8A", "\xC3\x85", "A\xCC\x8A"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Normalize(c.source, kNone), c.source);
    EXPECT_EQ(Normalize(c.source, kNfc), c.nfc);
    EXPECT_EQ(Normalize(c.source, kNfd), c.nfd);
    EXPECT_EQ(Normalize(c.source, kNfkc), c.nfkc);
    EXPECT_EQ(Normalize(c.source, kNfkd), c.nfkd);
  }
}

TEST(Normalize, CopiesWhatIsNotUtf8) {
  EXPECT_EQ(Normalize("e\xCC\x81\xFF"
                      "e\xCC\x81\xE4\xB8",
                      kNfc),
            "\xC3\xA9\xFF\xC3\xA9\xE4\xB8");
  EXPECT_EQ(Normalize("\xEF\xBF\xBD", kNfc), "\xEF\xBF\xBD");
}

// Marks of two classes in turn: sorting them by neighbours would take hours.
TEST(Normalize, IsFastOnAMegabyteOfMarks) {
  std::string text = "a";
  while (text.size() < 1 << 20) text += "\xCC\x81\xCC\xA7";
  const auto start = std::chrono::steady_clock::now();
  const std::string out = Normalize(text, kNfc);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  // The acute goes onto the a, past the cedillas, which come first: a class below.
  EXPECT_TRUE(out.starts_with("\xC3\xA1\xCC\xA7\xCC\xA7"));
  EXPECT_TRUE(out.ends_with("\xCC\x81\xCC\x81"));
}

}  // namespace
}  // namespace tern
