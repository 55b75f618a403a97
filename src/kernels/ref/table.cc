// The ref level: what each entry of IsaTable means, in plain loops and float64 sums. It is a level
// like the others (TERN_ISA=ref), slow, and the one that they are tested against.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "kernels/isa_table.h"
#include "kernels/ref/dequantize.h"
#include "tensor/number.h"

namespace tern {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void RefMatMul(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end, int64_t row_begin,
               int64_t row_end) {
  std::vector<double> weight(static_cast<size_t>(args.k));
  for (int64_t n = panel_begin * kPanelRows; n < std::min(panel_end * kPanelRows, args.n); ++n) {
    for (int64_t k = 0; k < args.k; ++k) {
      weight[static_cast<size_t>(k)] = PackedWeight(args.format, args.weight, args.k, n, k);
    }
    for (int64_t row = row_begin; row < row_end; ++row) {
      double sum = args.bias != nullptr ? args.bias[n] : 0.0;
      for (int64_t k = 0; k < args.k; ++k) {
        sum += weight[static_cast<size_t>(k)] * args.x[row * args.k + k];
      }
      args.out[row * args.n + n] = static_cast<float>(sum);
    }
  }
}

void RefToBf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Bf16FromFloat(x[i]);
}

void RefRoundRow(const float* x, int64_t k, int64_t padded, uint16_t* out, float* sums) {
  std::fill(out, out + padded, uint16_t{0});
  RefToBf16(x, k, out);
  for (int64_t begin = 0; begin < k; begin += 32) {
    double sum = 0;
    for (int64_t i = begin; i < std::min(begin + 32, k); ++i) sum += RoundToBf16(x[i]);
    sums[begin / 32] = static_cast<float>(sum);
  }
}

void RefRmsNorm(const float* x, int64_t rows, int64_t columns, const float* weight, float eps,
                float* y) {
  for (int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    double squares = 0;
    for (int64_t i = 0; i < columns; ++i) squares += double{x[i]} * x[i];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(columns) + eps);
    for (int64_t i = 0; i < columns; ++i) y[i] = static_cast<float>(weight[i] * (x[i] * scale));
  }
}

void RefRope(float* x, int64_t rows, int64_t heads, int64_t head_dim, int64_t rotary_dims,
             bool interleaved, const float* cos, const float* sin) {
  const int64_t half = rotary_dims / 2;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      float* vector = x + (row * heads + head) * head_dim;
      for (int64_t i = 0; i < half; ++i) {
        float& a = vector[interleaved ? 2 * i : i];
        float& b = vector[interleaved ? 2 * i + 1 : i + half];
        const double c = cos[row * half + i], s = sin[row * half + i], a0 = a, b0 = b;
        a = static_cast<float>(a0 * c - b0 * s);
        b = static_cast<float>(b0 * c + a0 * s);
      }
    }
  }
}

void RefSiluMul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i]);
  }
}

