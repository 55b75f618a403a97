#include "base/trace.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/clock.h"
#include "base/mutex.h"

namespace tern {
namespace {

Mutex g_mutex;
std::FILE* g_file TERN_GUARDED_BY(g_mutex) = nullptr;
int64_t g_start_us TERN_GUARDED_BY(g_mutex) = 0;

}  // namespace

std::atomic<bool> trace_enabled{false};

Status StartTrace(const std::string& path) {
  MutexLock lock(g_mutex);
  if (g_file != nullptr) return FailedPrecondition("a trace is already being written");
  g_file = std::fopen(path.c_str(), "w");
  if (g_file == nullptr)
    return InvalidArgument(fmt::format("cannot write the trace file {}", path));
  g_start_us = SystemClock().NowUs();
  trace_enabled.store(true);
  return OkStatus();
}

void StopTrace() {
  trace_enabled.store(false);
  MutexLock lock(g_mutex);
  if (g_file != nullptr) std::fclose(g_file);
  g_file = nullptr;
}

void RecordTrace(const char* name) {
  MutexLock lock(g_mutex);
  if (g_file == nullptr) return;
  const std::string line = fmt::format("{} {}\n", SystemClock().NowUs() - g_start_us, name);
  std::fwrite(line.data(), 1, line.size(), g_file);
  std::fflush(g_file);
}

}  // namespace tern
