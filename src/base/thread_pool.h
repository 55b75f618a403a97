// ThreadPool: fork-join over numbered chunks, for kernels.
//
// The caller works too, and can finish every chunk by itself: it waits only for chunks that a
// helper has already claimed, never for a helper that has not started. So a stolen core costs its
// share of the work and no more. Helpers spin briefly after a job, then sleep.
//
// Thread: ParallelFor may be called from any thread; while one call runs, a second one (from
// another thread or from inside a chunk) runs its chunks alone on its own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tern {

class ThreadPool {
 public:
  // `threads` counts the caller: threads - 1 helpers are started, or as many as the
  // system allows. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls fn(chunk, worker) once for each chunk in [0, chunks) and returns when all are done.
  // worker is in [0, threads()), distinct among calls that run at the same time; 0 is the caller.
  // Which worker runs a chunk is not fixed: a chunk's result must not depend on it.
  template <typename Fn>
  void ParallelFor(int64_t chunks, Fn&& fn) {
    Run(
        chunks,
        [](void* context, int64_t chunk, int worker) {
          (*static_cast<std::remove_reference_t<Fn>*>(context))(chunk, worker);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using ChunkFn = void (*)(void* context, int64_t chunk, int worker);

  void Run(int64_t chunks, ChunkFn fn, void* context);
  void HelperLoop(int worker);
  // Claims and runs chunks of the current job until none is left to claim.
  void Work(int worker);

  // claim_ holds {job number : 32, unclaimed chunks : 32}. Only a successful claim may read the
  // job's fields: the job cannot end, nor the fields change, before that chunk is done.
  std::atomic<uint64_t> claim_{0};
  std::atomic<int64_t> done_{0};
  ChunkFn fn_ = nullptr;
  void* context_ = nullptr;
  int64_t chunks_ = 0;

  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> wake_{0};
  std::atomic<int> sleepers_{0};
  std::vector<std::thread> helpers_;
};

}  // namespace tern
