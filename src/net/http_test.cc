#include "net/http.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(UrlTest, ParsesAndRefuses) {
  auto url = ParseUrl("http://[::1]:8080/a/b?c");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "::1");
  EXPECT_EQ(url->port, "8080");
  EXPECT_EQ(url->target, "/a/b?c");
  EXPECT_EQ(ParseUrl("http://host")->port, "80");
  for (const char* bad : {"", "host:80", "http://", "http://:80", "http://h:", "http://h:x",
                          "http://h:123456", "http://[::1"}) {
    EXPECT_FALSE(ParseUrl(bad).ok()) << bad;
  }
  EXPECT_EQ(ParseUrl("https://h").status().code(), StatusCode::kUnimplemented);
}

TEST(HttpTest, PercentDecodeKeepsWhatIsNoEscape) {
  EXPECT_EQ(PercentDecode("a%20b%2", false), "a b%2");
  EXPECT_EQ(PercentDecode("%zz+%41", true), "%zz A");
}

TEST(HttpTest, QueryParameters) {
  HttpRequest request;
  request.query = "a=1&b=x%26y+z&c&a=2&=5";
  EXPECT_EQ(request.QueryParameter("a"), "1");
  EXPECT_EQ(request.QueryParameter("b"), "x&y z");
  EXPECT_EQ(request.QueryParameter("c"), "");
  EXPECT_EQ(request.QueryParameter("d"), std::nullopt);
}

TEST(HttpTest, HeadersIgnoreCase) {
  const HttpHeaders headers = {{"Content-Type", "a"}, {"content-type", "b"}};
  ASSERT_NE(FindHeader(headers, "CONTENT-type"), nullptr);
  EXPECT_EQ(*FindHeader(headers, "CONTENT-type"), "a");
  EXPECT_EQ(FindHeader(headers, "Content"), nullptr);
}

}  // namespace
}  // namespace tern
