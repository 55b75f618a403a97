// Checkpoint::Dummy: made-up weights, as windows on a few shared buffers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "tensor/number.h"

namespace tern {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): eight random bytes a step.
class RandomBytes {
 public:
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }

 private:
  uint64_t state_ = 0;
};

// Tensors begin at places of their own in a shared buffer, up to so far behind its start: few are
// equal. Equal matrices in a row would give activations a mean, and all tokens the same experts.
constexpr uint64_t kWindowBytes = 1 << 20;
constexpr uint64_t kWindowAlignment = 64;
constexpr uint64_t kLargestBytes = ~uint64_t{0} - kWindowBytes - 7;  // of a tensor

// Where the tensor of this name begins, in bytes.
uint64_t WindowOf(const std::string& name) {
  return Hash64(name) % (kWindowBytes / kWindowAlignment) * kWindowAlignment;
}

// The number whose index in [0, 256) was drawn: uniform with the given deviation; 0: always 1.
float ValueOf(int index, float deviation) {
  if (deviation == 0) return 1.0f;
  return (static_cast<float>(index) - 127.5f) / 127.5f * std::sqrt(3.0f) * deviation;
}

template <typename T, typename Encode>
void FillFrom(RandomBytes& random, float deviation, Encode encode, Buffer& buffer) {
  T table[256];
  for (int i = 0; i < 256; ++i) table[i] = encode(ValueOf(i, deviation));
  T* out = buffer.as<T>();
  size_t left = buffer.size_bytes() / sizeof(T);
  while (left > 0) {
    uint64_t bits = random.Next();
    const size_t count = std::min<size_t>(left, 8);
    for (size_t i = 0; i < count; ++i, bits >>= 8) *out++ = table[bits & 0xFF];
    left -= count;
  }
}

Status Fill(DType dtype, float deviation, Buffer& buffer) {
  RandomBytes random;
  switch (dtype) {
    case DType::kF32:
      FillFrom<float>(
          random, deviation, [](float x) { return x; }, buffer);
      return OkStatus();
    case DType::kBF16:
      FillFrom<uint16_t>(random, deviation, Bf16FromFloat, buffer);
      return OkStatus();
    case DType::kF16:
      FillFrom<uint16_t>(random, deviation, F16FromFloat, buffer);
      return OkStatus();
    case DType::kF8E4M3:
      FillFrom<uint8_t>(random, deviation, E4m3FromFloat, buffer);
      return OkStatus();
    case DType::kI32:
      for (size_t i = 0; i + 8 <= buffer.size_bytes(); i += 8) {
        const uint64_t bits = random.Next();
        std::memcpy(buffer.data() + i, &bits, 8);
      }
      return OkStatus();
    default:
      return Unimplemented(fmt::format("no dummy weights of type {}", InfoOf(dtype).name));
  }
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Dummy(ModelConfig config,
                                                      std::span<const DummyTensor> tensors) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = config.source;
  checkpoint->format_ = CheckpointFormat::kDummy;
  checkpoint->config_ = std::move(config);
  // The largest tensor of each kind, and all explicit numbers.
  std::map<std::pair<DType, float>, uint64_t> sizes;
  std::vector<uint64_t> bytes_of;
  size_t numbers = 0;
  for (const DummyTensor& tensor : tensors) {
    const auto elements = tensor.shape.elements();
    const auto bytes =
        elements ? StorageBytes(tensor.dtype, static_cast<uint64_t>(*elements)) : std::nullopt;
    if (!bytes || *bytes > kLargestBytes) {
      return InvalidArgument(
          fmt::format("{}: the size of tensor '{}' overflows", checkpoint->path_, tensor.name));
    }
    bytes_of.push_back(*bytes);
    numbers += tensor.values.size();
    if (!tensor.values.empty()) continue;
    uint64_t& size = sizes[{tensor.dtype, tensor.deviation}];
    size = std::max(size, *bytes);
  }
  std::map<std::pair<DType, float>, const std::byte*> pools;
  for (const auto& [kind, bytes] : sizes) {
    Buffer buffer((bytes + 7) / 8 * 8 + kWindowBytes);
    if (buffer.data() == nullptr) {
      return ResourceExhausted(
          fmt::format("{}: no memory for {} bytes of dummy weights", checkpoint->path_, bytes));
    }
    TERN_RETURN_IF_ERROR(Fill(kind.first, kind.second, buffer));
    pools[kind] = buffer.data();
    checkpoint->dummy_bytes_.push_back(std::move(buffer));
  }
  Buffer values(numbers * sizeof(int32_t));
  int32_t* next = values.as<int32_t>();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DummyTensor& tensor = tensors[i];
    const std::byte* data = nullptr;
    if (tensor.values.empty()) {
      data = pools[{tensor.dtype, tensor.deviation}] + WindowOf(tensor.name);
    } else {
      data = reinterpret_cast<const std::byte*>(next);
      next = std::copy(tensor.values.begin(), tensor.values.end(), next);
    }
    checkpoint->tensors_.push_back(
        {tensor.name, tensor.name, {tensor.dtype, tensor.shape, {data, bytes_of[i]}}, nullptr});
  }
  checkpoint->dummy_bytes_.push_back(std::move(values));
  TERN_RETURN_IF_ERROR(checkpoint->IndexTensors());
  return checkpoint;
}

}  // namespace tern
