// Any words and scales as an INT4 matrix: codes go out and come back as the same words, the reader
// of checkpoints sees code * scale, and numbers that lie on a group's grid are quantized to
// themselves. Any floats: scales and codes are in range, and searching is never worse than
// rounding. Seeds: weight_packed of the reference checkpoints, as compressed-tensors packed it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/ref/dequantize.h"
#include "quant/fp8.h"
#include "quant/int4.h"
#include "tensor/number.h"

namespace {

using tern::FloatFromBf16;

constexpr int64_t kColumns = 128;

void CheckWords(const std::vector<uint32_t>& words, uint16_t scale) {
  std::vector<int8_t> codes(kColumns);
  tern::UnpackInt4Row(words.data(), kColumns, codes.data());
  std::vector<uint32_t> again(words.size());
  tern::PackInt4Row(codes.data(), kColumns, again.data());
  TERN_CHECK(again == words);

  const std::vector<uint16_t> scales(kColumns / 32, scale);
  const tern::WeightView view = {
      .scheme = tern::WeightView::Scheme::kInt4Group,
      .rows = 1,
      .columns = kColumns,
      .data = {tern::DType::kI32, tern::Shape{1, kColumns / 8}, std::as_bytes(std::span(words))},
      .scales = {tern::DType::kBF16, tern::Shape{1, kColumns / 32},
                 std::as_bytes(std::span(scales))},
      .group = 32};
  std::vector<float> values(kColumns);
  tern::DequantizeWeightRow(view, 0, values.data());
  const float s = FloatFromBf16(scale);
  for (size_t i = 0; i < values.size(); ++i) {
    TERN_CHECK(values[i] == static_cast<float>(codes[i]) * s);
  }
  // Away from overflow and subnormals, quotients of these products are the codes.
  if (s < 1e-30f || s > 1e30f) return;
  std::vector<int8_t> back(kColumns);
  tern::Int4Codes(values.data(), kColumns, scale, back.data());
  TERN_CHECK(back == codes);
}

void CheckFloats(const std::vector<float>& weights) {
  const auto columns = static_cast<int64_t>(weights.size());
  std::vector<int8_t> codes(weights.size());
  std::vector<uint16_t> scales(weights.size() / 32);
  bool finite = true;
  for (const float w : weights) finite = finite && std::isfinite(w);
  tern::QuantError nearest, search;
  for (const auto method : {tern::ScaleMethod::kRoundToNearest, tern::ScaleMethod::kSearch}) {
    tern::QuantError& error = method == tern::ScaleMethod::kSearch ? search : nearest;
    const bool told = tern::QuantizeInt4Row(weights.data(), columns, 32, method, nullptr,
                                            codes.data(), scales.data(), &error);
    TERN_CHECK(told == finite);
    if (!finite) return;
    for (const int8_t code : codes) TERN_CHECK(code >= -8 && code <= 7);
    for (const uint16_t scale : scales) {
      TERN_CHECK(std::isfinite(FloatFromBf16(scale)) && FloatFromBf16(scale) > 0);
    }
  }
  // Up to the rounding of float sums; squares beyond float are infinite.
  TERN_CHECK(!(search.error > nearest.error * 1.0001 + 1e-30) || !std::isfinite(nearest.weight));
  std::vector<uint8_t> bytes(weights.size());
  float scale[8] = {};
  tern::QuantizeFp8Blocks(weights.data(), 1, columns, bytes.data(), scale);
  for (const uint8_t byte : bytes) TERN_CHECK((byte & 0x7F) != 0x7F);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint16_t scale = 0;
  if (size < sizeof(scale)) return 0;
  std::memcpy(&scale, data, sizeof(scale));
  data += sizeof(scale);
  size -= sizeof(scale);
  if (std::isfinite(FloatFromBf16(scale)) && FloatFromBf16(scale) > 0) {
    std::vector<uint32_t> words(kColumns / 8);
    std::memcpy(words.data(), data, std::min(size, words.size() * 4));
    CheckWords(words, scale);
  }
  std::vector<float> weights(256);
  std::memcpy(weights.data(), data, std::min(size, weights.size() * 4));
  CheckFloats(weights);
  for (size_t i = 0; i < weights.size(); ++i) {  // and as BF16, which most weights are
    uint16_t half = 0;
    if (i * 2 + 2 <= size) std::memcpy(&half, data + i * 2, 2);
    weights[i] = FloatFromBf16(half);
  }
  CheckFloats(weights);
  return 0;
}
