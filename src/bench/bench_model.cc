#include "bench/bench_model.h"

#include <algorithm>

#include "bench/random_tokens.h"

namespace tern {

Status FillContexts(BenchModel& model, int64_t sequences, int64_t context, int64_t computed,
                    int64_t chunk, Rng& rng) {
  if (context == 0) return OkStatus();
  const int64_t real = computed == 0 ? context : std::min(context, computed);
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (int64_t at = 0; at < real; at += chunk) {
      const int64_t rows = std::min(chunk, real - at);
      TERN_RETURN_IF_ERROR(
          model.Prefill(sequence, RandomTokens(rows, model.facts().vocab_size, rng)));
    }
  }
  model.Spread(context);
  return OkStatus();
}

}  // namespace tern
