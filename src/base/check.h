// TERN_CHECK ends the process on a broken invariant of tern's own: a programmer's error.
// User input, files and peers never reach a check: they get a Status. Thread: any.
#pragma once

namespace tern {
// Writes "file:line: check failed: what" to standard error and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* what);
}  // namespace tern

#define TERN_CHECK(condition) \
  ((condition) ? (void)0 : ::tern::CheckFailed(__FILE__, __LINE__, #condition))
