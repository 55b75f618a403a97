// BenchModel: a model as `tern bench model` drives it: sequences with pages of their own, rows fed
// without a scheduler. Owner: the command, which implements it. Thread: one.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/rng.h"
#include "base/status.h"

namespace tern {

struct BenchModelFacts {
  std::string path;
  std::string recipe;  // of made-up weights; empty: a checkpoint
  std::string architecture;
  std::string kv_format;
  int64_t vocab_size = 0, context_length = 0;
  int64_t kv_bytes_per_token = 0;  // exact, over all layers
  uint64_t weight_bytes = 0;       // resident
};

class BenchModel {
 public:
  virtual ~BenchModel() = default;
  virtual const BenchModelFacts& facts() const = 0;

  // Forgets all sequences and makes room for `sequences` empty ones of `positions` tokens each.
  // Errors: kInvalidArgument (the model's context), kResourceExhausted.
  virtual Status Reserve(int64_t sequences, int64_t positions) = 0;
  // One pass over `tokens` at the end of a sequence, in the prefill form; logits of the last one.
  virtual Status Prefill(int64_t sequence, std::span<const int32_t> tokens) = 0;
  // Every sequence then holds `positions` tokens: its own pages, repeated beyond what it holds.
  // REQUIRES: it holds all of them or whole pages.
  virtual void Spread(int64_t positions) = 0;
  // One pass that appends tokens[i] to sequence i, in the decode form, with logits of each.
  virtual Status Decode(std::span<const int32_t> tokens) = 0;
  // Every sequence holds only its first `positions` tokens. REQUIRES: it holds as many.
  virtual void Rewind(int64_t positions) = 0;

  // Of one row's attention over `positions` cached ones, over all layers: bytes of cached rows,
  // and operations (two for each product), indexers included.
  virtual double DecodeAttentionBytes(int64_t positions) const = 0;
  virtual double DecodeAttentionOps(int64_t positions) const = 0;
  // Of a prefill pass over `rows` rows, the first at position `first`; without the products that
  // expand latent rows, which an observer of Ops hears of.
  virtual double PrefillAttentionOps(int64_t first, int64_t rows) const = 0;
};

// All `sequences` that are reserved then hold `context` random tokens. The first `computed` of
// each, whole pages, are computed (0: all), and the rest repeats their rows: the values of rows do
// not change the time. But rows of other tokens choose other experts, so sequences do not share
// theirs. Errors: those of Prefill.
Status FillContexts(BenchModel& model, int64_t sequences, int64_t context, int64_t computed,
                    int64_t chunk, Rng& rng);

}  // namespace tern
