// Exact top-k with the project's rule for ties (DESIGN section 4): the lowest index wins, -0.0
// equals 0.0; NaN loses to any number. Thread: a pure function.
#pragma once

#include <cstdint>

namespace tern {

// The indices of the k largest of n numbers, ascending, into out[0, k). Linear time.
// REQUIRES: 0 <= k <= n, n < 2^31.
void SelectTopK(const float* x, int64_t n, int64_t k, int32_t* out);

}  // namespace tern