void RefAdd(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

// Element d of the row of `position`.
float ReadKv(const AttentionArgs& args, int64_t offset_bytes, int64_t position, int64_t kv_head,
             int64_t d) {
  const std::byte* slab = args.pages[position / args.page_tokens] + offset_bytes;
  const int64_t index = (position % args.page_tokens * args.kv_heads + kv_head) * args.head_dim + d;
  if (args.format == KvFormat::kF32) {
    float value = 0;
    std::memcpy(&value, slab + index * 4, sizeof(value));
    return value;
  }
  TERN_CHECK(args.format == KvFormat::kBf16);
  uint16_t bits = 0;
  std::memcpy(&bits, slab + index * 2, sizeof(bits));
  return FloatFromBf16(bits);
}

void RefAttentionChunk(const AttentionArgs& args, const float* q, int64_t first_position,
                       int64_t rows, int64_t kv_head, int64_t chunk, float* /*workspace*/,
                       float* states) {
  const int64_t group = args.heads / args.kv_heads, head_dim = args.head_dim;
  const int64_t begin = chunk * kAttentionChunk;
  for (int64_t i = 0; i < rows * group; ++i) {
    const int64_t row = i / group, head = kv_head * group + i % group;
    const float* query = q + (row * args.heads + head) * head_dim;
    const int64_t end = std::min(begin + kAttentionChunk, first_position + row + 1);
    float* state = states + i * AttentionStateFloats(head_dim);
    std::fill(state, state + AttentionStateFloats(head_dim), 0.0f);
    std::vector<double> scores, values(static_cast<size_t>(head_dim), 0.0);
    double largest = kMinusInfinity;
    for (int64_t p = begin; p < end; ++p) {
      double score = 0;
      for (int64_t d = 0; d < head_dim; ++d) {
        score += double{query[d]} * ReadKv(args, args.k_offset_bytes, p, kv_head, d);
      }
      scores.push_back(score * args.scale);
      largest = std::max(largest, scores.back());
    }
    // The state holds a float: subtract exactly what it says.
    largest = static_cast<float>(largest);
    double sum = 0;
    for (int64_t p = begin; p < end; ++p) {
      const double weight = std::exp(scores[static_cast<size_t>(p - begin)] - largest);
      sum += weight;
      for (int64_t d = 0; d < head_dim; ++d) {
        values[static_cast<size_t>(d)] += weight * ReadKv(args, args.v_offset_bytes, p, kv_head, d);
      }
    }
    for (int64_t d = 0; d < head_dim; ++d)
      state[d] = static_cast<float>(values[static_cast<size_t>(d)]);
    state[AttentionMaxIndex(head_dim)] = static_cast<float>(largest);
    state[AttentionMaxIndex(head_dim) + 1] = static_cast<float>(sum);
  }
}

void RefAttentionMerge(int64_t queries, int64_t head_dim, const float* next, float* states) {
  const int64_t max_index = AttentionMaxIndex(head_dim), stride = AttentionStateFloats(head_dim);
  for (int64_t i = 0; i < queries; ++i, next += stride, states += stride) {
    if (next[max_index] == kMinusInfinity && next[max_index + 1] == 0.0f) continue;
    const float largest = std::max(states[max_index], next[max_index]);
    const double a = std::exp(double{states[max_index]} - largest);
    const double b = std::exp(double{next[max_index]} - largest);
    for (int64_t d = 0; d < head_dim; ++d) {
      states[d] = static_cast<float>(states[d] * a + next[d] * b);
    }
    states[max_index] = largest;
    states[max_index + 1] = static_cast<float>(states[max_index + 1] * a + next[max_index + 1] * b);
  }
}

void RefAttentionFinish(const AttentionArgs& args, const float* states, int64_t rows,
                        int64_t kv_head, float* out) {
  const int64_t group = args.heads / args.kv_heads;
  for (int64_t i = 0; i < rows * group; ++i) {
    const float* state = states + i * AttentionStateFloats(args.head_dim);
    float* target = out + (i / group * args.heads + kv_head * group + i % group) * args.head_dim;
    for (int64_t d = 0; d < args.head_dim; ++d) {
      target[d] = state[d] / state[AttentionMaxIndex(args.head_dim) + 1];
    }
  }
}

float RefLargest(const float* x, int64_t n) {
  float largest = kMinusInfinity;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] > largest) largest = x[i];
  }
  return largest;
}

int64_t RefArgMax(const float* x, int64_t n) {
  const float largest = RefLargest(x, n);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == largest) return i;
  }
  return 0;
}

double RefSumExp(const float* x, int64_t n, float largest) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(double{x[i]} - largest);
  return sum;
}

}  // namespace

void FillRefTable(IsaTable* table) {
  *table = {.name = "ref",
            .bf16_activations = false,
            .matmul = RefMatMul,
            .round_row = RefRoundRow,
            .to_bf16 = RefToBf16,
            .rms_norm = RefRmsNorm,
            .rope = RefRope,
            .silu_mul = RefSiluMul,
            .add = RefAdd,
            .attention_chunk = RefAttentionChunk,
            .attention_merge = RefAttentionMerge,
            .attention_finish = RefAttentionFinish,
            .largest = RefLargest,
            .arg_max = RefArgMax,
            .sum_exp = RefSumExp};
}

}  // namespace tern
