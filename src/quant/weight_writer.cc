#include "quant/weight_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "quant/fp8.h"
#include "tensor/number.h"

namespace tern {
namespace {

using Action = PlannedWeight::Action;

constexpr int64_t kBlockElements = int64_t{1} << 20;
constexpr int64_t kCopyBytes = int64_t{4} << 20;
constexpr int64_t kCalibratedElements = int64_t{16} << 20;  // many rows share a pass over a factor

int64_t RoundUp(int64_t a, int64_t unit) { return (a + unit - 1) / unit * unit; }

std::span<const std::byte> Bytes(const auto& values) { return std::as_bytes(std::span(values)); }

// Errors name the first number that is none.
Status CheckFinite(const PlannedWeight& weight, int64_t row, const float* values, int64_t count) {
  constexpr int32_t kInfinity = 0x7F800000;
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF);
  }
  if (largest < kInfinity) return OkStatus();
  const float* bad =
      std::find_if(values, values + count, [](float value) { return !std::isfinite(value); });
  const CheckpointTensor& tensor = weight.source.tensor();
  return InvalidArgument(fmt::format("{}: tensor '{}' holds {} at [{}, {}]", tensor.path(),
                                     tensor.stored_name, std::isnan(*bad) ? "NaN" : "infinity", row,
                                     bad - values));
}

// The first element of `bytes` that is NaN or infinite, -1 where all are finite. Types without such
// numbers count as finite.
int64_t FirstNotFinite(DType dtype, std::span<const std::byte> bytes) {
  const auto search = [&]<typename Bits>(Bits exponent) {
    const auto count = static_cast<int64_t>(bytes.size() / sizeof(Bits));
    const auto at = [&](int64_t i) {
      Bits bits;
      std::memcpy(&bits, bytes.data() + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
      return (bits & exponent) == exponent;
    };
    // Without a way out of the loop, so that it vectorizes.
    bool any = false;
    for (int64_t i = 0; i < count; ++i) any |= at(i);
    if (!any) return int64_t{-1};
    int64_t i = 0;
    while (!at(i)) ++i;
    return i;
  };
  switch (dtype) {
    case DType::kBF16:
      return search(uint16_t{0x7F80});
    case DType::kF16:
      return search(uint16_t{0x7C00});
    case DType::kF32:
      return search(uint32_t{0x7F800000});
    default:
      return -1;
  }
}

void ToBf16(const float* values, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = Bf16FromFloat(values[i]);
    std::memcpy(out + i * 2, &bits, 2);
  }
}

}  // namespace

void AppendBlocks(const PlannedWeight& weight, size_t index, std::vector<WeightBlock>* blocks) {
  int64_t total = 1, step = 1;
  if (weight.action == Action::kCopy) {
    total = static_cast<int64_t>(weight.tensor->view.bytes.size());
    step = kCopyBytes;
  } else if (weight.action != Action::kConstant) {
    const WeightSource& source = weight.source;
    total = source.rows();
    const int64_t unit = weight.action == Action::kFp8
                             ? std::lcm(source.granularity(), kFp8BlockSize)
                             : source.granularity();
    step = RoundUp(std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, source.columns())),
                   unit);
  }
  for (int64_t first = 0; first < total; first += step) {
    blocks->push_back({index, first, std::min(step, total - first)});
  }
}

Status WeightWriter::Write(const WeightBlock& block, OutputFile& out, BlockScratch& scratch,
                           QuantError* error) const {
  const PlannedWeight& weight = plan_.weights[block.weight];
  switch (weight.action) {
    case Action::kConstant:
      return out.Write(weight.offsets[0], Bytes(weight.constant));
    case Action::kCopy:
      return Copy(weight, block, out, scratch);
    case Action::kBf16:
    case Action::kF32:
      return Convert(weight, block, out, scratch);
    case Action::kInt4:
      return WriteInt4(weight, block, out, scratch, error);
    case Action::kFp8:
      return WriteFp8(weight, block, out, scratch, error);
  }
  return Internal("no such action");
}

