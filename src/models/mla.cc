#include "models/mla.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tern {
namespace {

// Of q_a_layernorm and kv_a_layernorm, whatever rms_norm_eps says: as in the published code.
constexpr float kLatentNormEps = 1e-6f;

// out[r] = x[r * stride .. + columns) for each row.
void CopyColumns(const Ops& ops, const float* x, int64_t stride, int64_t rows, int64_t columns,
                 float* out, int64_t out_stride) {
  ops.Begin(Operation::kCopy);
  ops.pool().ParallelFor((rows + 63) / 64, [&](int64_t chunk, int) {
    for (int64_t r = chunk * 64; r < std::min(rows, chunk * 64 + 64); ++r) {
      std::memcpy(out + r * out_stride, x + r * stride,
                  static_cast<size_t>(columns) * sizeof(float));
    }
  });
}

// The values of kv_b_proj, [heads * (nope + value), latent], from k_b_proj [heads * latent, nope]
// and v_b_proj [heads * value, latent].
Result<std::vector<float>> JoinHalves(WeightLoader& loader, const MlaShape& s, int64_t layer) {
  TERN_ASSIGN_OR_RETURN(
      const std::vector<float> keys,
      loader.Values(LayerName(layer, "self_attn.k_b_proj.weight"), s.heads * s.latent, s.nope));
  TERN_ASSIGN_OR_RETURN(
      const std::vector<float> values,
      loader.Values(LayerName(layer, "self_attn.v_b_proj.weight"), s.heads * s.value, s.latent));
  std::vector<float> joined;
  joined.reserve(keys.size() + values.size());
  for (int64_t head = 0; head < s.heads; ++head) {
    const float* const key = keys.data() + head * s.latent * s.nope;
    for (int64_t i = 0; i < s.nope; ++i) {
      for (int64_t j = 0; j < s.latent; ++j) joined.push_back(key[j * s.nope + i]);
    }
    const float* const value = values.data() + head * s.value * s.latent;
    joined.insert(joined.end(), value, value + s.value * s.latent);
  }
  return joined;
}

}  // namespace

MlaShape MlaShapeOf(const ModelConfig& config) {
  const MlaConfig& mla = *config.mla;
  double scale = 1.0 / std::sqrt(static_cast<double>(mla.qk_nope_head_dim + mla.qk_rope_head_dim));
  const double all_dim = config.rope.mscale_all_dim.value_or(0);
  if (config.rope.type != "default" && all_dim != 0) {
    scale *= std::pow(YarnMscale(config.rope.factor, all_dim), 2);
  }
  return {.heads = config.num_attention_heads,
          .latent = mla.kv_lora_rank,
          .rope = mla.qk_rope_head_dim,
          .nope = mla.qk_nope_head_dim,
          .value = mla.v_head_dim,
          .scale = static_cast<float>(scale)};
}

int64_t MlaPass::FloatsPerRow(const ModelConfig& config) {
  const MlaShape s = MlaShapeOf(config);
  return config.mla->q_lora_rank.value_or(0) + s.heads * (s.nope + 2 * s.rope + s.value) +
         2 * (s.latent + s.rope) + s.heads * (2 * s.latent + s.rope);
}

void MlaPass::AddAbsorbed(const KvRun& run) {
  absorbed_.push_back({run.pages, run.first_position, absorbed_rows_, run.rows});
  if (!ranges_.empty() && ranges_.back().batch_row + ranges_.back().rows == run.first_row) {
    ranges_.back().rows += run.rows;
  } else {
    ranges_.push_back({run.first_row, absorbed_rows_, run.rows});
  }
  absorbed_rows_ += run.rows;
}

