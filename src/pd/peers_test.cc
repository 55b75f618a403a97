#include "pd/peers.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(PeerList, NetworksAndAddresses) {
  const PeerList list = PeerList::Parse("10.1.0.0/16, 192.168.1.7 ,fd00::/9,::1").value();
  EXPECT_EQ(list.ToString(), "10.1.0.0/16,192.168.1.7/32,fd00::/9,::1/128");
  for (const char* inside :
       {"10.1.0.0", "10.1.255.255", "192.168.1.7", "fd7f::1", "::1", "[::1]", "::ffff:10.1.2.3"}) {
    EXPECT_TRUE(list.Allows(inside)) << inside;
  }
  for (const char* outside : {"10.2.0.0", "192.168.1.8", "fd80::1", "::2", "127.0.0.1", "",
                              "10.1.0", "host", "::ffff:10.2.2.3"}) {
    EXPECT_FALSE(list.Allows(outside)) << outside;
  }
}

TEST(PeerList, NothingAndEverything) {
  EXPECT_FALSE(PeerList::Parse("").value().Allows("127.0.0.1"));
  const PeerList v4 = PeerList::Parse("0.0.0.0/0").value();
  EXPECT_TRUE(v4.Allows("8.8.8.8"));
  EXPECT_FALSE(v4.Allows("2001::1"));
  EXPECT_TRUE(PeerList::Parse("::/0").value().Allows("8.8.8.8"));
}

TEST(PeerList, BadEntriesAreNamed) {
  for (const char* text :
       {"10.0.0.0/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/8x", "ten", "/8", "10.0.0.0/-1"}) {
    const Status status = PeerList::Parse(std::string("127.0.0.1,") + text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  }
}

TEST(PeerList, DefaultHasLoopbackAndNotTheWorld) {
  const PeerList list = PeerList::LoopbackAndOwnSubnets();
  EXPECT_TRUE(list.Allows("127.0.0.1"));
  EXPECT_TRUE(list.Allows("::1"));
  EXPECT_FALSE(list.Allows("203.0.113.9"));  // RFC 5737: nobody's
}

TEST(PeerList, ResolvesOnlyWhatItAllows) {
  const PeerList list = PeerList::Parse("127.0.0.0/8").value();
  EXPECT_EQ(list.Resolve("127.0.0.1").value(), "127.0.0.1");
  const Status status = list.Resolve("203.0.113.9").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("--disaggregation-peers"), std::string::npos);
  EXPECT_EQ(list.Resolve("no such host").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tern
