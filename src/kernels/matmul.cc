// Driver of matrix products: rounds each distinct input once, then spreads (panel range, row block)
// tasks of all products over the pool. No task size changes a result's bits.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/isa_table.h"
#include "kernels/matmul_observer.h"
#include "kernels/ops.h"
#include "kernels/packed_access.h"
#include "kernels/scratch.h"

namespace tern {
namespace {

// Rows that share one pass over a range of panels: enough to hide the weights' way from memory,
// few enough for their activations to stay in the second-level cache.
constexpr int64_t kRowsPerTask = 64;
// Products per task: some microseconds of work at one row.
constexpr int64_t kProductsPerTask = 1 << 16;

int64_t RowBlocks(int64_t rows) { return (rows + kRowsPerTask - 1) / kRowsPerTask; }

// Four or more where there is work enough: rows of a block are then read four times from the
// second-level cache for once from behind it.
int64_t PanelsPerTask(const MatMulProduct& product, int64_t all_panels, int threads) {
  const int64_t rows = std::min(product.rows, kRowsPerTask);
  const int64_t products = std::max<int64_t>(product.args.k * kPanelRows * rows, 1);
  const int64_t panels = std::max<int64_t>(kProductsPerTask / products, 1);
  const int64_t share = all_panels / (2 * threads);
  if (share >= 4) return (panels + 3) / 4 * 4;
  return share >= 2 ? 2 : 1;
}

// Cuts `tasks` into runs, in rounds of two for each thread that share half of what is left: long
// stretches of memory first, and short ones at the end, so that all threads end together. begins:
// the first task of each run, and then `tasks`.
void CutRuns(int64_t tasks, int threads, std::vector<int64_t>& begins) {
  const int64_t round = 2 * threads;
  begins.clear();
  for (int64_t first = 0; first < tasks;) {
    const int64_t size = std::max<int64_t>((tasks - first) / (2 * round), 1);
    for (int64_t i = 0; i < round && first < tasks; ++i, first += size) begins.push_back(first);
  }
  begins.push_back(tasks);
}

// Item `at` of the one whose range [first, next first) holds it.
template <typename T>
const T& ItemAt(const std::vector<T>& items, int64_t at, int64_t T::*first) {
  return *(std::upper_bound(items.begin(), items.end(), at,
                            [first](int64_t value, const T& item) { return value < item.*first; }) -
           1);
}

// The inputs of products whose activations are rounded. Products that share one are neighbours.
void FindInputs(const IsaTable& table, Activations activations,
                std::vector<MatMulProduct>& products, std::vector<RoundedInput>& inputs) {
  inputs.clear();
  int64_t first_row = 0, offset = 0, groups_offset = 0;
  for (MatMulProduct& product : products) {
    const MatMulArgs& args = product.args;
    const bool int8 = activations == Activations::kInt8 && Is4Bit(args.format);
    product.input = -1;
    if (!int8 && (!table.bf16_activations || args.format == kPackF32)) continue;
    const RoundedInput input = {args.x, args.x_stride, args.k, product.rows,
                                int8,   first_row,     offset, groups_offset};
    if (inputs.empty() || !inputs.back().SameAs(input)) {
      inputs.push_back(input);
      first_row += product.rows;
      offset += product.rows * input.stride();
      groups_offset += product.rows * input.groups();
    }
    product.input = static_cast<int64_t>(inputs.size()) - 1;
  }
}

// Points each product that takes rounded activations at its input, rounded once however many share
// it.
void RoundInputs(const IsaTable& table, ThreadPool& pool, Activations activations,
                 ActivationScratch& scratch, std::vector<MatMulProduct>& products) {
  std::vector<RoundedInput>& inputs = scratch.inputs;
  FindInputs(table, activations, products, inputs);
  if (inputs.empty()) return;
  const RoundedInput& last = inputs.back();
  const int64_t rows = last.first_row + last.rows;
  const int64_t numbers = last.offset + last.rows * last.stride();
  const int64_t groups = last.groups_offset + last.rows * last.groups();
  uint16_t* bf16 = Grow(scratch.bf16, numbers);  // INT8 rows use half of their place
  float* sums = Grow(scratch.sums, groups);
  float* scales = Grow(scratch.scales, groups);
  int32_t* offsets = Grow(scratch.offsets, groups);
  const auto int8_at = [&](const RoundedInput& input) {
    return reinterpret_cast<int8_t*>(bf16 + input.offset);
  };
  const auto round_rows = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RoundedInput& input = ItemAt(inputs, i, &RoundedInput::first_row);
      const int64_t row = i - input.first_row;
      const float* x = input.x + row * input.x_stride;
      const int64_t group = input.groups_offset + row * input.groups();
      if (input.int8) {
        table.quantize_row(x, input.k, int8_at(input) + row * input.stride(), scales + group,
                           sums + group, offsets + group);
      } else {
        table.round_row(x, input.k, (input.k + 3) / 4 * 4,
                        bf16 + input.offset + row * input.stride(), sums + group);
      }
    }
  };
  if (numbers < kProductsPerTask) {
    round_rows(0, rows);
  } else {
    const int64_t grain = std::max<int64_t>(kProductsPerTask / 2 / (numbers / rows), 1);
    pool.ParallelFor((rows + grain - 1) / grain, [&](int64_t chunk, int) {
      round_rows(chunk * grain, std::min(rows, (chunk + 1) * grain));
    });
  }
  for (MatMulProduct& product : products) {
    if (product.input < 0) continue;
    const RoundedInput& input = inputs[static_cast<size_t>(product.input)];
    MatMulArgs& args = product.args;
    if (input.int8) {
      args.x_int8 = int8_at(input);
      args.x_int8_stride = input.stride();
      args.x_scales = scales + input.groups_offset;
      args.x_offsets = offsets + input.groups_offset;
    } else {
      args.x_bf16 = bf16 + input.offset;
      args.x_bf16_stride = input.stride();
    }
    args.x_sums = sums + input.groups_offset;
  }
}

