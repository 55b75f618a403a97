#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/rng.h"
#include "kv/test_pool.h"

namespace tern {
namespace {

TEST(PageTagSource, NeverRepeatsAndDependsOnTheNonce) {
  PageTagSource a(1), b(1), c(2);
  std::set<PageTag> seen;
  for (int i = 0; i < 100'000; ++i) {
    const PageTag tag = a.Next();
    ASSERT_NE(tag, PageTag::kNever);
    ASSERT_TRUE(seen.insert(tag).second) << i;
    ASSERT_EQ(tag, b.Next());
    ASSERT_FALSE(seen.contains(c.Next()));
  }
}

// docs/formats/kv_page.md, with the SplitMix64 finaliser written out again.
TEST(PageTagSource, FollowsTheDocument) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  };
  PageTagSource source(0x1234);
  EXPECT_EQ(source.Next(), PageTag{mix(mix(0x1234) + 1)});
  EXPECT_EQ(source.Next(), PageTag{mix(mix(0x1234) + 2)});
}

TEST(PagePool, HeaderBytesFollowTheDocument) {
  PagePool pool = TestPagePool(2, 4, 0x1122334455667788);
  const PageRef page = *pool.Alloc();
  pool.SetRows(page.id, 3);
  unsigned char bytes[64];
  std::memcpy(bytes, pool.base(page.id), 64);
  uint64_t tag, nonce;
  uint32_t format, rows;
  std::memcpy(&tag, bytes, 8);
  std::memcpy(&format, bytes + 8, 4);
  std::memcpy(&rows, bytes + 12, 4);
  std::memcpy(&nonce, bytes + 16, 8);
  EXPECT_EQ(PageTag{tag}, page.tag);
  EXPECT_EQ(format, 1u);  // bf16
  EXPECT_EQ(rows, 3u);
  EXPECT_EQ(nonce, 0x1122334455667788u);
  for (int i = 24; i < 64; ++i) EXPECT_EQ(bytes[i], 0) << i;
}

TEST(PagePool, TagChangesAtAllocAndFree) {
  PagePool pool = TestPagePool(1);
  std::set<PageTag> seen = {pool.tag(PageId{0})};
  for (int i = 0; i < 10; ++i) {
    const PageRef page = *pool.Alloc();
    EXPECT_TRUE(seen.insert(page.tag).second);
    EXPECT_TRUE(pool.Matches(page));
    pool.Free(page);
    EXPECT_TRUE(seen.insert(pool.tag(PageId{0})).second);
    EXPECT_FALSE(pool.Matches(page));
  }
}

TEST(PagePool, AStaleReferenceFreesNothing) {
  PagePool pool = TestPagePool(1);
  const PageRef old = *pool.Alloc();
  pool.Free(old);
  const PageRef now = *pool.Alloc();
  pool.Free(old);
  EXPECT_TRUE(pool.Matches(now));
  EXPECT_FALSE(pool.MoveToCache(old));
  EXPECT_EQ(pool.state(now.id), PageState::kHeld);
}

TEST(PagePool, QuarantinedPagesStayOut) {
  PagePool pool = TestPagePool(2);
  const PageRef a = *pool.Alloc();
  pool.Quarantine(a.id);
  pool.Free(a);
  const PageRef b = *pool.Alloc();
  EXPECT_NE(a.id, b.id);
  EXPECT_FALSE(pool.Alloc().has_value());
  EXPECT_EQ(pool.count(PageState::kQuarantined), 1);
  EXPECT_TRUE(pool.CheckInvariants().ok());

  PagePool unused = TestPagePool(1);
  unused.Quarantine(PageId{0});  // a free page
  EXPECT_FALSE(unused.Alloc().has_value());
  EXPECT_TRUE(unused.CheckInvariants().ok());
}

TEST(PagePool, EveryFlippedTagBitIsSeen) {
  PagePool pool = TestPagePool(3);
  pool.Free(*pool.Alloc());
  const PageRef page = *pool.Alloc();
  for (int bit = 0; bit < 64; ++bit) {
    std::byte& byte = pool.base(page.id)[bit / 8];
    byte ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(pool.Matches(page)) << bit;
    EXPECT_EQ(pool.CheckInvariants().code(), StatusCode::kInternal) << bit;
    byte ^= std::byte(1 << bit % 8);
  }
  EXPECT_TRUE(pool.Matches(page));
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(PagePool, RefusesImpossibleSizes) {
  for (const int64_t pages : {int64_t{0}, int64_t{-1}, int64_t{1} << 33, int64_t{1} << 62}) {
    EXPECT_EQ(PagePool::Create(TestPageFormat(4), pages, 1).status().code(),
              StatusCode::kInvalidArgument);
  }
  const KvLayerSpec layer = {.kind = KvLayerSpec::Kind::kMla, .latent = 1 << 20};
  const auto big = PageFormat::Make({&layer, 1}, KvFormat::kF32, 1024);
  EXPECT_EQ(PagePool::Create(*big, int64_t{1} << 18, 1).status().code(),
            StatusCode::kResourceExhausted);
}

// The pool against a map of what each page's owner last knew.
TEST(PagePool, RandomTraceAgreesWithAMap) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    PagePool pool = TestPagePool(static_cast<int64_t>(1 + rng.Below(12)));
    std::map<uint32_t, PageRef> held, cached;
    std::set<uint32_t> quarantined;
    const auto pick = [&](std::map<uint32_t, PageRef>& from) {
      auto it = from.begin();
      std::advance(it, static_cast<long>(rng.Below(from.size())));
      const PageRef page = it->second;
      from.erase(it);
      return page;
    };
    for (int step = 0; step < 300; ++step) {
      switch (rng.Below(5)) {
        case 0:
        case 1: {
          const auto page = pool.Alloc();
          const size_t used = held.size() + cached.size() + quarantined.size();
          ASSERT_EQ(page.has_value(), used < static_cast<size_t>(pool.pages()));
          if (!page.has_value()) break;
          const uint32_t id = static_cast<uint32_t>(page->id);
          ASSERT_FALSE(held.contains(id) || cached.contains(id) || quarantined.contains(id));
          held[id] = *page;
          break;
        }
        case 2: {
          auto& from = rng.Chance(0.5) ? held : cached;
          if (!from.empty()) pool.Free(pick(from));
          break;
        }
        case 3: {
          if (held.empty()) break;
          const PageRef page = pick(held);
          ASSERT_TRUE(pool.MoveToCache(page));
          cached[static_cast<uint32_t>(page.id)] = page;
          break;
        }
        case 4: {
          if (!rng.Chance(0.05) || held.empty()) break;
          const PageRef page = pick(held);
          pool.Quarantine(page.id);
          quarantined.insert(static_cast<uint32_t>(page.id));
          break;
        }
      }
      ASSERT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants().ToString();
      ASSERT_EQ(pool.count(PageState::kHeld), static_cast<int64_t>(held.size()));
      ASSERT_EQ(pool.count(PageState::kCached), static_cast<int64_t>(cached.size()));
      for (const auto& [id, page] : held) ASSERT_TRUE(pool.Matches(page));
      for (const auto& [id, page] : cached) ASSERT_TRUE(pool.Matches(page));
    }
  }
}

}  // namespace
}  // namespace tern