Status WeightWriter::Copy(const PlannedWeight& weight, const WeightBlock& block, OutputFile& out,
                          BlockScratch& scratch) const {
  const auto first = static_cast<uint64_t>(block.first);
  scratch.out.resize(static_cast<size_t>(block.count));
  TERN_RETURN_IF_ERROR(files_.Read(*weight.tensor, first, scratch.out));
  // What the architecture does not ask for may hold anything.
  const DType dtype = weight.tensor->view.dtype;
  if (const int64_t bad = weight.kind == kOtherKind ? -1 : FirstNotFinite(dtype, scratch.out);
      bad >= 0) {
    const int64_t element = block.first / InfoOf(dtype).block_bytes + bad;
    return InvalidArgument(fmt::format("{}: tensor '{}' holds NaN or infinity at element {}",
                                       weight.tensor->path(), weight.tensor->stored_name, element));
  }
  return out.Write(weight.offsets[0] + first, scratch.out);
}

Status WeightWriter::Convert(const PlannedWeight& weight, const WeightBlock& block, OutputFile& out,
                             BlockScratch& scratch) const {
  const WeightSource& source = weight.source;
  const int64_t columns = source.columns();
  const int64_t row_bytes = columns * (weight.action == Action::kBf16 ? 2 : 4);
  TERN_RETURN_IF_ERROR(source.Load(files_, block.first, block.count, &scratch.rows));
  scratch.floats.resize(static_cast<size_t>(columns));
  scratch.out.resize(static_cast<size_t>(block.count * row_bytes));
  for (int64_t i = 0; i < block.count; ++i) {
    source.Row(scratch.rows, i, scratch.floats.data());
    TERN_RETURN_IF_ERROR(CheckFinite(weight, block.first + i, scratch.floats.data(), columns));
    std::byte* to = scratch.out.data() + i * row_bytes;
    if (weight.action == Action::kBf16) {
      ToBf16(scratch.floats.data(), columns, to);
    } else {
      std::memcpy(to, scratch.floats.data(), static_cast<size_t>(row_bytes));
    }
  }
  return out.Write(weight.offsets[0] + static_cast<uint64_t>(block.first * row_bytes), scratch.out);
}

void WeightWriter::PackRow(const int8_t* codes, int64_t columns, std::byte* out) const {
  PackInt4Row(codes, columns, reinterpret_cast<uint32_t*>(out));
}

Status WeightWriter::WriteScales(const PlannedWeight& weight, const WeightBlock& block,
                                 OutputFile& out, const BlockScratch& scratch) const {
  const int64_t groups = weight.source.columns() / group_;
  TERN_RETURN_IF_ERROR(out.Write(
      weight.offsets[1] + static_cast<uint64_t>(block.first * groups * 2), Bytes(scratch.scales)));
  if (block.first > 0) return OkStatus();
  const int64_t shape[2] = {weight.source.rows(), weight.source.columns()};
  return out.Write(weight.offsets[2], Bytes(shape));
}

Status WeightWriter::WriteInt4(const PlannedWeight& weight, const WeightBlock& block,
                               OutputFile& out, BlockScratch& scratch, QuantError* error) const {
  const WeightSource& source = weight.source;
  const int64_t columns = source.columns(), groups = columns / group_, row_bytes = columns / 2;
  TERN_RETURN_IF_ERROR(source.Load(files_, block.first, block.count, &scratch.rows));
  scratch.floats.resize(static_cast<size_t>(columns));
  scratch.codes.resize(static_cast<size_t>(columns));
  scratch.scales.resize(static_cast<size_t>(block.count * groups));
  scratch.out.resize(static_cast<size_t>(block.count * row_bytes));
  float* const w = scratch.floats.data();
  int8_t* const codes = scratch.codes.data();
  for (int64_t i = 0; i < block.count; ++i) {
    source.Row(scratch.rows, i, w);
    if (!QuantizeInt4Row(w, columns, group_, method_, nullptr, codes,
                         scratch.scales.data() + i * groups, error)) {
      return CheckFinite(weight, block.first + i, w, columns);
    }
    PackRow(codes, columns, scratch.out.data() + i * row_bytes);
  }
  TERN_RETURN_IF_ERROR(
      out.Write(weight.offsets[0] + static_cast<uint64_t>(block.first * row_bytes), scratch.out));
  return WriteScales(weight, block, out, scratch);
}

