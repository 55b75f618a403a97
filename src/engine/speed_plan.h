// SpeedPlan: what decode steps and prefill chunks of a model cost, and how long they take at least,
// from bytes, products and a machine's two limits. No run of the model is needed.
// How it counts, and what it leaves out: docs/plan.md. Thread: pure functions.
#pragma once

#include <cstdint>

namespace tern {

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
};

// One rank's machine. The efficiencies are free parameters: which share of a limit is reached.
struct SpeedMachine {
  double bytes_per_s = 0, operations_per_s = 0;
  double bandwidth_efficiency = 1, arithmetic_efficiency = 1;
};

struct StepCost {
  double weight_bytes = 0, weight_operations = 0;
  double attention_bytes = 0, attention_operations = 0;  // of cache rows
  double seconds = 0;  // weights and attention one after the other, each at its own limit
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