Status MlaPass::Begin(const ModelConfig& config, const AttentionPass& pass, int64_t dense_limit) {
  expanded_.clear();
  absorbed_.clear();
  ranges_.clear();
  absorbed_rows_ = 0;
  for (size_t i = 0; i < pass.runs.size(); ++i) {
    KvRun run = pass.kv_runs[i];
    const bool decode = pass.runs[i].form == RowForm::kDecode;
    const int64_t dense =
        decode ? 0 : std::clamp<int64_t>(dense_limit - run.first_position, 0, run.rows);
    if (dense > 0) expanded_.push_back({run.pages, run.first_position, run.first_row, dense});
    if (dense == run.rows) continue;
    AddAbsorbed({run.pages, run.first_position + dense, run.first_row + dense, run.rows - dense});
  }
  const MlaShape s = MlaShapeOf(config);
  const Workspace::Field fields[] = {{&q_latent_, config.mla->q_lora_rank.value_or(0)},
                                     {&q_, s.heads * (s.nope + s.rope)},
                                     {&q_rope_, s.heads * s.rope},
                                     {&kv_, s.latent + s.rope},
                                     {&latent_, s.latent},
                                     {&k_rope_, s.rope},
                                     {&heads_out_, s.heads * s.value}};
  TERN_RETURN_IF_ERROR(memory_.Resize(fields, pass.rows));
  const Workspace::Field absorbed[] = {{&absorbed_q_, s.heads * (s.latent + s.rope)},
                                       {&absorbed_out_, s.heads * s.latent}};
  return absorbed_memory_.Resize(absorbed, absorbed_rows_);
}

Result<MlaLayer> MlaLayer::Load(WeightLoader& loader, const ModelConfig& config, int64_t layer) {
  MlaLayer result;
  result.shape_ = MlaShapeOf(config);
  result.rope_style_ =
      config.mla->rope_interleave ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit;
  result.hidden_ = config.hidden_size;
  result.q_lora_ = config.mla->q_lora_rank.value_or(0);
  const MlaShape& s = result.shape_;
  const int64_t hidden = result.hidden_, q_size = s.heads * (s.nope + s.rope);
  const auto name = [&](const char* parameter) {
    return LayerName(layer, "self_attn.") + parameter;
  };
  if (result.q_lora_ > 0) {
    TERN_ASSIGN_OR_RETURN(result.q_a_,
                          loader.Matrix(name("q_a_proj.weight"), result.q_lora_, hidden));
    TERN_ASSIGN_OR_RETURN(result.q_norm_,
                          loader.Vector(name("q_a_layernorm.weight"), result.q_lora_));
    TERN_ASSIGN_OR_RETURN(result.q_b_,
                          loader.Matrix(name("q_b_proj.weight"), q_size, result.q_lora_));
  } else {
    TERN_ASSIGN_OR_RETURN(result.q_b_, loader.Matrix(name("q_proj.weight"), q_size, hidden));
  }
  TERN_ASSIGN_OR_RETURN(
      result.kv_a_, loader.Matrix(name("kv_a_proj_with_mqa.weight"), s.latent + s.rope, hidden));
  TERN_ASSIGN_OR_RETURN(result.kv_norm_, loader.Vector(name("kv_a_layernorm.weight"), s.latent));
  TERN_RETURN_IF_ERROR(result.LoadUpProjections(loader, layer, config.mla->split_kv_b));
  TERN_ASSIGN_OR_RETURN(result.o_, loader.Matrix(name("o_proj.weight"), hidden, s.heads * s.value));
  return result;
}