Status WeightWriter::WriteCalibrated(const WeightBlock& all, const Gptq& solver, const Ops& ops,
                                     OutputFile& out, BlockScratch& scratch,
                                     QuantError* error) const {
  const PlannedWeight& weight = plan_.weights[all.weight];
  const WeightSource& source = weight.source;
  const int64_t columns = source.columns(), groups = columns / group_, row_bytes = columns / 2;
  const int64_t step =
      RoundUp(std::max<int64_t>(1, kCalibratedElements / columns), source.granularity());
  for (int64_t first = all.first; first < all.first + all.count; first += step) {
    const WeightBlock block = {all.weight, first, std::min(step, all.first + all.count - first)};
    TERN_RETURN_IF_ERROR(source.Load(files_, block.first, block.count, &scratch.rows));
    scratch.floats.resize(static_cast<size_t>(block.count * columns));
    scratch.codes.resize(static_cast<size_t>(block.count * columns));
    scratch.scales.resize(static_cast<size_t>(block.count * groups));
    scratch.out.resize(static_cast<size_t>(block.count * row_bytes));
    for (int64_t i = 0; i < block.count; ++i) {
      float* const w = scratch.floats.data() + i * columns;
      source.Row(scratch.rows, i, w);
      TERN_RETURN_IF_ERROR(CheckFinite(weight, block.first + i, w, columns));
    }
    TERN_RETURN_IF_ERROR(solver.Quantize(scratch.floats.data(), block.count, group_,
                                         scratch.codes.data(), scratch.scales.data(), ops));
    for (int64_t i = 0; i < block.count; ++i) {
      const int8_t* const codes = scratch.codes.data() + i * columns;
      AddInt4Error(scratch.floats.data() + i * columns, columns, group_, codes,
                   scratch.scales.data() + i * groups, error);
      PackRow(codes, columns, scratch.out.data() + i * row_bytes);
    }
    TERN_RETURN_IF_ERROR(
        out.Write(weight.offsets[0] + static_cast<uint64_t>(block.first * row_bytes), scratch.out));
    TERN_RETURN_IF_ERROR(WriteScales(weight, block, out, scratch));
  }
  return OkStatus();
}

Status WeightWriter::WriteFp8(const PlannedWeight& weight, const WeightBlock& block,
                              OutputFile& out, BlockScratch& scratch, QuantError* error) const {
  const WeightSource& source = weight.source;
  const int64_t columns = source.columns();
  const int64_t blocks = RoundUp(columns, kFp8BlockSize) / kFp8BlockSize;
  TERN_RETURN_IF_ERROR(source.Load(files_, block.first, block.count, &scratch.rows));
  scratch.floats.resize(static_cast<size_t>(kFp8BlockSize * columns));
  scratch.out.resize(static_cast<size_t>(block.count * columns));
  std::vector<float> scales(
      static_cast<size_t>(RoundUp(block.count, kFp8BlockSize) / kFp8BlockSize * blocks));
  for (int64_t first = 0; first < block.count; first += kFp8BlockSize) {
    const int64_t rows = std::min(kFp8BlockSize, block.count - first);
    for (int64_t i = 0; i < rows; ++i) {
      float* const w = scratch.floats.data() + i * columns;
      source.Row(scratch.rows, first + i, w);
      TERN_RETURN_IF_ERROR(CheckFinite(weight, block.first + first + i, w, columns));
    }
    auto* const codes = reinterpret_cast<uint8_t*>(scratch.out.data()) + first * columns;
    float* const row_scales = scales.data() + first / kFp8BlockSize * blocks;
    QuantizeFp8Blocks(scratch.floats.data(), rows, columns, codes, row_scales);
    AddFp8Error(scratch.floats.data(), rows, columns, codes, row_scales, error);
  }
  TERN_RETURN_IF_ERROR(
      out.Write(weight.offsets[0] + static_cast<uint64_t>(block.first * columns), scratch.out));
  return out.Write(
      weight.offsets[1] + static_cast<uint64_t>(block.first / kFp8BlockSize * blocks) * 4,
      Bytes(scales));
}

}  // namespace tern
