#include "base/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "base/check.h"
#include "base/log.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TERN_PAUSE() _mm_pause()
#else
#define TERN_PAUSE() std::this_thread::yield()
#endif

namespace tern {
namespace {

// About 10 us on current machines: longer than the gap between two kernels of one layer, shorter
// than what a sleeping core would be worth to somebody else.
constexpr int kSpins = 400;
constexpr int64_t kMaxChunks = INT32_MAX;

}  // namespace

ThreadPool::ThreadPool(int threads) {
  TERN_CHECK(threads >= 1);
  helpers_.reserve(static_cast<size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    try {
      helpers_.emplace_back([this, worker] { HelperLoop(worker); });
    } catch (const std::system_error& e) {
      TERN_LOG(kWarning, "{} threads instead of {}: {}", worker, threads, e.what());
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(int64_t chunks, ChunkFn fn, void* context) {
  TERN_CHECK(chunks <= kMaxChunks);
  bool expected = false;
  if (chunks <= 1 || helpers_.empty() || !busy_.compare_exchange_strong(expected, true)) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) fn(context, chunk, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  chunks_ = chunks;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t job = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
  claim_.store(job << 32 | static_cast<uint64_t>(chunks), std::memory_order_release);
  wake_.fetch_add(1);
  if (sleepers_.load() > 0) wake_.notify_all();
  Work(0);
  for (int spin = 0;; ++spin) {
    const int64_t done = done_.load(std::memory_order_acquire);
    if (done == chunks) break;
    if (spin < kSpins) {
      TERN_PAUSE();
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::Work(int worker) {
  uint64_t claim = claim_.load(std::memory_order_acquire);
  while ((claim & 0xFFFFFFFFu) != 0) {
    if (!claim_.compare_exchange_weak(claim, claim - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    const int64_t chunks = chunks_;
    fn_(context_, chunks - static_cast<int64_t>(claim & 0xFFFFFFFFu), worker);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks && worker != 0) {
      done_.notify_one();
    }
    claim = claim_.load(std::memory_order_acquire);
  }
}

void ThreadPool::HelperLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    uint32_t wake = wake_.load();
    for (int spin = 0; wake == seen && spin < kSpins; ++spin) {
      TERN_PAUSE();
      wake = wake_.load();
    }
    if (wake == seen) {
      sleepers_.fetch_add(1);
      wake_.wait(seen);
      sleepers_.fetch_sub(1);
      continue;
    }
    seen = wake;
    if (stop_.load()) return;
    Work(worker);
  }
}

}  // namespace tern
