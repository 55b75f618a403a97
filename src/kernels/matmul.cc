// Driver of matrix products: rounds each distinct input once, then spreads (panel range, row block)
// tasks of all products over the pool. No task size changes a result's bits.
#include <algorithm>
#include <map>
#include <tuple>

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

// One product: [rows, k] by a weight.
struct Product {
  MatMulArgs args;
  int64_t rows = 0;
  int64_t panels_per_task = 0;
  int64_t first_task = 0;  // tasks (panel range, row block) of all products before this one
};

// A multiple of four where there is work enough: kernels keep up to four panels in flight.
int64_t PanelsPerTask(const Product& product, int64_t all_panels, int threads) {
  const int64_t rows = std::min(product.rows, kRowsPerTask);
  const int64_t products = std::max<int64_t>(product.args.k * kPanelRows * rows, 1);
  const int64_t panels = std::max<int64_t>(kProductsPerTask / products, 1);
  const int64_t share = all_panels / (2 * threads);
  if (share >= 4) return (panels + 3) / 4 * 4;
  return share >= 2 ? 2 : 1;
}

// The rows of one distinct input, rounded to BF16 or to INT8.
struct RoundedInput {
  const float* x;
  int64_t x_stride, k, rows;
  bool int8;
  int64_t first_row;              // of all inputs
  int64_t offset, groups_offset;  // in the scratch: of numbers, and of numbers per 32 columns
  // No power of two: rows of a tile would share a cache set.
  int64_t stride() const { return (k + 31) / 32 * 32 + (int8 ? 64 : 32); }
  int64_t groups() const { return (k + 31) / 32; }
};

// Item `at` of the one whose range [first, next first) holds it.
template <typename T>
const T& ItemAt(const std::vector<T>& items, int64_t at, int64_t T::*first) {
  return *(std::upper_bound(items.begin(), items.end(), at,
                            [first](int64_t value, const T& item) { return value < item.*first; }) -
           1);
}

// The distinct inputs of products whose activations are rounded; input_of[product] is -1 where they
// are not.
std::vector<RoundedInput> DistinctInputs(const IsaTable& table, Activations activations,
                                         const std::vector<Product>& products,
                                         std::vector<int64_t>& input_of) {
  std::vector<RoundedInput> inputs;
  std::map<std::tuple<const float*, int64_t, int64_t, int64_t, bool>, int64_t> known;
  RoundedInput next{};
  for (size_t i = 0; i < products.size(); ++i) {
    const MatMulArgs& args = products[i].args;
    const int64_t rows = products[i].rows;
    const bool int8 = activations == Activations::kInt8 && Is4Bit(args.format);
    if (!int8 && (!table.bf16_activations || args.format == kPackF32)) continue;
    const auto [at, is_new] = known.try_emplace({args.x, args.x_stride, args.k, rows, int8},
                                                static_cast<int64_t>(inputs.size()));
    input_of[i] = at->second;
    if (!is_new) continue;
    next = {args.x, args.x_stride,  args.k,      rows,
            int8,   next.first_row, next.offset, next.groups_offset};
    inputs.push_back(next);
    next.first_row += rows;
    next.offset += rows * next.stride();
    next.groups_offset += rows * next.groups();
  }
  return inputs;
}

// Points each product that takes rounded activations at its input, rounded once however many share
// it.
void RoundInputs(const IsaTable& table, ThreadPool& pool, Activations activations,
                 ActivationScratch& scratch, std::vector<Product>& products) {
  std::vector<int64_t> input_of(products.size(), -1);
  const std::vector<RoundedInput> inputs = DistinctInputs(table, activations, products, input_of);
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
  for (size_t i = 0; i < products.size(); ++i) {
    if (input_of[i] < 0) continue;
    const RoundedInput& input = inputs[static_cast<size_t>(input_of[i])];
    MatMulArgs& args = products[i].args;
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

void Run(const IsaTable& table, ThreadPool& pool, std::vector<Product>& products) {
  int64_t all_panels = 0, tasks = 0;
  for (const Product& product : products) all_panels += PanelsOf(product.args.n);
  for (Product& product : products) {
    product.panels_per_task = PanelsPerTask(product, all_panels, pool.threads());
    product.first_task = tasks;
    tasks += (PanelsOf(product.args.n) + product.panels_per_task - 1) / product.panels_per_task *
             RowBlocks(product.rows);
  }
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const Product& product = ItemAt(products, task, &Product::first_task);
    // Row blocks of one panel range are neighbours: they find its weights in a shared cache.
    const int64_t row_blocks = RowBlocks(product.rows);
    const int64_t panel = (task - product.first_task) / row_blocks * product.panels_per_task;
    const int64_t row = (task - product.first_task) % row_blocks * kRowsPerTask;
    table.matmul(product.args, panel,
                 std::min(panel + product.panels_per_task, PanelsOf(product.args.n)), row,
                 std::min(row + kRowsPerTask, product.rows));
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
  std::vector<Product> products;
  products.reserve(targets.size());
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
  Run(table_, pool_, products);
}

void Ops::MatMul(std::span<const MatMulGroup> groups) const {
  std::vector<Product> products;
  products.reserve(groups.size());
  for (const MatMulGroup& group : groups) {
    if (group.rows == 0 || group.weight->rows() == 0) continue;
    if (observer_ != nullptr) {
      observer_->OnInput(*group.weight, group.x, group.x_stride, group.rows);
    }
    MatMulArgs args = PackedAccess::ArgsOf(*group.weight);
    args.x = group.x;
    args.x_stride = group.x_stride;
    args.out = group.out;
    args.out_stride = group.out_stride;
    products.push_back({.args = args, .rows = group.rows});
  }
  if (products.empty()) return;
  RoundInputs(table_, pool_, activations_, scratch_->activations, products);
  Run(table_, pool_, products);
}

}  // namespace tern