Status MlaLayer::LoadUpProjections(WeightLoader& loader, int64_t layer, bool split) {
  const MlaShape& s = shape_;
  const int64_t head_rows = s.nope + s.value;
  const std::string name = LayerName(layer, "self_attn.kv_b_proj.weight");
  const int64_t rows = s.heads * head_rows;
  std::vector<float> values;
  if (split) {
    TERN_ASSIGN_OR_RETURN(values, JoinHalves(loader, s, layer));
    TERN_ASSIGN_OR_RETURN(kv_b_, loader.PackValues(name, values.data(), rows, s.latent));
    loader.Name(kv_b_, name);
  } else {
    TERN_ASSIGN_OR_RETURN(values, loader.Values(name, rows, s.latent));
    TERN_ASSIGN_OR_RETURN(kv_b_, loader.Matrix(name, rows, s.latent));
  }
  std::vector<float> transposed(static_cast<size_t>(s.latent * s.nope));
  for (int64_t head = 0; head < s.heads; ++head) {
    const float* const keys = values.data() + head * head_rows * s.latent;
    const auto part = [&](const char* of) {
      return fmt::format("{} ({} of head {})", name, of, head);
    };
    for (int64_t i = 0; i < s.nope; ++i) {
      for (int64_t j = 0; j < s.latent; ++j) {
        transposed[static_cast<size_t>(j * s.nope + i)] = keys[i * s.latent + j];
      }
    }
    TERN_ASSIGN_OR_RETURN(k_up_.emplace_back(),
                          loader.PackValues(part("keys"), transposed.data(), s.latent, s.nope));
    TERN_ASSIGN_OR_RETURN(
        v_up_.emplace_back(),
        loader.PackValues(part("values"), keys + s.nope * s.latent, s.value, s.latent));
  }
  return OkStatus();
}

void MlaLayer::Project(const Ops& ops, const KvSlab& slab, const AttentionPass& pass,
                       const float* normed, MlaPass& w) const {
  const MlaShape& s = shape_;
  const int64_t rows = pass.rows, row_width = s.latent + s.rope;
  if (q_lora_ > 0) {
    const MatMulTarget down[] = {{&q_a_, w.q_latent_}, {&kv_a_, w.kv_}};
    ops.MatMul(normed, rows, down);
    ops.RmsNorm(w.q_latent_, rows, q_lora_, q_norm_.data(), kLatentNormEps, w.q_latent_);
    const MatMulTarget up[] = {{&q_b_, w.q_}};
    ops.MatMul(w.q_latent_, rows, up);
  } else {
    const MatMulTarget both[] = {{&q_b_, w.q_}, {&kv_a_, w.kv_}};
    ops.MatMul(normed, rows, both);
  }
  // A head's query ends with the part that rotates; Rope takes heads that rotate from the start.
  const int64_t head = s.nope + s.rope, heads = rows * s.heads;
  CopyColumns(ops, w.q_ + s.nope, head, heads, s.rope, w.q_rope_, s.rope);
  ops.Rope(w.q_rope_, rows, s.heads, s.rope, s.rope, rope_style_, pass.cos, pass.sin);
  CopyColumns(ops, w.q_rope_, s.rope, heads, s.rope, w.q_ + s.nope, head);

  CopyColumns(ops, w.kv_, row_width, rows, s.latent, w.latent_, s.latent);
  CopyColumns(ops, w.kv_ + s.latent, row_width, rows, s.rope, w.k_rope_, s.rope);
  ops.RmsNorm(w.latent_, rows, s.latent, kv_norm_.data(), kLatentNormEps, w.latent_);
  ops.Rope(w.k_rope_, rows, 1, s.rope, s.rope, rope_style_, pass.cos, pass.sin);
  ops.MlaWrite(s, slab, pass.kv_runs, w.latent_, w.k_rope_);
  ops.ShowAttentionInput(kv_b_, w.latent_, rows);
}

void MlaLayer::Attend(const Ops& ops, const KvSlab& slab, const AttentionPass& pass,
                      std::span<const RowSelection> selections, MlaPass& w, float* out) const {
  if (!w.expanded_.empty()) {
    ops.MlaPrefillAttention(shape_, slab, w.expanded_, kv_b_, w.q_, w.heads_out_);
  }
  if (w.absorbed_rows_ > 0) AttendAbsorbed(ops, slab, selections, w);
  const MatMulTarget o[] = {{&o_, out}};
  ops.MatMul(w.heads_out_, pass.rows, o);
}

