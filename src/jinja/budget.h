// Budget: what one render may spend. Templates come with models and are not trusted, so every loop,
// allocation and recursion of the engine is counted here.
// Owner: the Interpreter of one render. Thread: the one that renders.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace tern::jinja {

struct Limits {
  int64_t steps = 20'000'000;  // nodes evaluated, items visited, 64-byte runs scanned
  int64_t memory_bytes = int64_t{1}
                         << 30;  // of all values made, also those freed since; scopes held
  int64_t output_bytes = int64_t{64} << 20;
  int depth = 600;  // nested nodes and macro calls being evaluated
};

// Lists in lists, generators over generators: deeper values are refused when they are made, so
// that printing, comparing and freeing them cannot exhaust the stack.
inline constexpr int kMaxValueDepth = 256;

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  // Errors: kInvalidArgument that names the bound (a template's fault, hence the caller's).
  Status Step(int64_t count = 1);
  Status Allocate(int64_t bytes);
  // Takes back what was allocated.
  void Release(int64_t bytes) { memory_bytes_ -= bytes; }
  // A step count for work that reads `bytes`.
  Status Scan(int64_t bytes) { return Step(bytes / 64); }
  const Limits& limits() const { return limits_; }

 private:
  Limits limits_;
  int64_t steps_ = 0;
  int64_t memory_bytes_ = 0;
};

}  // namespace tern::jinja
