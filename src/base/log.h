// Logging, to standard error, one line an event. Library code logs and never prints.
// Thread: any.
//   TERN_LOG(kInfo, "loaded {} tensors", n);     // fmt syntax
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace tern {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines below `level` are dropped. Default kInfo.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
void LogLine(LogLevel level, std::string_view line);

}  // namespace tern

#define TERN_LOG(level, ...)                                                \
  do {                                                                      \
    if (::tern::LogLevel::level >= ::tern::GetLogLevel())                   \
      ::tern::LogLine(::tern::LogLevel::level, ::fmt::format(__VA_ARGS__)); \
  } while (0)