void MlaLayer::AttendAbsorbed(const Ops& ops, const KvSlab& slab,
                              std::span<const RowSelection> selections, MlaPass& w) const {
  const MlaShape& s = shape_;
  const int64_t head = s.nope + s.rope, row_width = s.latent + s.rope;
  w.keys_.clear();
  w.values_.clear();
  for (const MlaPass::Range& range : w.ranges_) {
    const float* const q = w.q_ + range.batch_row * s.heads * head;
    float* const absorbed_q = w.absorbed_q_ + range.absorbed_row * s.heads * row_width;
    const float* const latent = w.absorbed_out_ + range.absorbed_row * s.heads * s.latent;
    float* const out = w.heads_out_ + range.batch_row * s.heads * s.value;
    CopyColumns(ops, q + s.nope, head, range.rows * s.heads, s.rope, absorbed_q + s.latent,
                row_width);
    for (int64_t h = 0; h < s.heads; ++h) {
      w.keys_.push_back({&k_up_[static_cast<size_t>(h)], q + h * head, s.heads * head, range.rows,
                         absorbed_q + h * row_width, s.heads * row_width});
      w.values_.push_back({&v_up_[static_cast<size_t>(h)], latent + h * s.latent,
                           s.heads * s.latent, range.rows, out + h * s.value, s.heads * s.value});
    }
  }
  ops.MatMul(w.keys_);
  w.selections_.clear();
  if (!selections.empty()) {
    for (const MlaPass::Range& range : w.ranges_) {
      const auto rows =
          selections.subspan(static_cast<size_t>(range.batch_row), static_cast<size_t>(range.rows));
      w.selections_.insert(w.selections_.end(), rows.begin(), rows.end());
    }
  }
  ops.MlaDecodeAttention(s, slab, w.absorbed_, w.absorbed_q_, w.selections_, w.absorbed_out_);
  ops.MatMul(w.values_);
}

void AddMlaTensors(const ModelConfig& config, int64_t layer, std::vector<TensorSpec>& specs) {
  using enum TensorKind;
  using enum TensorSplit;
  const MlaShape s = MlaShapeOf(config);
  const int64_t hidden = config.hidden_size, q_size = s.heads * (s.nope + s.rope);
  const auto add = [&](const char* name, Shape shape, TensorKind kind,
                       TensorSplit split = kReplicated, int64_t units = 1) {
    specs.push_back({LayerName(layer, "self_attn.") + name, shape, kind, split, units});
  };
  if (const auto q_lora = config.mla->q_lora_rank) {
    add("q_a_proj.weight", {*q_lora, hidden}, kAttention);
    add("q_a_layernorm.weight", {*q_lora}, kNorm);
    add("q_b_proj.weight", {q_size, *q_lora}, kAttention, kRows, s.heads);
  } else {
    add("q_proj.weight", {q_size, hidden}, kAttention, kRows, s.heads);
  }
  add("kv_a_proj_with_mqa.weight", {s.latent + s.rope, hidden}, kAttention);
  add("kv_a_layernorm.weight", {s.latent}, kNorm);
  if (config.mla->split_kv_b) {
    add("k_b_proj.weight", {s.heads * s.latent, s.nope}, kAttention, kRows, s.heads);
    add("v_b_proj.weight", {s.heads * s.value, s.latent}, kAttention, kRows, s.heads);
  } else {
    add("kv_b_proj.weight", {s.heads * (s.nope + s.value), s.latent}, kAttention, kRows, s.heads);
  }
  add("o_proj.weight", {hidden, s.heads * s.value}, kAttention, kColumns, s.heads);
}

Status CheckMlaConfig(const ModelConfig& config) {
  if (!config.mla) {
    return InvalidArgument(fmt::format("{}: kv_lora_rank is missing", config.source));
  }
  if (config.attention_bias) {
    return Unimplemented(
        fmt::format("{}: attention_bias is not supported with latent attention", config.source));
  }
  return OkStatus();
}

}  // namespace tern