void RunTask(const IsaTable& table, const std::vector<MatMulProduct>& products, int64_t task) {
  const MatMulProduct& product = ItemAt(products, task, &MatMulProduct::first_task);
  // Row blocks of one panel range are neighbours: they find its weights in a shared cache.
  const int64_t row_blocks = RowBlocks(product.rows);
  const int64_t panel = (task - product.first_task) / row_blocks * product.panels_per_task;
  const int64_t row = (task - product.first_task) % row_blocks * kRowsPerTask;
  table.matmul(product.args, panel,
               std::min(panel + product.panels_per_task, PanelsOf(product.args.n)), row,
               std::min(row + kRowsPerTask, product.rows));
}

void Run(const IsaTable& table, ThreadPool& pool, std::vector<MatMulProduct>& products,
         std::vector<int64_t>& runs) {
  int64_t all_panels = 0, tasks = 0;
  for (const MatMulProduct& product : products) all_panels += PanelsOf(product.args.n);
  for (MatMulProduct& product : products) {
    product.panels_per_task = PanelsPerTask(product, all_panels, pool.threads());
    product.first_task = tasks;
    tasks += (PanelsOf(product.args.n) + product.panels_per_task - 1) / product.panels_per_task *
             RowBlocks(product.rows);
  }
  CutRuns(tasks, pool.threads(), runs);
  pool.ParallelFor(static_cast<int64_t>(runs.size()) - 1, [&](int64_t run, int) {
    const int64_t end = runs[static_cast<size_t>(run) + 1];
    for (int64_t task = runs[static_cast<size_t>(run)]; task < end; ++task) {
      RunTask(table, products, task);
    }
  });
}

}  // namespace

void Ops::ShowInput(const PackedMatrix& weight, const float* x, int64_t rows) const {
  if (observer_ != nullptr && rows > 0) observer_->OnInput(weight, x, weight.columns(), rows);
}

void Ops::MatMul(const float* x, int64_t rows, std::span<const MatMulTarget> targets) const {
  if (observer_ != nullptr) {
    for (const MatMulTarget& target : targets) ShowInput(*target.weight, x, rows);
  }
  Multiply(x, rows, targets);
}

void Ops::Multiply(const float* x, int64_t rows, std::span<const MatMulTarget> targets) const {
  if (rows == 0 || targets.empty()) return;
  std::vector<MatMulProduct>& products = scratch_->products;
  products.clear();
  for (const MatMulTarget& target : targets) {
    TERN_CHECK(target.weight->columns() == targets[0].weight->columns());
    MatMulArgs args = PackedAccess::ArgsOf(*target.weight);
    args.x = x;
    args.x_stride = args.k;
    args.bias = target.bias;
    args.out = target.out;
    args.out_stride = args.n;
    products.push_back({.args = args, .rows = rows});
  }
  RoundInputs(table_, pool_, activations_, scratch_->activations, products);
  Run(table_, pool_, products, scratch_->runs);
}

void Ops::MatMul(std::span<const MatMulGroup> groups) const {
  const auto is_empty = [](const MatMulGroup& group) {
    return group.rows == 0 || group.weight->rows() == 0;
  };
  // Before the scratch is in use: an observer may multiply, too.
  for (const MatMulGroup& group : groups) {
    if (observer_ == nullptr || is_empty(group)) continue;
    observer_->OnInput(*group.weight, group.x, group.x_stride, group.rows);
  }
  std::vector<MatMulProduct>& products = scratch_->products;
  products.clear();
  for (const MatMulGroup& group : groups) {
    if (is_empty(group)) continue;
    MatMulArgs args = PackedAccess::ArgsOf(*group.weight);
    args.x = group.x;
    args.x_stride = group.x_stride;
    args.out = group.out;
    args.out_stride = group.out_stride;
    products.push_back({.args = args, .rows = group.rows});
  }
  if (products.empty()) return;
  RoundInputs(table_, pool_, activations_, scratch_->activations, products);
  Run(table_, pool_, products, scratch_->runs);
}

}  // namespace tern
