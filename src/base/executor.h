// Executor: where a task runs later. The one there is runs tasks on the network thread
// (HttpServer::executor); whoever gets an Executor need not know Asio. Thread: Post may be called
// from any thread.
#pragma once

#include <cstdint>
#include <functional>

namespace tern {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` soon, after the caller has returned; tasks from one thread run in order.
  virtual void Post(std::function<void()> task) = 0;
  // Runs `task` no sooner than `delay_us` microseconds from now.
  virtual void PostAfter(int64_t delay_us, std::function<void()> task) = 0;
};

}  // namespace tern
