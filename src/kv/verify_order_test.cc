#include "kv/verify_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "base/rng.h"

namespace tern {
namespace {

// Against two lists of page numbers.
TEST(VerifyOrder, RandomTraceAgreesWithLists) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    const auto pages = static_cast<uint32_t>(1 + rng.Below(9));
    VerifyOrder order(pages);
    std::deque<PageId> queues[2];
    for (int step = 0; step < 300; ++step) {
      const PageId page{static_cast<uint32_t>(rng.Below(pages))};
      const bool in_use = rng.Chance(0.5);
      for (auto& queue : queues) std::erase(queue, page);
      if (rng.Chance(0.7)) {
        order.Put(page, in_use);
        queues[in_use].push_back(page);
      } else {
        order.Remove(page);
      }
      for (const bool queue : {false, true}) {
        const auto front = order.Front(queue);
        ASSERT_EQ(front.has_value(), !queues[queue].empty());
        if (front.has_value()) {
          ASSERT_EQ(*front, queues[queue].front());
        }
      }
      for (uint32_t i = 0; i < pages; ++i) {
        ASSERT_EQ(order.Contains(PageId{i}), std::ranges::count(queues[0], PageId{i}) +
                                                 std::ranges::count(queues[1], PageId{i}));
      }
      const auto is_in_use = [&](PageId p) { return std::ranges::count(queues[1], p) > 0; };
      ASSERT_TRUE(order.CheckInvariants(is_in_use).ok());
      if (!queues[1].empty()) {
        EXPECT_FALSE(order.CheckInvariants([](PageId) { return false; }).ok());
      }
    }
  }
}

}  // namespace
}  // namespace tern
