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

constexpr int kQuadOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // where column 8 i + j lies

double Activation(const MatMulArgs& args, int64_t row, int64_t k) {
  if (args.x_int8 == nullptr) return args.x[row * args.x_stride + k];
  return double{args.x_scales[row * (args.k / 32) + k / 32]} *
         args.x_int8[row * args.x_int8_stride + k / 8 * 8 + kQuadOrder[k % 8]];
}

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
        sum += weight[static_cast<size_t>(k)] * Activation(args, row, k);
      }
      args.out[row * args.out_stride + n] = static_cast<float>(sum);
    }
  }
}

void RefToBf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Bf16FromFloat(x[i]);
}

void RefToE4m3(const uint16_t* x, int64_t n, float divisor, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = E4m3FromFloat(FloatFromBf16(x[i]) / divisor);
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

void RefQuantizeRow(const float* x, int64_t k, int8_t* out, float* scales, float* sums,
                    int32_t* offsets) {
  for (int64_t begin = 0; begin < k; begin += 32) {
    float largest = 0;
    bool finite = true;
    for (int64_t i = begin; i < begin + 32; ++i) {
      largest = std::max(largest, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    const float inverse = largest > kLeastActivation ? 127.0f / largest : 0.0f;
    int32_t sum = 0;
    for (int64_t i = begin; i < begin + 32; ++i) {
      const auto q = finite ? static_cast<int32_t>(std::nearbyint(x[i] * inverse)) : 0;
      out[i / 8 * 8 + kQuadOrder[i % 8]] = static_cast<int8_t>(q);
      sum += q;
    }
    scales[begin / 32] = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
    sums[begin / 32] = scales[begin / 32] * static_cast<float>(sum);
    offsets[begin / 32] = -8 * sum;
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

void RefLayerNorm(const float* x, int64_t rows, int64_t columns, const float* weight,
                  const float* bias, float eps, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < columns; ++i) sum += x[i];
    const double mean = sum / static_cast<double>(columns);
    for (int64_t i = 0; i < columns; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(columns) + eps);
    for (int64_t i = 0; i < columns; ++i) {
      y[i] = static_cast<float>((x[i] - mean) * scale * weight[i] + bias[i]);
    }
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

template <typename T>
T ReadAs(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// 2^(byte - 127).
double E8m0(std::byte scale) { return std::ldexp(1.0, static_cast<int>(scale) - 127); }

// Number `index` of the K row (the V row) of KV head `kv_head` at `position`, from the layouts of
// docs/formats/kv_page.md, without kFp8E4m3's scale per layer.
double ReadKv(const AttentionArgs& args, bool value, int64_t kv_head, int64_t position,
              int64_t index) {
  const std::byte* page = args.pages[position / args.page_tokens];
  const int64_t slot = position % args.page_tokens;
  const int64_t at = kv_head * (value ? args.value_dim : args.key_dim) + index;
  const std::byte* row = page + (value ? args.v_offset_bytes + slot * args.v_row_bytes
                                       : args.k_offset_bytes + slot * args.k_row_bytes);
  const std::byte* scales = page + args.scales_offset_bytes + slot * args.scales_row_bytes;
  const int64_t tiles = (args.latent + 127) / 128;
  const auto e4m3 = [&] { return double{FloatFromE4m3(static_cast<uint8_t>(row[at]))}; };
  switch (args.format) {
    case KvFormat::kF32:
      return ReadAs<float>(row + at * 4);
    case KvFormat::kBf16:
      return FloatFromBf16(ReadAs<uint16_t>(row + at * 2));
    case KvFormat::kFp8E4m3:
      return e4m3();
    case KvFormat::kFp8Tiled:
      if (args.latent == 0) return e4m3() * E8m0(scales[(value ? args.kv_heads : 0) + kv_head]);
      return e4m3() * E8m0(scales[index < args.latent ? index / 128 : tiles]);
    case KvFormat::kFp8DsMla:
      if (index >= args.latent) {
        return FloatFromBf16(
            ReadAs<uint16_t>(row + args.latent + 4 * tiles + 2 * (index - args.latent)));
      }
      return e4m3() * ReadAs<float>(row + args.latent + index / 128 * 4);
  }
  return 0;
}

// q . k of a position.
double RefDot(const AttentionArgs& args, const float* q, int64_t position, int64_t kv_head) {
  double dot = 0;
  for (int64_t d = 0; d < args.key_dim; ++d) {
    dot += double{q[d]} * ReadKv(args, false, kv_head, position, d);
  }
  return dot;
}

void RefExpandRows(const AttentionArgs& args, int64_t begin, int64_t rows, int64_t from,
                   int64_t count, float* out) {
  for (int64_t i = 0; i < rows * count; ++i) {
    out[i] = static_cast<float>(ReadKv(args, false, 0, begin + i / count, from + i % count));
  }
}

void RefAttentionChunk(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                       int64_t chunk, float* /*workspace*/, float* states) {
  const int64_t value_dim = args.value_dim, begin = chunk * kAttentionChunk;
  for (int64_t i = 0; i < block.rows * block.heads; ++i) {
    const int64_t row = i / block.heads, head = block.first_head + i % block.heads;
    const float* query = q + (row * args.heads + head) * args.key_dim;
    const int64_t seen = args.positions != nullptr ? args.selected : block.first_position + row + 1;
    const int64_t end = std::min(begin + kAttentionChunk, seen);
    const auto position = [&](int64_t entry) {
      return args.positions != nullptr ? args.positions[entry] : entry;
    };
    float* state = states + i * AttentionStateFloats(value_dim);
    std::fill(state, state + AttentionStateFloats(value_dim), 0.0f);
    std::vector<double> scores, values(static_cast<size_t>(value_dim), 0.0);
    double largest = kMinusInfinity;
    for (int64_t entry = begin; entry < end; ++entry) {
      scores.push_back(RefDot(args, query, position(entry), block.kv_head) * args.scale);
      largest = std::max(largest, scores.back());
    }
    // The state holds a float: subtract exactly what it says.
    largest = static_cast<float>(largest);
    double sum = 0;
    for (int64_t entry = begin; entry < end; ++entry) {
      const double weight = std::exp(scores[static_cast<size_t>(entry - begin)] - largest);
      sum += weight;
      for (int64_t d = 0; d < value_dim; ++d) {
        values[static_cast<size_t>(d)] +=
            weight * ReadKv(args, true, block.kv_head, position(entry), d);
      }
    }
    for (int64_t d = 0; d < value_dim; ++d) {
      state[d] = static_cast<float>(values[static_cast<size_t>(d)]);
    }
    state[AttentionMaxIndex(value_dim)] = static_cast<float>(largest);
    state[AttentionMaxIndex(value_dim) + 1] = static_cast<float>(sum);
  }
}

void RefAttentionMerge(int64_t queries, int64_t value_dim, const float* next, float* states) {
  const int64_t max_index = AttentionMaxIndex(value_dim), stride = AttentionStateFloats(value_dim);
  for (int64_t i = 0; i < queries; ++i, next += stride, states += stride) {
    if (next[max_index] == kMinusInfinity && next[max_index + 1] == 0.0f) continue;
    const float largest = std::max(states[max_index], next[max_index]);
    const double a = std::exp(double{states[max_index]} - largest);
    const double b = std::exp(double{next[max_index]} - largest);
    for (int64_t d = 0; d < value_dim; ++d) {
      states[d] = static_cast<float>(states[d] * a + next[d] * b);
    }
    states[max_index] = largest;
    states[max_index + 1] = static_cast<float>(states[max_index + 1] * a + next[max_index + 1] * b);
  }
}

void RefAttentionFinish(const AttentionArgs& args, const AttentionBlock& block, const float* states,
                        float* out) {
  for (int64_t i = 0; i < block.rows * block.heads; ++i) {
    const float* state = states + i * AttentionStateFloats(args.value_dim);
    const int64_t head = block.first_head + i % block.heads;
    float* target = out + (i / block.heads * args.heads + head) * args.value_dim;
    for (int64_t d = 0; d < args.value_dim; ++d) {
      target[d] = state[d] / state[AttentionMaxIndex(args.value_dim) + 1] * args.value_scale;
    }
  }
}

// Number `index` of the indexer's key at `position`; the FP8 formats have a float32 scale a key.
double ReadIndexKey(const AttentionArgs& args, int64_t position, int64_t index) {
  if (args.format == KvFormat::kF32 || args.format == KvFormat::kBf16) {
    return ReadKv(args, false, 0, position, index);
  }
  const std::byte* page = args.pages[position / args.page_tokens];
  const int64_t slot = position % args.page_tokens;
  const auto code =
      static_cast<uint8_t>(page[args.k_offset_bytes + slot * args.k_row_bytes + index]);
  return double{FloatFromE4m3(code)} *
         ReadAs<float>(page + args.scales_offset_bytes + slot * args.scales_row_bytes);
}

void RefIndexScores(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                    const float* w, int64_t chunk, float* /*workspace*/, float* scores,
                    int64_t scores_stride) {
  const int64_t begin = chunk * kAttentionChunk;
  const int64_t end = std::min(begin + kAttentionChunk, block.first_position + block.rows);
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t p = begin; p < end; ++p) {
      double score = 0;
      for (int64_t head = 0; head < args.heads; ++head) {
        const float* query = q + (row * args.heads + head) * args.key_dim;
        double dot = 0;
        for (int64_t d = 0; d < args.key_dim; ++d) dot += query[d] * ReadIndexKey(args, p, d);
        score += w[row * args.heads + head] * std::max(dot * args.scale, 0.0);
      }
      scores[row * scores_stride + p - begin] = static_cast<float>(score);
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
            .quantize_row = RefQuantizeRow,
            .to_e4m3 = RefToE4m3,
            .to_bf16 = RefToBf16,
            .rms_norm = RefRmsNorm,
            .layer_norm = RefLayerNorm,
            .rope = RefRope,
            .silu_mul = RefSiluMul,
            .add = RefAdd,
            .expand_rows = RefExpandRows,
            .attention_chunk = RefAttentionChunk,
            .attention_merge = RefAttentionMerge,
            .attention_finish = RefAttentionFinish,
            .index_scores = RefIndexScores,
            .largest = RefLargest,
            .arg_max = RefArgMax,
            .sum_exp = RefSumExp};
}

}  // namespace tern
