#include "quant/fp8.h"

#include <algorithm>
#include <array>
#include <bit>

#include "tensor/number.h"

namespace tern {
namespace {

constexpr float kLargest = 448.0f;
constexpr float kMinMagnitude = 1e-12f;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// E4m3FromFloat of finite numbers (tensor/number.h, the specification) without branches, so that
// loops of it vectorize.
inline uint8_t E4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const float magnitude = std::min(std::bit_cast<float>(bits & 0x7FFFFFFFu), kLargest);
  const uint32_t m = std::bit_cast<uint32_t>(magnitude);
  const uint32_t normal = ((m + 0x7FFFFu + (m >> 20 & 1)) >> 20) - (120u << 3);
  // Numbers below 2^-6 are multiples of 2^-9: the last place of 2^14.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(magnitude + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f);
  const uint32_t code = magnitude < 0x1p-6f ? subnormal : normal;
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80));
}

}  // namespace

void QuantizeFp8Blocks(const float* weights, int64_t rows, int64_t columns, uint8_t* codes,
                       float* scales) {
  for (int64_t begin = 0; begin < columns; begin += kFp8BlockSize) {
    const int64_t width = std::min(kFp8BlockSize, columns - begin);
    int32_t largest = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const float* w = weights + row * columns + begin;
      for (int64_t i = 0; i < width; ++i) {
        largest = std::max(largest, std::bit_cast<int32_t>(w[i]) & 0x7FFFFFFF);
      }
    }
    const float scale = std::max(std::bit_cast<float>(largest), kMinMagnitude) / kLargest;
    scales[begin / kFp8BlockSize] = scale;
    for (int64_t row = 0; row < rows; ++row) {
      const float* w = weights + row * columns + begin;
      uint8_t* out = codes + row * columns + begin;
      for (int64_t i = 0; i < width; ++i) out[i] = E4m3(w[i] / scale);
    }
  }
}

void AddFp8Error(const float* weights, int64_t rows, int64_t columns, const uint8_t* codes,
                 const float* scales, QuantError* sums) {
  static const auto values = [] {
    std::array<float, 256> table{};
    for (size_t i = 0; i < 256; ++i) table[i] = FloatFromE4m3(static_cast<uint8_t>(i));
    return table;
  }();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < columns; begin += kFp8BlockSize) {
      const uint8_t* const c = codes + row * columns + begin;
      const float scale = scales[begin / kFp8BlockSize];
      const int64_t width = std::min(kFp8BlockSize, columns - begin);
      float rounded[kFp8BlockSize];
      for (int64_t i = 0; i < width; ++i) rounded[i] = values[c[i]] * scale;
      AddQuantError(weights + row * columns + begin, rounded, width, sums);
    }
  }
}

Fp8Matrix QuantizeFp8(const float* weights, int64_t rows, int64_t columns) {
  Fp8Matrix matrix{.rows = rows, .columns = columns};
  const int64_t blocks = CeilDiv(columns, kFp8BlockSize);
  matrix.codes.resize(static_cast<size_t>(rows * columns));
  matrix.scales.resize(static_cast<size_t>(CeilDiv(rows, kFp8BlockSize) * blocks));
  for (int64_t row = 0; row < rows; row += kFp8BlockSize) {
    QuantizeFp8Blocks(weights + row * columns, std::min(kFp8BlockSize, rows - row), columns,
                      matrix.codes.data() + row * columns,
                      matrix.scales.data() + row / kFp8BlockSize * blocks);
  }
  return matrix;
}

}  // namespace tern
