#include "tensor/tensor.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
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

namespace {

// Huge pages are 2 MiB: smaller buffers, as the experts of a model have by the thousand, lie side
// by side in regions, so that huge pages cover them too. A region is returned when all its buffers
// are; until then the whole pages of a buffer that has gone are given back.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRegionBytes = size_t{64} << 20;
constexpr size_t kLargestShared = size_t{16} << 20;
constexpr size_t kAlign = 64;

std::byte* MapHuge(size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  ::madvise(p, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}

struct Region {
  std::byte* mapping;  // with room to align
  size_t used = 0;
  int64_t buffers = 0;
};

// Regions by address; the one that new buffers come from is `open`.
struct Regions {
  std::mutex mutex;
  std::map<std::byte*, Region> by_base;
  std::byte* open = nullptr;
};
Regions& TheRegions() {
  static auto* regions = new Regions();  // outlives every buffer
  return *regions;
}

void Unmap(Regions& regions, std::byte* base) {
  ::munmap(regions.by_base.at(base).mapping, kRegionBytes + kHugePage);
  regions.by_base.erase(base);
}

std::byte* AllocateShared(size_t bytes) {
  Regions& regions = TheRegions();
  const std::lock_guard lock(regions.mutex);
  if (regions.open == nullptr || regions.by_base.at(regions.open).used + bytes > kRegionBytes) {
    if (regions.open != nullptr && regions.by_base.at(regions.open).buffers == 0) {
      Unmap(regions, regions.open);
    }
    regions.open = nullptr;
    std::byte* mapping = MapHuge(kRegionBytes + kHugePage);
    if (mapping == nullptr) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(mapping);
    std::byte* base = mapping + ((kHugePage - address % kHugePage) % kHugePage);
    regions.by_base.emplace(base, Region{.mapping = mapping});
    regions.open = base;
  }
  Region& region = regions.by_base.at(regions.open);
  std::byte* data = regions.open + region.used;
  region.used += (bytes + kAlign - 1) / kAlign * kAlign;
  ++region.buffers;
  return data;
}

void FreeShared(std::byte* data, size_t bytes) {
  constexpr uintptr_t kPage = 4096;
  Regions& regions = TheRegions();
  const std::lock_guard lock(regions.mutex);
  const auto at = std::prev(regions.by_base.upper_bound(data));
  if (--at->second.buffers == 0 && at->first != regions.open) {
    return Unmap(regions, at->first);
  }
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

Buffer::Buffer(size_t size_bytes) {
  if (size_bytes == 0) return;
  data_ = size_bytes <= kLargestShared ? AllocateShared(size_bytes) : MapHuge(size_bytes);
  if (data_ != nullptr) size_bytes_ = size_bytes;
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
  if (data_ == nullptr) return;
  if (size_bytes_ <= kLargestShared) {
    FreeShared(data_, size_bytes_);
  } else {
    ::munmap(data_, size_bytes_);
  }
}

}  // namespace tern
