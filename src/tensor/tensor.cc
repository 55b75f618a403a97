#include "tensor/tensor.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tern {

Shape::Shape(std::initializer_list<int64_t> dims)
    : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  TERN_CHECK(dims.size() <= kMaxRank);
  for (const int64_t dim : dims) TERN_CHECK(dim >= 0);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::optional<int64_t> Shape::elements() const {
  int64_t product = 1;
  for (const int64_t dim : dims()) {
    if (__builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return product;
}

std::string Shape::ToString() const { return fmt::format("[{}]", fmt::join(dims(), ", ")); }

Buffer::Buffer(size_t size_bytes) {
  if (size_bytes == 0) return;
  void* p = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return;
  ::madvise(p, size_bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
  size_bytes_ = size_bytes;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace tern
