#include "jinja/budget.h"

#include <fmt/format.h>

namespace tern::jinja {

Status Budget::Step(int64_t count) {
  steps_ += count;
  if (steps_ <= limits_.steps) return OkStatus();
  return InvalidArgument(fmt::format("the template takes more than {} steps", limits_.steps));
}

Status Budget::Allocate(int64_t bytes) {
  // Compared this way round because `bytes` may be as large as an int64 can be.
  if (bytes > limits_.memory_bytes - memory_bytes_) {
    return InvalidArgument(
        fmt::format("the template makes more than {} bytes of values", limits_.memory_bytes));
  }
  memory_bytes_ += bytes;
  return OkStatus();
}

}  // namespace tern::jinja
