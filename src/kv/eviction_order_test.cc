#include "kv/eviction_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tern {
namespace {

// Paths of pages, named by letters.
class EvictionOrderTest : public testing::Test {
 protected:
  using Page = EvictionOrder::Page;

  void Make(int64_t max_protected) { order_ = std::make_unique<EvictionOrder>(max_protected); }

  // A page behind the one named `parent` (' ': none).
  void Add(char name, char parent = ' ') {
    auto page = std::make_unique<Page>();
    if (Page* const before = Find(parent)) {
      order_->Unlist(before);
      page->parent = before;
      page->depth = before->depth + 1;
      ++before->children;
      order_->List(before);
    }
    page->last_use = 1'000'000 + pages_.size();  // until its first use
    order_->List(page.get());
    pages_.emplace_back(name, std::move(page));
    order_->Touch(Find(name));
  }
  // A path of new pages.
  void AddPath(const std::string& names, char parent = ' ') {
    for (const char name : names) Add(name, std::exchange(parent, name));
  }
  Page* Find(char name) {
    for (auto& [other, page] : pages_) {
      if (other == name) return page.get();
    }
    return nullptr;
  }
  void Remove(Page* page) {
    order_->Unlist(page);
    order_->Forget(page);
    if (page->parent != nullptr) {
      order_->Unlist(page->parent);
      --page->parent->children;
      order_->List(page->parent);
    }
    std::erase_if(pages_, [&](const auto& entry) { return entry.second.get() == page; });
  }
  // The names of the next `count` pages, which go.
  std::string Evict(int count) {
    std::string names;
    for (; count > 0; --count) {
      Page* const next = order_->Next();
      if (next == nullptr) break;
      for (const auto& [name, page] : pages_) names += page.get() == next ? name : '\0';
      std::erase(names, '\0');
      Remove(next);
      Check();
    }
    return names;
  }
  void Check() {
    std::vector<const Page*> all;
    for (const auto& [name, page] : pages_) all.push_back(page.get());
    EXPECT_TRUE(order_->CheckInvariants(all).ok()) << order_->CheckInvariants(all).ToString();
  }

  std::unique_ptr<EvictionOrder> order_;
  std::vector<std::pair<char, std::unique_ptr<Page>>> pages_;
};

TEST_F(EvictionOrderTest, LeavesGoByLastUse) {
  Make(0);
  AddPath("abc");
  AddPath("xyz");
  order_->Touch(Find('c'));
  EXPECT_EQ(Evict(9), "zyxcba");
}

TEST_F(EvictionOrderTest, ProtectedPagesGoLast) {
  Make(10);
  AddPath("abc");
  order_->Protect(1, Find('c'));
  AddPath("xyz");
  order_->Protect(2, Find('z'));
  AddPath("mno");
  Add('p', 'a');  // another branch, that no session protects
  EXPECT_EQ(order_->protected_pages(), 6);
  EXPECT_EQ(order_->evictable_pages(), 10);
  // The session that was used longest ago goes first, from its end.
  EXPECT_EQ(Evict(10), "onmpcbazyx");
}

TEST_F(EvictionOrderTest, ASessionProtectsWhereItEndedLast) {
  Make(10);
  AddPath("abc");
  order_->Protect(1, Find('c'));
  AddPath("xy");
  order_->Protect(2, Find('y'));
  AddPath("de", 'b');
  order_->Protect(1, Find('e'));
  Check();
  EXPECT_EQ(order_->protected_pages(), 6);  // abde, xy
  EXPECT_EQ(Evict(7), "cyxedba");
  EXPECT_EQ(order_->protected_pages(), 0);
}

TEST_F(EvictionOrderTest, BeyondTheBoundTheOldestSessionLosesItsProtection) {
  Make(5);
  AddPath("abc");
  order_->Protect(1, Find('c'));
  AddPath("xy");
  order_->Protect(2, Find('y'));
  EXPECT_EQ(order_->protected_pages(), 5);
  order_->Touch(Find('c'));  // a use by somebody else
  AddPath("d", 'a');
  order_->Protect(3, Find('d'));  // a is protected already, d is one too many
  Check();
  EXPECT_EQ(order_->protected_pages(), 4);
  EXPECT_EQ(Evict(6), "cbyxda");
}

TEST_F(EvictionOrderTest, ALongPathIsProtectedAsFarAsTheBound) {
  Make(2);
  AddPath("abcd");
  order_->Protect(1, Find('d'));
  AddPath("x");
  EXPECT_EQ(order_->protected_pages(), 2);
  EXPECT_EQ(Evict(5), "dcxba");
}

// Any number of sessions may end at one page; no more than pages are remembered.
TEST_F(EvictionOrderTest, SessionsAreBoundedToo) {
  Make(3);
  AddPath("ab");
  for (uint64_t session = 1; session < 100; ++session) order_->Protect(session, Find('b'));
  Check();
  EXPECT_EQ(Find('b')->ends.size(), 3u);
  EXPECT_EQ(order_->protected_pages(), 2);
}

TEST_F(EvictionOrderTest, WithABoundOfZeroNothingIsProtected) {
  Make(0);
  AddPath("ab");
  order_->Protect(1, Find('b'));
  AddPath("x");
  EXPECT_EQ(order_->protected_pages(), 0);
  EXPECT_EQ(Evict(3), "bax");
}

// A page that is lost takes no session with it: what is before it stays protected.
TEST_F(EvictionOrderTest, ASessionEndsBeforeAPageThatHasGone) {
  Make(5);
  AddPath("abc");
  order_->Protect(1, Find('c'));
  Remove(Find('c'));
  Check();
  EXPECT_EQ(order_->protected_pages(), 2);
  AddPath("x");
  EXPECT_EQ(Evict(3), "xba");
}

}  // namespace
}  // namespace tern
