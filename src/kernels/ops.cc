// Ops: creation and the row-wise operations. Packing is in pack.cc, products are in matmul.cc,
// attention in attention.cc and mla.cc, the indexer in indexer.cc.
#include "kernels/ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/dispatch.h"
#include "kernels/isa_table.h"
#include "kernels/matmul_observer.h"
#include "kernels/scratch.h"

namespace tern {
namespace {

// Numbers per chunk of elementwise work: tens of microseconds, so that claiming costs nothing.
constexpr int64_t kElementsPerChunk = 16384;

// Calls fn(begin, end) on the pool for pieces of [0, n) of at least `grain` items.
template <typename Fn>
void ForRanges(ThreadPool& pool, int64_t n, int64_t grain, Fn&& fn) {
  grain = std::max<int64_t>(grain, 1);
  pool.ParallelFor((n + grain - 1) / grain, [&](int64_t chunk, int) {
    fn(chunk * grain, std::min(n, (chunk + 1) * grain));
  });
}

}  // namespace

Result<std::unique_ptr<Ops>> Ops::Create(const std::string& isa, ThreadPool& pool) {
  TERN_ASSIGN_OR_RETURN(const IsaTable* table, FindIsa(isa));
  return std::unique_ptr<Ops>(new Ops(*table, pool));
}

std::vector<std::string> Ops::SupportedIsas() { return IsasOf(ReadCpuState()); }

Ops::Ops(const IsaTable& table, ThreadPool& pool)
    : table_(table), pool_(pool), scratch_(std::make_unique<Scratch>()) {}

Ops::~Ops() = default;

const char* Ops::isa() const { return table_.name; }

void Ops::ShowAttentionInput(const PackedMatrix& weight, const float* x, int64_t rows) const {
  if (observer_ == nullptr || rows == 0) return;
  observer_->OnAttentionInput(weight, x, weight.columns(), rows);
}

void Ops::Begin(Operation operation) const {
  if (observer_ != nullptr) observer_->OnOperation(operation);
}

void Ops::RmsNorm(const float* x, int64_t rows, int64_t columns, const float* weight, float eps,
                  float* y) const {
  Begin(Operation::kNorm);
  ForRanges(pool_, rows, kElementsPerChunk / std::max<int64_t>(columns, 1),
            [&](int64_t begin, int64_t end) {
              table_.rms_norm(x + begin * columns, end - begin, columns, weight, eps,
                              y + begin * columns);
            });
}

void Ops::LayerNorm(const float* x, int64_t rows, int64_t columns, const float* weight,
                    const float* bias, float eps, float* y) const {
  Begin(Operation::kNorm);
  ForRanges(pool_, rows, kElementsPerChunk / std::max<int64_t>(columns, 1),
            [&](int64_t begin, int64_t end) {
              table_.layer_norm(x + begin * columns, end - begin, columns, weight, bias, eps,
                                y + begin * columns);
            });
}

void Ops::Rope(float* x, int64_t rows, int64_t heads, int64_t head_dim, int64_t rotary_dims,
               RopeStyle style, const float* cos, const float* sin) const {
  Begin(Operation::kRope);
  const int64_t row_floats = heads * head_dim, half = rotary_dims / 2;
  ForRanges(pool_, rows, kElementsPerChunk / std::max<int64_t>(row_floats, 1),
            [&](int64_t begin, int64_t end) {
              table_.rope(x + begin * row_floats, end - begin, heads, head_dim, rotary_dims,
                          style == RopeStyle::kInterleaved, cos + begin * half, sin + begin * half);
            });
}

void Ops::Hadamard(float* x, int64_t rows, int64_t dim) const {
  Begin(Operation::kIndexer);
  const int64_t piece = dim & -dim;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(piece)));
  ForRanges(pool_, rows * (dim / piece), kElementsPerChunk / piece / 4,
            [&](int64_t begin, int64_t end) {
              for (float* p = x + begin * piece; p < x + end * piece; p += piece) {
                for (int64_t half = 1; half < piece; half *= 2) {
                  for (int64_t i = 0; i < piece; i += 2 * half) {
                    for (int64_t j = i; j < i + half; ++j) {
                      const float a = p[j], b = p[j + half];
                      p[j] = a + b;
                      p[j + half] = a - b;
                    }
                  }
                }
                for (int64_t i = 0; i < piece; ++i) p[i] *= scale;
              }
            });
}

void Ops::SiluMul(const float* gate, const float* up, int64_t n, float* out) const {
  Begin(Operation::kActivation);
  ForRanges(pool_, n, kElementsPerChunk / 2, [&](int64_t begin, int64_t end) {
    table_.silu_mul(gate + begin, up + begin, end - begin, out + begin);
  });
}

void Ops::Add(float* x, const float* y, int64_t n) const {
  Begin(Operation::kAdd);
  ForRanges(pool_, n, kElementsPerChunk,
            [&](int64_t begin, int64_t end) { table_.add(x + begin, y + begin, end - begin); });
}

int64_t Ops::ArgMax(const float* x, int64_t n) const { return table_.arg_max(x, n); }

float Ops::LogSumExp(const float* x, int64_t n) const {
  const float largest = table_.largest(x, n);
  if (std::isinf(largest)) return largest;
  return static_cast<float>(largest + std::log(table_.sum_exp(x, n, largest)));
}

}  // namespace tern
