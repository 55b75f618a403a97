// Shape, TensorView: a typed, shaped window on bytes that somebody else owns. No maths.
// Buffer: aligned bytes that it owns. Thread: values; the bytes are the owner's affair.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace tern {

inline constexpr int kMaxRank = 4;

// Row-major: the last dimension is contiguous. Rank 0 is a scalar.
class Shape {
 public:
  Shape() = default;
  // REQUIRES: at most kMaxRank dimensions, none negative.
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  // Product of the dimensions, nullopt on overflow of int64.
  std::optional<int64_t> elements() const;
  std::string ToString() const;  // "[576, 192]"
  friend bool operator==(const Shape& a, const Shape& b) = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;  // StorageBytes(dtype, elements), alignment not promised

  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
};

// Owns `size` bytes aligned to 64, in huge pages where the system gives them: buffers up to 16 MiB
// share regions of 64 MiB. Large buffers are zero pages until they are written. Thread: a value;
// making and ending buffers is safe from any thread.
class Buffer {
 public:
  Buffer() = default;
  // Zero-filled. An allocation that fails gives an empty buffer: check data().
  explicit Buffer(size_t size_bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace tern
