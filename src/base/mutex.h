// Mutex, MutexLock, CondVar: the standard ones with clang's thread-safety annotations.
// A field that a lock guards is declared `T x_ TERN_GUARDED_BY(mutex_);`; clang builds check it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TERN_ANNOTATION(x) __attribute__((x))
#else
#define TERN_ANNOTATION(x)
#endif
#define TERN_GUARDED_BY(x) TERN_ANNOTATION(guarded_by(x))
#define TERN_REQUIRES(x) TERN_ANNOTATION(requires_capability(x))
#define TERN_EXCLUDES(x) TERN_ANNOTATION(locks_excluded(x))

namespace tern {

class TERN_ANNOTATION(capability("mutex")) Mutex {
 public:
  void Lock() TERN_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void Unlock() TERN_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class TERN_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TERN_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() TERN_ANNOTATION(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Releases `mutex` while it waits; may wake without a cause: call it in a loop.
  void Wait(Mutex& mutex) TERN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // As Wait, for at most `us` microseconds.
  void WaitFor(Mutex& mutex, long us) TERN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait_for(lock, std::chrono::microseconds(us));
    lock.release();
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace tern
