// Driver of matrix products: rounds the shared input once, then spreads (panel range, row block)
// tasks of all targets over the pool. No task size changes a result's bits.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/isa_table.h"
#include "kernels/ops.h"
#include "kernels/scratch.h"

namespace tern {

// Kernels-internal access to a packed matrix.
struct PackedAccess {
  static MatMulArgs ArgsOf(const PackedMatrix& matrix) {
    return {.format = matrix.format_,
            .weight = matrix.data_.data(),
            .n = matrix.rows_,
            .k = matrix.columns_};
  }
};

namespace {

// Rows that share one pass over a range of panels: enough to hide the weights' way from memory,
// few enough for their activations to stay in the second-level cache.
constexpr int64_t kRowsPerTask = 64;
// Products per task: some microseconds of work at one row.
constexpr int64_t kProductsPerTask = 1 << 16;

struct Target {
  MatMulArgs args;
  int64_t panels_per_task, tasks;  // tasks: panel ranges x row blocks
};

// A multiple of four where there is work enough: kernels keep up to four panels in flight.
int64_t PanelsPerTask(const MatMulArgs& args, int64_t rows, int threads) {
  const int64_t products = std::max<int64_t>(args.k * kPanelRows * rows, 1);
  const int64_t panels = std::max<int64_t>(kProductsPerTask / products, 1);
  const int64_t share = PanelsOf(args.n) / (2 * threads);
  if (share >= 4) return (panels + 3) / 4 * 4;
  return share >= 2 ? 2 : 1;
}

}  // namespace

void Ops::MatMul(const float* x, int64_t rows, std::span<const MatMulTarget> targets) const {
  if (rows == 0 || targets.empty()) return;
  const int64_t k = targets[0].weight->columns();
  const int64_t row_blocks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  std::vector<Target> plan;
  plan.reserve(targets.size());
  bool round = false;
  int64_t tasks = 0;
  for (const MatMulTarget& target : targets) {
    TERN_CHECK(target.weight->columns() == k);
    MatMulArgs args = PackedAccess::ArgsOf(*target.weight);
    args.x = x;
    args.bias = target.bias;
    args.out = target.out;
    round |= table_.bf16_activations && args.format != kPackF32;
    const int64_t panels = PanelsPerTask(args, std::min(rows, kRowsPerTask), pool_.threads());
    const int64_t target_tasks = (PanelsOf(args.n) + panels - 1) / panels * row_blocks;
    plan.push_back({args, panels, target_tasks});
    tasks += target_tasks;
  }

  if (round) {
    // The stride is no power of two: rows of a tile would share a cache set.
    const int64_t stride = (k + 31) / 32 * 32 + 32, groups = (k + 31) / 32;
    scratch_->x_bf16.resize(static_cast<size_t>(rows * stride));
    scratch_->x_sums.resize(static_cast<size_t>(rows * groups));
    uint16_t* x_bf16 = scratch_->x_bf16.data();
    float* x_sums = scratch_->x_sums.data();
    const auto round_rows = [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        table_.round_row(x + row * k, k, k + k % 2, x_bf16 + row * stride, x_sums + row * groups);
      }
    };
    if (rows * k < kProductsPerTask) {
      round_rows(0, rows);
    } else {
      const int64_t grain = std::max<int64_t>(kProductsPerTask / 2 / std::max<int64_t>(k, 1), 1);
      pool_.ParallelFor((rows + grain - 1) / grain, [&](int64_t chunk, int) {
        round_rows(chunk * grain, std::min(rows, (chunk + 1) * grain));
      });
    }
    for (Target& target : plan) {
      target.args.x_bf16 = x_bf16;
      target.args.x_bf16_stride = stride;
      target.args.x_sums = x_sums;
    }
  }

  pool_.ParallelFor(tasks, [&](int64_t task, int) {
    const Target* target = plan.data();
    while (task >= target->tasks) task -= (target++)->tasks;
    // Row blocks of one panel range are neighbours: they find its weights in a shared cache.
    const int64_t panel = task / row_blocks * target->panels_per_task;
    const int64_t row = task % row_blocks * kRowsPerTask;
    table_.matmul(target->args, panel,
                  std::min(panel + target->panels_per_task, PanelsOf(target->args.n)), row,
                  std::min(row + kRowsPerTask, rows));
  });
}

}  // namespace tern
