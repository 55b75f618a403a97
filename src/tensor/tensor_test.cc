#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

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

TEST(BufferTest, EmptyAndImpossibleSizesGiveNoBytes) {
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(std::numeric_limits<size_t>::max() / 2).data(), nullptr);
}

}  // namespace
}  // namespace tern
