// Workspace: float32 activations of one pass, in one allocation that grows to the largest batch
// seen. Owner: a model or a part of one. Thread: the model's.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"
#include "tensor/tensor.h"

namespace tern {

class Workspace {
 public:
  // A pointer to set, and how many floats it needs per row.
  using Field = std::pair<float**, int64_t>;

  // Points the fields at room for `rows` rows each, aligned to cache lines, not cleared.
  // Errors: kResourceExhausted.
  Status Resize(std::span<const Field> fields, int64_t rows) {
    constexpr int64_t kAlign = 16;  // floats in a cache line
    const auto padded = [](int64_t floats) { return (floats + kAlign - 1) / kAlign * kAlign; };
    int64_t floats = 0;
    for (const auto& [field, columns] : fields) floats += padded(rows * columns);
    if (floats > capacity_floats_) {
      memory_ = Buffer();
      capacity_floats_ = 0;
      memory_ = Buffer(static_cast<size_t>(floats) * sizeof(float));
      if (memory_.data() == nullptr) {
        return ResourceExhausted(fmt::format("no memory for the activations of {} tokens", rows));
      }
      capacity_floats_ = floats;
    }
    float* next = memory_.as<float>();
    for (const auto& [field, columns] : fields) {
      *field = next;
      next += padded(rows * columns);
    }
    return OkStatus();
  }

 private:
  Buffer memory_;
  int64_t capacity_floats_ = 0;
};

}  // namespace tern
