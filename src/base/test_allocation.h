// Replaces operator new of a whole test program by one that counts its calls and what is held, and
// can fail one of them. Include it in one file of a program. Thread: any.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tern {

struct TestAllocation {
  static inline std::atomic<bool> counting{false};
  static inline std::atomic<int64_t> calls{0};     // while counting
  static inline std::atomic<int64_t> fail_at{-1};  // the call of this number throws; -1: none
  static inline std::atomic<int64_t> live_bytes{0}, peak_bytes{0};  // held, also while not counting
};

inline void* TestAllocate(std::size_t size, std::size_t align) {
  if (TestAllocation::counting.load(std::memory_order_relaxed)) {
    const int64_t call = TestAllocation::calls.fetch_add(1);
    if (call == TestAllocation::fail_at.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }
  void* p = nullptr;
  if (posix_memalign(&p, std::max(align, sizeof(void*)), std::max<std::size_t>(size, 1)) != 0) {
    throw std::bad_alloc();
  }
  const auto bytes = static_cast<int64_t>(malloc_usable_size(p));
  const int64_t live = TestAllocation::live_bytes += bytes;
  int64_t peak = TestAllocation::peak_bytes;
  while (live > peak && !TestAllocation::peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return p;
}

inline void TestFree(void* p) {
  if (p != nullptr) TestAllocation::live_bytes -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace tern

void* operator new(std::size_t size) { return tern::TestAllocate(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) {
  return tern::TestAllocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t align) {
  return tern::TestAllocate(size, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t size, std::align_val_t align) {
  return tern::TestAllocate(size, static_cast<std::size_t>(align));
}
void operator delete(void* p) noexcept { tern::TestFree(p); }
void operator delete[](void* p) noexcept { tern::TestFree(p); }
void operator delete(void* p, std::size_t) noexcept { tern::TestFree(p); }
void operator delete[](void* p, std::size_t) noexcept { tern::TestFree(p); }
void operator delete(void* p, std::align_val_t) noexcept { tern::TestFree(p); }
void operator delete[](void* p, std::align_val_t) noexcept { tern::TestFree(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { tern::TestFree(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { tern::TestFree(p); }
