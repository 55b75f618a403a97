#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>

namespace tern {
namespace {

TEST(ThreadPool, RunsEachChunkOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t chunks : {0, 1, 2, 7, 1000}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        const auto hits = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(chunks) + 1);
        pool.ParallelFor(chunks, [&](int64_t chunk, int worker) {
          ASSERT_GE(worker, 0);
          ASSERT_LT(worker, threads);
          hits[static_cast<size_t>(chunk)].fetch_add(1);
        });
        for (int64_t i = 0; i < chunks; ++i) ASSERT_EQ(hits[static_cast<size_t>(i)].load(), 1);
      }
    }
  }
}

TEST(ThreadPool, WorkersAreDistinctAtTheSameTime) {
  ThreadPool pool(4);
  std::atomic<int> inside[4] = {};
  pool.ParallelFor(20000, [&](int64_t, int worker) {
    ASSERT_EQ(inside[worker].fetch_add(1), 0);
    inside[worker].fetch_sub(1);
  });
}

TEST(ThreadPool, ShortJobsBackToBackLoseNothing) {
  ThreadPool pool(3);
  int64_t sum = 0;
  for (int job = 0; job < 50000; ++job) {
    std::atomic<int64_t> total{0};
    pool.ParallelFor(3, [&](int64_t chunk, int) { total.fetch_add(chunk + 1); });
    sum += total.load();
  }
  EXPECT_EQ(sum, 300000);
}

TEST(ThreadPool, NestedAndConcurrentCallsRunInline) {
  ThreadPool pool(2);
  std::atomic<int> total{0};
  const auto job = [&] {
    for (int i = 0; i < 200; ++i) {
      pool.ParallelFor(
          8, [&](int64_t, int) { pool.ParallelFor(4, [&](int64_t, int) { total.fetch_add(1); }); });
    }
  };
  std::thread other(job);
  job();
  other.join();
  EXPECT_EQ(total.load(), 2 * 200 * 8 * 4);
}

// While one caller holds the helpers, another one finishes by itself.
TEST(ThreadPool, ASecondCallerFinishesAlone) {
  ThreadPool pool(2);
  std::atomic<bool> release{false}, held{false};
  std::thread hog([&] {
    pool.ParallelFor(2, [&](int64_t, int) {
      held.store(true);
      while (!release.load()) std::this_thread::yield();
    });
  });
  while (!held.load()) std::this_thread::yield();
  std::atomic<int> done{0};
  pool.ParallelFor(100, [&](int64_t, int) { done.fetch_add(1); });
  EXPECT_EQ(done.load(), 100);
  release.store(true);
  hog.join();
}

// The contract behind "machines are shared": the caller waits only for chunks that a helper has
// claimed. The helpers may run only when the machine is idle (SCHED_IDLE) and a second thread keeps
// the CPU busy, so waiting for one of them to start would take about forever.
TEST(ThreadPool, CallerDoesNotWaitForHelpersThatDidNotStart) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const sched_param zero{};
  ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &zero), 0);
  ThreadPool pool(4);  // its helpers inherit CPU and policy
  ASSERT_EQ(sched_setscheduler(0, SCHED_OTHER, &zero), 0);
  std::atomic<bool> stop{false};
  std::thread hog([&] {
    while (!stop.load()) {
    }
  });
  std::atomic<int64_t> done{0};
  const auto start = std::chrono::steady_clock::now();
  for (int job = 0; job < 2000; ++job) {
    pool.ParallelFor(4, [&](int64_t, int) { done.fetch_add(1); });
  }
  const auto elapsed = std::chrono::steady_clock::now() - start;
  stop.store(true);
  hog.join();
  sched_setaffinity(0, sizeof(all), &all);
  EXPECT_EQ(done.load(), 8000);
  EXPECT_LT(elapsed, std::chrono::seconds(10));
}

}  // namespace
}  // namespace tern
