// Trace: the stops that a request passes, in order, for the life-of-a-request test and for
// debugging. TERN_TRACE("engine.submit") costs one relaxed load when tracing is off. Names are
// "<area>.<what>"; the table in docs/ARCHITECTURE.md lists the stops in order, and a test reads it.
// Thread: any.
#pragma once

#include <atomic>
#include <string>

#include "base/status.h"

namespace tern {

// Starts to write "<microseconds since start> <name>" lines to `path`, flushed line by line.
// Errors: kInvalidArgument naming the path.
Status StartTrace(const std::string& path);
void StopTrace();

extern std::atomic<bool> trace_enabled;
void RecordTrace(const char* name);

}  // namespace tern

#define TERN_TRACE(name)                                                                  \
  do {                                                                                    \
    if (::tern::trace_enabled.load(std::memory_order_relaxed)) ::tern::RecordTrace(name); \
  } while (0)
