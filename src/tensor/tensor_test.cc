#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace tern {
namespace {

TEST(ShapeTest, ElementsAndOverflow) {
  EXPECT_EQ(Shape({}).elements(), 1);
  EXPECT_EQ(Shape({3, 0, 5}).elements(), 0);
  EXPECT_EQ(Shape({2, 3, 4}).elements(), 24);
  EXPECT_EQ(Shape({int64_t{1} << 31, int64_t{1} << 32}).elements(), std::nullopt);
  EXPECT_EQ(Shape({2, 3}).ToString(), "[2, 3]");
  EXPECT_FALSE(Shape({2, 3}) == Shape({3, 2}));
}

// Sizes published for GGUF blocks.
TEST(StorageBytesTest, BlocksAndOverflow) {
  EXPECT_EQ(StorageBytes(DType::kBF16, 10), 20u);
  EXPECT_EQ(StorageBytes(DType::kQ4_0, 64), 36u);
  EXPECT_EQ(StorageBytes(DType::kQ4_1, 32), 20u);
  EXPECT_EQ(StorageBytes(DType::kQ8_0, 32), 34u);
  EXPECT_EQ(StorageBytes(DType::kQ4_K, 256), 144u);
  EXPECT_EQ(StorageBytes(DType::kQ6_K, 512), 420u);
  EXPECT_EQ(StorageBytes(DType::kQ4_0, 33), std::nullopt);
  EXPECT_EQ(StorageBytes(DType::kF32, std::numeric_limits<uint64_t>::max()), std::nullopt);
}

TEST(BufferTest, IsZeroAlignedAndMoves) {
  Buffer buffer(1000);
  ASSERT_NE(buffer.data(), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
  std::byte* bytes = buffer.data();
  Buffer moved(std::move(buffer));
  EXPECT_EQ(moved.data(), bytes);
  EXPECT_EQ(moved.size_bytes(), 1000u);
  Buffer assigned(5);
  assigned = std::move(moved);
  EXPECT_EQ(assigned.data(), bytes);
}

// Small buffers share regions of 64 MiB: each stays its own, aligned and zero, however others come
// and go, and the memory of those that have gone is given back.
TEST(BufferTest, BuffersThatShareARegionDoNotMeet) {
  std::mt19937 generator(1);
  std::vector<std::pair<Buffer, std::byte>> live;
  const auto holds_only = [](const Buffer& buffer, std::byte value) {
    return std::all_of(buffer.data(), buffer.data() + buffer.size_bytes(),
                       [value](std::byte byte) { return byte == value; });
  };
  for (int round = 0; round < 600; ++round) {
    if (live.size() > 20 || (round % 3 == 2 && !live.empty())) {
      std::swap(live[generator() % live.size()], live.back());
      ASSERT_TRUE(holds_only(live.back().first, live.back().second));
      live.pop_back();
    }
    Buffer buffer(generator() % 2 == 0 ? 1 + generator() % 300 : 1 + generator() % (5 << 20));
    ASSERT_NE(buffer.data(), nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    ASSERT_TRUE(holds_only(buffer, std::byte{0}));
    const auto value = static_cast<std::byte>(1 + round % 255);
    std::fill_n(buffer.data(), buffer.size_bytes(), value);
    live.emplace_back(std::move(buffer), value);
  }
  for (const auto& [buffer, value] : live) ASSERT_TRUE(holds_only(buffer, value));
}

TEST(BufferTest, MemoryOfSmallBuffersComesBack) {
  const auto resident_bytes = [] {
    std::ifstream statm("/proc/self/statm");
    int64_t size = 0, resident = 0;
    statm >> size >> resident;
    return resident * 4096;
  };
  const Buffer kept(100);  // holds its region
  const int64_t before = resident_bytes();
  for (int round = 0; round < 100; ++round) {
    Buffer buffer(6 << 20);
    std::fill_n(buffer.data(), buffer.size_bytes(), std::byte{1});
  }
  EXPECT_LT(resident_bytes() - before, 16 << 20);
}

TEST(BufferTest, EmptyAndImpossibleSizesGiveNoBytes) {
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(std::numeric_limits<size_t>::max() / 2).data(), nullptr);
}

}  // namespace
}  // namespace tern
