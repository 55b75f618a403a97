#include "base/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace tern {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string Hex(const Sha256Digest& digest) {
  std::string hex;
  for (const std::byte b : digest) {
    hex += "0123456789abcdef"[std::to_integer<int>(b) >> 4];
    hex += "0123456789abcdef"[std::to_integer<int>(b) & 15];
  }
  return hex;
}

// FIPS 180-2, appendix B.
TEST(Sha256, StandardVectors) {
  EXPECT_EQ(Hex(Sha256().Finish()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 hash;
  hash.Update("a");
  hash.Update("bc");
  EXPECT_EQ(Hex(hash.Finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// RFC 4231, test cases 2 and 6 (a key longer than a block).
TEST(HmacSha256, StandardVectors) {
  EXPECT_EQ(Hex(HmacSha256(Bytes("Jefe"), {Bytes("what do ya want "), Bytes("for nothing?")})),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  const std::string key(131, '\xaa');
  EXPECT_EQ(Hex(HmacSha256(Bytes(key),
                           {Bytes("Test Using Larger Than Block-Size Key - Hash Key First")})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacSha256, DigestsAreComparedWhole) {
  Sha256Digest a = HmacSha256(Bytes("k"), {}), b = a;
  EXPECT_TRUE(EqualDigests(a, b));
  b[31] ^= std::byte{1};
  EXPECT_FALSE(EqualDigests(a, b));
  EXPECT_NE(RandomBytes32(), RandomBytes32());
}

// A comparison that stopped at the first difference would take a millionth of the time where that
// is the first byte.
TEST(EqualSecrets, TakesAsLongWhereverTheDifferenceIs) {
  EXPECT_TRUE(EqualSecrets("secret", "secret"));
  EXPECT_TRUE(EqualSecrets("", ""));
  for (const char* other : {"", "s", "secre", "secrets", "secreT", "Secret"}) {
    EXPECT_FALSE(EqualSecrets(other, "secret")) << other;
  }
  const std::string secret(1 << 20, 's');
  std::string first = secret, last = secret;
  first.front() = last.back() = 't';
  const auto time_of = [&](const std::string& given) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(EqualSecrets(given, secret));
    return std::chrono::steady_clock::now() - begin;
  };
  auto least_first = time_of(first), least_last = time_of(last);
  for (int i = 0; i < 20; ++i) {
    least_first = std::min(least_first, time_of(first));
    least_last = std::min(least_last, time_of(last));
  }
  EXPECT_LT(least_last, 2 * least_first);
  EXPECT_LT(least_first, 2 * least_last);
}

}  // namespace
}  // namespace tern
