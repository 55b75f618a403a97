#include "quant/weight_source.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/ref/dequantize.h"
#include "tensor/number.h"

namespace tern {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t RowBytes(const WeightView& view) {
  const DTypeInfo& info = InfoOf(view.data.dtype);
  return view.columns / info.block_elements * info.block_bytes;
}

const std::array<float, 256>& E4m3Table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int i = 0; i < 256; ++i) {
      values[static_cast<size_t>(i)] = FloatFromE4m3(static_cast<uint8_t>(i));
    }
    return values;
  }();
  return table;
}

// DequantizeBlocks, quick for the types that are most of the bytes.
void ToFloats(DType dtype, const std::byte* bytes, int64_t count, float* out) {
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes + i * 2, 2);
      out[i] = FloatFromBf16(bits);
    }
  } else if (dtype == DType::kF32) {
    std::memcpy(out, bytes, static_cast<size_t>(count) * 4);
  } else {
    DequantizeBlocks(dtype, bytes, count, out);
  }
}

// Where Hugging Face's row `row` lies among rows stored as pairs: halves (i, i + d/2) are
// neighbours (2i, 2i + 1).
int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, i = row % head_dim, half = head_dim / 2;
  return head * head_dim + 2 * (i % half) + i / half;
}

}  // namespace

WeightSource WeightSource::Stored(const StoredWeight& weight) {
  TERN_CHECK(weight.view.scheme != WeightView::Scheme::kInt4Group);
  WeightSource source;
  source.view_ = weight.view;
  source.data_ = &weight.data();
  source.rows_ = weight.view.rows;
  source.columns_ = weight.view.columns;
  source.row_bytes_ = RowBytes(weight.view);
  source.stored_bytes_ = weight.stored_bytes();
  if (weight.view.scheme == WeightView::Scheme::kFp8Block) {
    const TensorView& scales = weight.view.scales;
    source.granularity_ = weight.view.block_rows;
    source.scales_.resize(scales.bytes.size() / sizeof(float));
    std::memcpy(source.scales_.data(), scales.bytes.data(), scales.bytes.size());
  }
  return source;
}

WeightSource WeightSource::Vector(const CheckpointTensor& tensor) {
  TensorView row = tensor.view;
  row.shape = Shape{1, tensor.view.shape.elements().value_or(0)};
  return Stored({WeightView::Plain(row), {&tensor, nullptr, nullptr}});
}

WeightSource WeightSource::Deinterleaved(int64_t head_dim) const {
  WeightSource source = *this;
  if (source.rows_ == 1) {  // a bias: one element a row
    source.rows_ = columns_;
    source.columns_ = source.view_.columns = 1;
    source.view_.rows = columns_;
    source.row_bytes_ = RowBytes(source.view_);
  }
  source.rotary_head_ = head_dim;
  source.granularity_ = head_dim;
  return source;
}

WeightSource WeightSource::JoinedHalves(const StoredWeight& keys, const StoredWeight& values,
                                        int64_t heads) {
  WeightSource source = Stored(keys);
  source.second_ = &values.data();
  source.second_view_ = values.view;
  source.heads_ = heads;
  const int64_t nope = keys.view.columns, value = values.view.rows / heads;
  source.rows_ = heads * (nope + value);
  source.columns_ = values.view.columns;
  source.granularity_ = nope + value;
  source.stored_bytes_ += values.stored_bytes();
  return source;
}

Status WeightSource::Load(const InputFiles& files, int64_t first, int64_t count,
                          RowBlock* block) const {
  block->first = first;
  block->count = count;
  if (second_ != nullptr) return LoadJoined(files, block);
  block->bytes.resize(static_cast<size_t>(count * row_bytes_));
  return files.Read(*data_, static_cast<uint64_t>(first * row_bytes_), block->bytes);
}

Status WeightSource::LoadJoined(const InputFiles& files, RowBlock* block) const {
  const int64_t nope = view_.columns, latent = columns_, value = granularity_ - nope;
  const int64_t key_bytes = latent * row_bytes_;
  const int64_t value_bytes = value * RowBytes(second_view_);
  block->values.resize(static_cast<size_t>(block->count * latent));
  std::vector<float> keys(static_cast<size_t>(latent * nope));
  for (int64_t i = 0; i < block->count / granularity_; ++i) {
    const int64_t head = block->first / granularity_ + i;
    float* out = block->values.data() + i * granularity_ * latent;
    block->bytes.resize(static_cast<size_t>(key_bytes));
    TERN_RETURN_IF_ERROR(files.Read(*data_, static_cast<uint64_t>(head * key_bytes), block->bytes));
    for (int64_t j = 0; j < latent; ++j) {
      ToFloats(view_.data.dtype, block->bytes.data() + j * row_bytes_, nope,
               keys.data() + j * nope);
    }
    for (int64_t r = 0; r < nope; ++r) {
      for (int64_t j = 0; j < latent; ++j) {
        out[r * latent + j] = keys[static_cast<size_t>(j * nope + r)];
      }
    }
    block->bytes.resize(static_cast<size_t>(value_bytes));
    TERN_RETURN_IF_ERROR(
        files.Read(*second_, static_cast<uint64_t>(head * value_bytes), block->bytes));
    const int64_t row_bytes = RowBytes(second_view_);
    for (int64_t r = 0; r < value; ++r) {
      ToFloats(second_view_.data.dtype, block->bytes.data() + r * row_bytes, latent,
               out + (nope + r) * latent);
    }
  }
  return OkStatus();
}

void WeightSource::Row(const RowBlock& block, int64_t i, float* out) const {
  if (second_ != nullptr) {
    std::copy_n(block.values.data() + i * columns_, columns_, out);
    return;
  }
  const int64_t row = block.first + i;
  const int64_t at = rotary_head_ == 0 ? i : InterleavedRow(row, rotary_head_) - block.first;
  const std::byte* bytes = block.bytes.data() + at * row_bytes_;
  if (view_.scheme == WeightView::Scheme::kPlain) {
    ToFloats(view_.data.dtype, bytes, columns_, out);
    return;
  }
  const std::array<float, 256>& table = E4m3Table();
  const float* scales =
      scales_.data() + row / view_.block_rows * CeilDiv(columns_, view_.block_columns);
  for (int64_t begin = 0; begin < columns_; begin += view_.block_columns) {
    const float scale = scales[begin / view_.block_columns];
    const int64_t end = std::min(columns_, begin + view_.block_columns);
    for (int64_t c = begin; c < end; ++c) out[c] = table[static_cast<uint8_t>(bytes[c])] * scale;
  }
}

}  // namespace tern
