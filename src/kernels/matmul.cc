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

// The rows of one distinct input, rounded to BF16.
struct RoundedInput {
  const float* x;
  int64_t x_stride, k, rows;
  int64_t first_row;            // of all inputs
  int64_t offset, sums_offset;  // in the scratch
  // The stride is no power of two: rows of a tile would share a cache set.
  int64_t stride() const { return (k + 31) / 32 * 32 + 32; }
  int64_t groups() const { return (k + 31) / 32; }
};

// Item `at` of the one whose range [first, next first) holds it.
template <typename T>
const T& ItemAt(const std::vector<T>& items, int64_t at, int64_t T::*first) {
  return *(std::upper_bound(items.begin(), items.end(), at,
                            [first](int64_t value, const T& item) { return value < item.*first; }) -
           1);
}

// Points each product that takes BF16 activations at its input, rounded once however many share it.
void RoundInputs(const IsaTable& table, ThreadPool& pool, std::vector<uint16_t>& x_bf16,
                 std::vector<float>& x_sums, std::vector<Product>& products) {
  std::vector<RoundedInput> inputs;
  std::vector<int64_t> input_of(products.size(), -1);
  std::map<std::tuple<const float*, int64_t, int64_t, int64_t>, int64_t> known;
  int64_t rows = 0, numbers = 0, sums = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    const MatMulArgs& args = product.args;
    if (args.format == kPackF32) continue;
    const auto [at, is_new] = known.try_emplace({args.x, args.x_stride, args.k, product.rows},
                                                static_cast<int64_t>(inputs.size()));
    input_of[i] = at->second;
    if (!is_new) continue;
    inputs.push_back({args.x, args.x_stride, args.k, product.rows, rows, numbers, sums});
    rows += product.rows;
    numbers += product.rows * inputs.back().stride();
    sums += product.rows * inputs.back().groups();
  }
  if (inputs.empty()) return;
  uint16_t* rounded = Grow(x_bf16, numbers);
  float* group_sums = Grow(x_sums, sums);
  const auto round_rows = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RoundedInput& input = ItemAt(inputs, i, &RoundedInput::first_row);
      const int64_t row = i - input.first_row;
      table.round_row(input.x + row * input.x_stride, input.k, (input.k + 3) / 4 * 4,
                      rounded + input.offset + row * input.stride(),
                      group_sums + input.sums_offset + row * input.groups());
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
    products[i].args.x_bf16 = rounded + input.offset;
    products[i].args.x_bf16_stride = input.stride();
    products[i].args.x_sums = group_sums + input.sums_offset;
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
  if (table_.bf16_activations) {
    RoundInputs(table_, pool_, scratch_->x_bf16, scratch_->x_sums, products);
  }
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
  if (table_.bf16_activations) {
    RoundInputs(table_, pool_, scratch_->x_bf16, scratch_->x_sums, products);
  }
  Run(table_, pool_, products);
}

}  // namespace tern
