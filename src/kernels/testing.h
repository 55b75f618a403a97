// What the kernel tests share: random numbers, files of golden data, weights of every type with the
// magnitudes that error bounds need. Tests only. Thread: plain values.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/ref/dequantize.h"
#include "tensor/number.h"

namespace tern::testing {

constexpr double kUnitF32 = 0x1p-24;  // unit roundoff of float32

inline std::string ReadTestData(const std::string& path) {
  std::ifstream file(TERN_SOURCE_DIR "/tests/data/" + path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(generator);
  return values;
}

// The bits of n floats, for "nothing changed".
inline std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// A weight matrix of any type with random contents.
struct TestWeight {
  DType dtype = DType::kF32;
  int64_t n = 0, k = 0;
  std::vector<std::byte> bytes;
  std::vector<float> values;      // [n, k], dequantized
  std::vector<float> magnitudes;  // [n, k], sum of |terms| that a kernel may add to get the value
  TensorView view() const { return {dtype, Shape{n, k}, bytes}; }
};

// Offsets of a block's binary16 scale and minimum; -1: none.
struct ScaleOffsets {
  int d, m;
};
inline ScaleOffsets ScaleOffsetsOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ4_K:
      return {0, 2};
    case DType::kQ6_K:
      return {208, -1};
    default:
      return {0, -1};
  }
}

inline TestWeight MakeWeight(DType dtype, int64_t n, int64_t k, uint32_t seed) {
  TestWeight weight{dtype, n, k, {}, {}, {}};
  const DTypeInfo& info = InfoOf(dtype);
  const int64_t blocks = n * k / info.block_elements;
  weight.bytes.resize(static_cast<size_t>(blocks * info.block_bytes));
  weight.values.resize(static_cast<size_t>(n * k));
  auto* p = reinterpret_cast<uint8_t*>(weight.bytes.data());
  const std::vector<float> normal = RandomFloats(std::max(n * k, 2 * blocks), seed, 0.05f);
  std::mt19937 generator(seed);
  const auto put16 = [](uint8_t* to, uint16_t value) { std::memcpy(to, &value, 2); };
  for (int64_t i = 0; i < blocks; ++i, p += info.block_bytes) {
    const float a = normal[static_cast<size_t>(2 * i) % normal.size()];
    if (dtype == DType::kF32) {
      std::memcpy(p, &normal[static_cast<size_t>(i)], 4);
    } else if (dtype == DType::kF16) {
      put16(p, F16FromFloat(normal[static_cast<size_t>(i)]));
    } else if (dtype == DType::kBF16) {
      put16(p, Bf16FromFloat(normal[static_cast<size_t>(i)]));
    } else {
      for (int64_t j = 0; j < info.block_bytes; ++j) p[j] = static_cast<uint8_t>(generator());
      const ScaleOffsets offsets = ScaleOffsetsOf(dtype);
      put16(p + offsets.d, F16FromFloat(a * 0.1f));
      if (offsets.m >= 0) put16(p + offsets.m, F16FromFloat(a * 0.3f));
    }
  }
  DequantizeBlocks(dtype, weight.bytes.data(), n * k, weight.values.data());

  // Kernels may compute d * q + m from its two terms, or d * (q - 8) as d * q - 8 d.
  weight.magnitudes.assign(weight.values.size(), 0.0f);
  if (dtype == DType::kQ4_1 || dtype == DType::kQ4_K) {
    std::vector<float> part(weight.values.size());
    for (const int offset : {0, 2}) {
      std::vector<std::byte> zeroed = weight.bytes;
      for (int64_t i = 0; i < blocks; ++i) {
        std::memset(zeroed.data() + i * info.block_bytes + offset, 0, 2);
      }
      DequantizeBlocks(dtype, zeroed.data(), n * k, part.data());
      for (size_t i = 0; i < part.size(); ++i) weight.magnitudes[i] += std::fabs(part[i]);
    }
  } else {
    for (int64_t i = 0; i < n * k; ++i) {
      float& magnitude = weight.magnitudes[static_cast<size_t>(i)];
      magnitude = std::fabs(weight.values[static_cast<size_t>(i)]);
      if (dtype == DType::kQ4_0) {
        uint16_t d = 0;
        std::memcpy(&d, weight.bytes.data() + i / 32 * 18, 2);
        magnitude += 16.0f * std::fabs(FloatFromF16(d));
      }
    }
  }
  return weight;
}

}  // namespace tern::testing
