// SpeedPlan: what decode steps and prefill chunks of a model cost, and how long they take at least,
// from bytes, products and a machine's limits. No run of the model is needed.
// How it counts, and what it leaves out: docs/plan.md. Thread: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tern {

// Matrices of one use, format and width, as far as one pass reads them.
struct WeightGroup {
  enum class Use {
    kRow,     // multiplied by every row
    kHead,    // by rows whose logits are wanted
    kExpert,  // by rows that choose it; bytes and products of one expert of one layer
    kKvUp,    // MLA's kv_b as decode absorbs it
  } use = Use::kRow;
  std::string format;  // "BF16", "Q4_1", "FP8 128x128", "INT4 g32"
  double rows = 0;     // of a matrix, the mean by products
  double columns = 0;
  double bytes = 0, products = 0;
};

// One rank's share of a model. Products are multiply-adds: two operations each.
struct SpeedModel {
  // Linear layers that every step reads, without the head, experts and MLA's kv_b.
  double weight_bytes = 0, weight_products = 0;  // bytes of a step, products of a row
  double head_bytes = 0, head_products = 0;      // only of rows whose logits are wanted
  // Routed experts: each row takes `experts_per_token` of `experts` in each of `expert_layers`.
  int64_t expert_layers = 0, experts = 0, experts_per_token = 0;
  double expert_bytes = 0, expert_products = 0;  // one expert
  // MLA's kv_b over all layers. Decode absorbs it into the query and the output: once per row.
  // Prefill expands every position that it attends: once per position and chunk.
  double kv_up_products = 0, kv_up_bytes = 0;
  double absorbed_bytes = 0;  // kv_b as decode reads it
  // Attention, per row and attended position, summed over layers and heads.
  double decode_products = 0;   // MLA: heads * (2 * latent + rope); else heads * 2 * head_dim
  double prefill_products = 0;  // MLA: heads * (nope + rope + value)
  double index_products = 0;    // the indexer's, for every position of the context
  double row_bytes = 0;         // cache rows of one attended position, over all layers
  double index_bytes = 0;       // indexer keys of one position
  int64_t most_attended = 0;    // DSA: index_topk; 0: no limit
  // For machines whose kernels are known; bytes of vectors are in weight_bytes alone.
  std::vector<WeightGroup> groups;
  int64_t layers = 0;
  double regions = 0;  // of a decode step that threads share: products and attention
};

// How fast a machine's kernels are, one by one, on operands that no cache holds.
class KernelSpeeds {
 public:
  virtual ~KernelSpeeds() = default;
  // Operations per second of products with `rows` rows. 0: not known.
  virtual double MatMul(const WeightGroup& weights, double rows) = 0;
  // Operations per second of decode's attention over `positions` positions of each of `batch`
  // sequences. 0: not known.
  virtual double Attention(int64_t batch, int64_t positions) = 0;
  // Seconds of all else in one layer of a pass over `rows` rows: norms, rotations, the rows that
  // are written, activations, sums.
  virtual double RestOfLayer(int64_t rows) = 0;
  // Seconds that threads take to share a region and to meet again.
  virtual double RegionSeconds() = 0;
};

// One rank's machine. The efficiencies are free parameters: which share of a limit is reached, of
// kernels' speeds too.
struct SpeedMachine {
  double bytes_per_s = 0, operations_per_s = 0;
  double bandwidth_efficiency = 1, arithmetic_efficiency = 1;
  KernelSpeeds* kernels = nullptr;  // decode's; null: operations_per_s stands for all
};

struct StepCost {
  double weight_bytes = 0, weight_operations = 0;
  double attention_bytes = 0, attention_operations = 0;  // of cache rows
  // Weights, attention and, where kernels are known, all else one after the other, the first two at
  // their own limits.
  double seconds = 0;
  double weight_seconds = 0, attention_seconds = 0, other_seconds = 0;  // of these
  // What most of the time is spent on, by groups of weights where kernels are known.
  bool weights_bound_by_memory = false, attention_bound_by_memory = false;
};

// The mean number of distinct experts of one layer that `rows` rows meet, each taking `chosen` of
// `experts` independently and evenly: experts * (1 - (1 - chosen / experts)^rows).
double ExpectedExperts(int64_t experts, int64_t chosen, double rows);

// One step of `batch` sequences that have `context` positions each, the new one among them.
// REQUIRES: batch and context at least 1, limits positive.
StepCost DecodeStep(const SpeedModel& model, const SpeedMachine& machine, int64_t batch,
                    int64_t context);
// A prompt of `tokens` tokens in chunks of `chunk` rows; the sum of all passes.
// REQUIRES: tokens and chunk at least 1, limits positive.
StepCost PrefillPrompt(const SpeedModel& model, const SpeedMachine& machine, int64_t tokens,
                       int64_t chunk);

// Of `tokens_per_s` on machines that cost `per_hour` in all. 0 tokens: infinity.
double CostPerMillionTokens(double per_hour, double tokens_per_s);

}  // namespace tern
