#include "engine/speed_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tern {
namespace {

// The sum of first + 1, first + 2, ... first + rows.
double SumOfPositions(double first, double rows) { return rows * first + rows * (rows + 1) / 2; }

// Fills in what follows from bytes and operations.
void TakeTime(const SpeedMachine& machine, StepCost* cost) {
  const double bandwidth = machine.bytes_per_s * machine.bandwidth_efficiency;
  const double arithmetic = machine.operations_per_s * machine.arithmetic_efficiency;
  const auto time = [&](double bytes, double operations, bool* memory) {
    const double read = bytes / bandwidth, compute = operations / arithmetic;
    *memory = read >= compute;
    return std::max(read, compute);
  };
  cost->weight_seconds =
      time(cost->weight_bytes, cost->weight_operations, &cost->weights_bound_by_memory);
  cost->attention_seconds =
      time(cost->attention_bytes, cost->attention_operations, &cost->attention_bound_by_memory);
  cost->seconds = cost->weight_seconds + cost->attention_seconds;
}

// What `rows` rows read and multiply of one group, and how many of them meet each of its matrices.
struct GroupWork {
  double bytes = 0, operations = 0, rows = 0;
};
GroupWork WorkOf(const SpeedModel& m, const WeightGroup& group, double rows) {
  if (group.use != WeightGroup::Use::kExpert) {
    return {group.bytes, 2 * rows * group.products, rows};
  }
  const double layers = static_cast<double>(m.expert_layers);
  const double met = ExpectedExperts(m.experts, m.experts_per_token, rows);
  const double chosen = rows * static_cast<double>(m.experts_per_token);
  return {layers * met * group.bytes, 2 * layers * chosen * group.products, chosen / met};
}

// The same from the machine's kernels, group by group.
void TakeKernelTime(const SpeedModel& m, const SpeedMachine& machine, int64_t batch,
                    int64_t positions, StepCost* cost) {
  const double bandwidth = machine.bytes_per_s * machine.bandwidth_efficiency;
  const auto rate_of = [&machine](double kernel) {
    return (kernel > 0 ? kernel : machine.operations_per_s) * machine.arithmetic_efficiency;
  };
  KernelSpeeds& kernels = *machine.kernels;
  double rest = cost->weight_bytes, by_memory = 0, by_arithmetic = 0;
  for (const WeightGroup& group : m.groups) {
    const GroupWork work = WorkOf(m, group, static_cast<double>(batch));
    const double read = work.bytes / bandwidth;
    const double compute = work.operations / rate_of(kernels.MatMul(group, work.rows));
    (read >= compute ? by_memory : by_arithmetic) += std::max(read, compute);
    rest -= work.bytes;
  }
  by_memory += std::max(rest, 0.0) / bandwidth;
  cost->weight_seconds = by_memory + by_arithmetic;
  cost->weights_bound_by_memory = by_memory >= by_arithmetic;
  const double read = cost->attention_bytes / bandwidth;
  const double compute = cost->attention_operations / rate_of(kernels.Attention(batch, positions));
  cost->attention_seconds = std::max(read, compute);
  cost->attention_bound_by_memory = read >= compute;
  cost->other_seconds = m.regions * kernels.RegionSeconds() +
                        static_cast<double>(m.layers) * kernels.RestOfLayer(batch);
  cost->seconds = cost->weight_seconds + cost->attention_seconds + cost->other_seconds;
}

// Weights of one pass over `rows` rows, `logit_rows` of which want logits.
void AddWeights(const SpeedModel& m, double rows, double logit_rows, StepCost* cost) {
  const auto layers = static_cast<double>(m.expert_layers);
  cost->weight_bytes +=
      m.weight_bytes + (logit_rows > 0 ? m.head_bytes : 0) +
      layers * m.expert_bytes * ExpectedExperts(m.experts, m.experts_per_token, rows);
  cost->weight_operations +=
      2 * (rows * m.weight_products + logit_rows * m.head_products +
           rows * layers * static_cast<double>(m.experts_per_token) * m.expert_products);
}

}  // namespace

double ExpectedExperts(int64_t experts, int64_t chosen, double rows) {
  if (experts == 0) return 0;
  const auto n = static_cast<double>(experts);
  return n * (1 - std::pow(1 - static_cast<double>(chosen) / n, rows));
}

StepCost DecodeStep(const SpeedModel& m, const SpeedMachine& machine, int64_t batch,
                    int64_t context) {
  StepCost cost;
  const auto rows = static_cast<double>(batch);
  const auto positions = static_cast<double>(context);
  const double attended =
      m.most_attended > 0 ? std::min(positions, static_cast<double>(m.most_attended)) : positions;
  AddWeights(m, rows, rows, &cost);
  cost.weight_bytes += m.absorbed_bytes;
  cost.weight_operations += 2 * rows * m.kv_up_products;
  cost.attention_bytes = rows * (attended * m.row_bytes + positions * m.index_bytes);
  cost.attention_operations =
      2 * rows * (attended * m.decode_products + positions * m.index_products);
  if (machine.kernels != nullptr) {
    TakeKernelTime(m, machine, batch, static_cast<int64_t>(attended), &cost);
  } else {
    TakeTime(machine, &cost);
  }
  return cost;
}

StepCost PrefillPrompt(const SpeedModel& m, const SpeedMachine& machine, int64_t tokens,
                       int64_t chunk) {
  StepCost sum;
  const double limit = m.most_attended > 0 ? static_cast<double>(m.most_attended)
                                           : std::numeric_limits<double>::infinity();
  const auto length = static_cast<double>(tokens), step = static_cast<double>(chunk);
  // Whole chunks cost the same but for attention, which grows evenly: sums have closed forms, but
  // a plan asks for one prompt, and a prompt has few chunks next to what they cost.
  for (double first = 0; first < length; first += step) {
    const double rows = std::min(step, length - first), end = first + rows;
    // Rows up to the indexer's limit attend all positions, in the expanded form.
    const double dense = std::clamp(limit - first, 0.0, rows);
    StepCost cost;
    AddWeights(m, rows, end >= length ? 1 : 0, &cost);
    if (dense > 0) {
      cost.weight_bytes += m.kv_up_bytes;
      cost.weight_operations += 2 * (first + dense) * m.kv_up_products;
    }
    if (dense < rows) {
      cost.weight_bytes += m.absorbed_bytes;
      cost.weight_operations += 2 * (rows - dense) * m.kv_up_products;
    }
    cost.attention_bytes = std::min(end, limit) * m.row_bytes + end * m.index_bytes;
    cost.attention_operations = 2 * SumOfPositions(first, dense) * m.prefill_products +
                                2 * SumOfPositions(first, rows) * m.index_products;
    if (dense < rows) cost.attention_operations += 2 * (rows - dense) * limit * m.decode_products;
    TakeTime(machine, &cost);
    sum.weight_bytes += cost.weight_bytes;
    sum.weight_operations += cost.weight_operations;
    sum.attention_bytes += cost.attention_bytes;
    sum.attention_operations += cost.attention_operations;
    sum.seconds += cost.seconds;
    sum.weight_seconds += cost.weight_seconds;
    sum.attention_seconds += cost.attention_seconds;
    sum.other_seconds += cost.other_seconds;
    sum.weights_bound_by_memory = cost.weights_bound_by_memory;
    sum.attention_bound_by_memory = cost.attention_bound_by_memory;
  }
  return sum;
}

double CostPerMillionTokens(double per_hour, double tokens_per_s) {
  return per_hour / 3600 / tokens_per_s * 1e6;
}

}  // namespace tern
