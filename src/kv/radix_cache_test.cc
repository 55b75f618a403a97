#include "kv/radix_cache.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "kv/naive_cache.h"
#include "kv/test_pool.h"

namespace tern {
namespace {

using Tokens = std::vector<int32_t>;

std::vector<PageRef> AllocPages(PagePool& pool, size_t n) {
  std::vector<PageRef> pages;
  for (size_t i = 0; i < n; ++i) pages.push_back(pool.Alloc().value());
  return pages;
}

TEST(RadixCache, SharesWholePages) {
  PagePool pool = TestPagePool(8, 4);
  RadixCache cache(pool);
  std::vector<PageRef> pages = AllocPages(pool, 2);
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  RadixCache::Node* lock = cache.Insert({}, nullptr, tokens, pages);
  EXPECT_EQ(pool.count(PageState::kCached), 2);

  std::vector<PageRef> found;
  RadixCache::Node* match = cache.MatchAndLock({}, Tokens{1, 2, 3, 4, 5, 6, 7}, &found);
  EXPECT_EQ(found, std::vector<PageRef>{pages[0]});
  cache.Unlock(match);
  found.clear();
  EXPECT_EQ(cache.MatchAndLock({}, Tokens{1, 2, 3}, &found), nullptr);
  EXPECT_EQ(cache.MatchAndLock({}, Tokens{1, 2, 3, 5, 5, 6, 7, 8}, &found), nullptr);
  EXPECT_TRUE(found.empty());
  cache.Unlock(lock);
}

TEST(RadixCache, NamespacesAreApart) {
  PagePool pool = TestPagePool(8, 2);
  RadixCache cache(pool, 0, 0);  // every hash is 0: only comparison keeps nodes apart
  std::vector<PageRef> pages = AllocPages(pool, 1);
  const CacheNamespace ab = {.extra_key = "a", .cache_salt = "b"};
  cache.Unlock(cache.Insert(ab, nullptr, Tokens{1, 2}, pages));
  std::vector<PageRef> found;
  for (const CacheNamespace& other : {CacheNamespace{}, CacheNamespace{"ab", ""},
                                      CacheNamespace{"", "ab"}, CacheNamespace{"b", "a"}}) {
    EXPECT_EQ(cache.MatchAndLock(other, Tokens{1, 2}, &found), nullptr);
  }
  cache.Unlock(cache.MatchAndLock(ab, Tokens{1, 2}, &found));
  EXPECT_EQ(found, pages);
}

TEST(RadixCache, ADuplicateIsFreedAndReplaced) {
  PagePool pool = TestPagePool(4, 1);
  RadixCache cache(pool);
  std::vector<PageRef> first = AllocPages(pool, 1), second = AllocPages(pool, 2);
  RadixCache::Node* a = cache.Insert({}, nullptr, Tokens{7}, first);
  RadixCache::Node* b = cache.Insert({}, nullptr, Tokens{7, 8}, second);
  EXPECT_EQ(second[0], first[0]);
  EXPECT_EQ(pool.count(PageState::kFree), 2);
  EXPECT_EQ(cache.PathOf(b), second);
  EXPECT_EQ(cache.Evict(9), 0);  // all locked
  cache.Unlock(a);
  EXPECT_EQ(cache.Evict(9), 0);
  cache.Unlock(b);
  EXPECT_EQ(cache.Evict(9), 2);
}

TEST(RadixCache, ACondemnedPageHidesItsDescendants) {
  PagePool pool = TestPagePool(8, 1);
  RadixCache cache(pool);
  std::vector<PageRef> pages = AllocPages(pool, 4);
  RadixCache::Node* held = cache.Insert({}, nullptr, Tokens{1, 2, 3, 4}, pages);
  std::vector<PageRef> other = AllocPages(pool, 2);
  cache.Unlock(cache.Insert({}, nullptr, Tokens{1, 9}, other));  // other[0] was a duplicate
  std::vector<const RadixCache::Node*> locks = {held};

  cache.Condemn(pages[1].id);
  EXPECT_TRUE(cache.CheckInvariants(locks).ok()) << cache.CheckInvariants(locks).ToString();
  EXPECT_EQ(pool.state(pages[1].id), PageState::kQuarantined);
  std::vector<PageRef> found;
  RadixCache::Node* match = cache.MatchAndLock({}, Tokens{1, 2, 3, 4}, &found);
  EXPECT_EQ(found, std::vector<PageRef>{pages[0]});
  cache.Unlock(match);
  found.clear();
  match = cache.MatchAndLock({}, Tokens{1, 9}, &found);
  EXPECT_EQ(found.size(), 2u);  // a sibling is untouched
  cache.Unlock(match);

  // A holder of the condemned prefix can't add to the tree.
  std::vector<PageRef> more = pages;
  more.push_back(pool.Alloc().value());
  EXPECT_EQ(cache.Insert({}, held, Tokens{1, 2, 3, 4, 5}, more), held);
  EXPECT_EQ(pool.state(more[4].id), PageState::kHeld);

  cache.Unlock(held);
  EXPECT_EQ(pool.state(pages[2].id), PageState::kFree);
  EXPECT_EQ(pool.state(pages[3].id), PageState::kFree);
  EXPECT_TRUE(cache.CheckInvariants({}).ok()) << cache.CheckInvariants({}).ToString();
}

TEST(RadixCache, AMatchNeverReturnsAPageWithAForeignTag) {
  PagePool pool = TestPagePool(4, 1);
  RadixCache cache(pool);
  std::vector<PageRef> pages = AllocPages(pool, 3);
  cache.Unlock(cache.Insert({}, nullptr, Tokens{1, 2, 3}, pages));
  pool.base(pages[1].id)[0] ^= std::byte{1};
  std::vector<PageRef> found;
  RadixCache::Node* match = cache.MatchAndLock({}, Tokens{1, 2, 3}, &found);
  EXPECT_EQ(found, std::vector<PageRef>{pages[0]});
  EXPECT_EQ(pool.state(pages[1].id), PageState::kQuarantined);
  EXPECT_EQ(pool.state(pages[2].id), PageState::kFree);
  cache.Unlock(match);

  // Also when the bad page is the namespace's last one.
  pool.base(pages[0].id)[0] ^= std::byte{1};
  EXPECT_EQ(cache.MatchAndLock({}, Tokens{1, 2, 3}, &found), nullptr);
  EXPECT_TRUE(cache.CheckInvariants({}).ok());
}

TEST(RadixCache, RowsAreFoundInPagesThatGoOnOtherwise) {
  PagePool pool = TestPagePool(8, 4);
  RadixCache cache(pool);
  std::vector<PageRef> pages = AllocPages(pool, 2);
  RadixCache::Node* lock = cache.Insert({}, nullptr, Tokens{1, 2, 3, 4, 5, 6, 7, 8}, pages);
  std::vector<PageRef> other = {pages[0], pool.Alloc().value()};
  cache.Unlock(cache.Insert({}, nullptr, Tokens{1, 2, 3, 4, 5, 9, 9, 9}, other));

  RadixCache::Node* first = nullptr;
  std::vector<PageRef> found;
  first = cache.MatchAndLock({}, Tokens{1, 2, 3, 4, 5, 6, 7}, &found);
  const auto rows = [&](RadixCache::Node* prefix, const Tokens& tokens) {
    const auto result = cache.FindRows({}, prefix, tokens);
    return result ? std::pair(result->page, result->rows) : std::pair(PageRef{}, int64_t{0});
  };
  EXPECT_EQ(rows(first, {5, 6, 7}), std::pair(pages[1], int64_t{3}));
  EXPECT_EQ(rows(first, {5, 6, 6, 1}), std::pair(pages[1], int64_t{2}));
  EXPECT_EQ(rows(first, {5, 9, 9, 7, 7, 7}), std::pair(other[1], int64_t{3}));
  EXPECT_EQ(rows(first, {6, 6}).second, 0);
  EXPECT_EQ(rows(first, {}).second, 0);
  EXPECT_EQ(rows(nullptr, {1, 2, 4}), std::pair(pages[0], int64_t{2}));
  EXPECT_FALSE(cache.FindRows({"", "x"}, nullptr, Tokens{1, 2, 4}).has_value());

  // A page that is not what it was is no source.
  pool.base(other[1].id)[0] ^= std::byte{1};
  EXPECT_EQ(rows(first, {5, 9, 9}).second, 0);
  EXPECT_EQ(pool.state(other[1].id), PageState::kQuarantined);
  EXPECT_EQ(rows(first, {5, 9, 9}), std::pair(pages[1], int64_t{1}));
  cache.Unlock(first);
  cache.Unlock(lock);
}

TEST(RadixCache, ATailIsReplacedByWhatContinuesIt) {
  PagePool pool = TestPagePool(8, 4);
  RadixCache cache(pool);
  const PageRef two = pool.Alloc().value(), same = pool.Alloc().value(),
                three = pool.Alloc().value();
  EXPECT_TRUE(cache.InsertTail({}, nullptr, Tokens{1, 2}, two).second);
  EXPECT_FALSE(cache.InsertTail({}, nullptr, Tokens{1, 2}, same).second);
  EXPECT_FALSE(cache.InsertTail({}, nullptr, Tokens{1}, same).second);
  EXPECT_EQ(pool.state(same.id), PageState::kHeld);
  std::vector<PageRef> found;
  EXPECT_EQ(cache.MatchAndLock({}, Tokens{1, 2, 3, 4}, &found), nullptr);  // never shared
  EXPECT_EQ(cache.FindRows({}, nullptr, Tokens{1, 2, 3, 4})->page, two);

  EXPECT_TRUE(cache.InsertTail({}, nullptr, Tokens{1, 2, 3}, three).second);
  EXPECT_EQ(pool.state(two.id), PageState::kFree);
  EXPECT_EQ(cache.FindRows({}, nullptr, Tokens{1, 2, 3, 4})->rows, 3);
  std::vector<PageRef> whole = {same};
  cache.Unlock(cache.Insert({}, nullptr, Tokens{1, 2, 3, 9}, whole));
  EXPECT_EQ(pool.state(three.id), PageState::kFree);
  EXPECT_EQ(cache.pages(), 1);
  EXPECT_TRUE(cache.CheckInvariants({}).ok()) << cache.CheckInvariants({}).ToString();
  EXPECT_FALSE(
      cache.InsertTail({}, nullptr, Tokens{1, 2, 3}, two).second);     // stale, and known besides
  EXPECT_FALSE(cache.InsertTail({}, nullptr, Tokens{7}, two).second);  // stale
}

// RadixCache and its naive twin, step by step, on random traces over few tokens (much sharing), few
// pages (much eviction), several namespaces, and hashes down to one bit (many collisions). Holders
// look for rows to copy when they come; when they go, they leave a tail, and some a session that
// protects it.
TEST(RadixCache, AgreesWithTheNaiveTwin) {
  int64_t hits = 0, evictions = 0, duplicates = 0, copies = 0, tails = 0, known_tails = 0;
  int64_t protected_evictions = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    const size_t page_tokens = size_t{1} << rng.Below(4);
    PagePool pool =
        TestPagePool(static_cast<int64_t>(4 + rng.Below(28)), static_cast<int64_t>(page_tokens));
    const uint64_t masks[] = {0, 1, 0xF, ~uint64_t{0}};
    const auto max_protected = static_cast<int64_t>(rng.Below(12));
    RadixCache cache(pool, max_protected, masks[rng.Below(4)]);
    NaiveCache twin(page_tokens, static_cast<size_t>(max_protected));
    struct Holder {
      CacheNamespace space;
      Tokens tokens;
      std::vector<PageRef> pages;
      size_t locked = 0;
      RadixCache::Node* lock = nullptr;
    };
    std::vector<Holder> holders;
    const CacheNamespace spaces[] = {{}, {"x", ""}, {"", "x"}};

    for (int step = 0; step < 120; ++step) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " step " << step);
      const uint64_t action = rng.Below(4);
      if (action == 0) {  // a new holder
        Holder holder = {.space = spaces[rng.Below(3)]};
        const size_t length = rng.Below(6 * page_tokens + 1);
        const uint64_t one_in = 2 + rng.Below(6);
        for (size_t i = 0; i < length; ++i) holder.tokens.push_back(rng.Below(one_in) == 0);
        holder.lock = cache.MatchAndLock(holder.space, holder.tokens, &holder.pages);
        holder.locked = holder.pages.size();
        hits += static_cast<int64_t>(holder.locked);
        const std::vector<PageId> want = twin.MatchAndLock(holder.space, holder.tokens);
        ASSERT_EQ(want.size(), holder.pages.size());
        for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(want[i], holder.pages[i].id);
        const auto rows = cache.FindRows(
            holder.space, holder.lock, std::span(holder.tokens).subspan(want.size() * page_tokens));
        const NaiveCache::Rows twin_rows = twin.FindRows(holder.space, holder.tokens, want.size());
        ASSERT_EQ(rows ? rows->rows : 0, twin_rows.rows);
        if (rows) {
          ASSERT_EQ(rows->page.id, twin_rows.page);
        }
        copies += rows.has_value();
        holders.push_back(std::move(holder));
      } else if (action == 1 && !holders.empty()) {  // a holder computes pages and offers them
        Holder& holder = holders[rng.Below(holders.size())];
        const size_t whole = holder.tokens.size() / page_tokens;
        while (holder.pages.size() < whole) {
          const auto page = pool.Alloc();
          if (!page.has_value()) break;
          holder.pages.push_back(*page);
        }
        std::vector<PageId> ids;
        for (const PageRef page : holder.pages) ids.push_back(page.id);
        const std::vector<PageId> want =
            twin.Insert(holder.space, holder.tokens, ids, holder.locked);
        holder.lock = cache.Insert(holder.space, holder.lock, holder.tokens, holder.pages);
        holder.locked = holder.pages.size();
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_EQ(want[i], holder.pages[i].id);
          duplicates += want[i] != ids[i];
        }
      } else if (action == 2 && !holders.empty()) {  // a holder leaves
        const size_t index = rng.Below(holders.size());
        Holder& holder = holders[index];
        RadixCache::Node* end = holder.lock;
        Tokens end_tokens(holder.tokens.begin(),
                          holder.tokens.begin() + long(holder.locked * page_tokens));
        const std::span<const int32_t> tail =
            std::span(holder.tokens).subspan(holder.locked * page_tokens);
        if (!tail.empty() && tail.size() < page_tokens) {
          const auto page = pool.Alloc();
          if (page) {
            const auto [known, taken] = twin.InsertTail(holder.space, holder.tokens, page->id);
            end_tokens = known;
            const auto inserted = cache.InsertTail(holder.space, holder.lock, tail, *page);
            ASSERT_EQ(inserted.second, taken);
            end = inserted.first;
            if (!taken) pool.Free(*page);
            ++(taken ? tails : known_tails);
          }
        }
        for (size_t i = holder.locked; i < holder.pages.size(); ++i) pool.Free(holder.pages[i]);
        if (const uint64_t session = rng.Below(12); session < 6) {
          cache.Protect(session, end);
          twin.Protect(session, holder.space, end_tokens);
        }
        cache.Unlock(holder.lock);
        twin.Unlock(holder.space, holder.tokens, holder.locked);
        holders.erase(holders.begin() + static_cast<long>(index));
      } else if (action == 3) {
        const int64_t count = static_cast<int64_t>(rng.Below(4));
        const size_t protected_before = twin.protected_pages();
        const std::vector<PageId> want = twin.Evict(count);
        ASSERT_EQ(cache.Evict(count), static_cast<int64_t>(want.size()));
        evictions += static_cast<int64_t>(want.size());
        protected_evictions += twin.protected_pages() < protected_before;
        for (const PageId page : want) ASSERT_EQ(pool.state(page), PageState::kFree);
      }
      std::vector<const RadixCache::Node*> locks;
      for (const Holder& holder : holders) locks.push_back(holder.lock);
      const Status status = cache.CheckInvariants(locks);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants().ToString();
      ASSERT_EQ(cache.pages(), static_cast<int64_t>(twin.entries().size()));
      int64_t evictable = 0;
      for (const NaiveCache::Entry& entry : twin.entries()) {
        ASSERT_EQ(pool.state(entry.page), PageState::kCached);
        evictable += entry.locks == 0;
      }
      ASSERT_EQ(cache.evictable_pages(), evictable);
      ASSERT_EQ(cache.protected_pages(), static_cast<int64_t>(twin.protected_pages()));
      ASSERT_LE(cache.protected_pages(), max_protected);
    }
  }
  // The traces did what they are for.
  EXPECT_GT(hits, 1000);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(duplicates, 100);
  EXPECT_GT(copies, 1000);
  EXPECT_GT(tails, 500);
  EXPECT_GT(known_tails, 100);
  EXPECT_GT(protected_evictions, 100);
}

}  // namespace
}  // namespace tern
