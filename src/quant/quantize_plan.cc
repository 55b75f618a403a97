#include "quant/quantize_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

namespace tern {
namespace {

using Action = PlannedWeight::Action;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// 3 of "model.layers.3.mlp...", -1 of other names.
int64_t LayerOf(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return -1;
  int64_t layer = -1;
  std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const QuantSelection& selection)
      : checkpoint_(checkpoint),
        selection_(selection),
        prefix_(checkpoint.config().tensor_prefix),
        gguf_(checkpoint.format() == CheckpointFormat::kGguf) {}

  Result<QuantizePlan> Plan(std::vector<TensorSpec> specs, std::span<const KvScales> kv) {
    TERN_RETURN_IF_ERROR(CheckNotPacked());
    UntieHead(specs);
    for (size_t i = 0; i < specs.size(); ++i) {
      TERN_RETURN_IF_ERROR(Add(specs[i]));
    }
    plan_.specs.erase(
        std::remove_if(plan_.specs.begin(), plan_.specs.end(),
                       [&](const TensorSpec& spec) { return absent_.contains(spec.name); }),
        plan_.specs.end());
    std::vector<TensorSpec> choices = plan_.specs;
    if (tied_head_) choices.push_back(*tied_head_);
    TERN_RETURN_IF_ERROR(CheckSelection(selection_, choices, prefix_));
    TERN_RETURN_IF_ERROR(CheckWidths());
    TERN_RETURN_IF_ERROR(AddUnknown());
    AddKvScales(kv);
    return std::move(plan_);
  }

 private:
  Status Bad(const CheckpointTensor& tensor, const std::string& what) const {
    return InvalidArgument(
        fmt::format("{}: tensor '{}' {}", tensor.path(), tensor.stored_name, what));
  }

  Status CheckNotPacked() const {
    for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
      if (!tensor.name.ends_with(".weight_packed")) continue;
      return Bad(tensor, "is packed INT4 already: quantize the model that it was made from");
    }
    if (checkpoint_.config().quantization.method == QuantizationConfig::Method::kInt4Group) {
      return InvalidArgument(fmt::format(
          "{}: quantization_config says that the model is INT4 already", checkpoint_.path()));
    }
    return OkStatus();
  }

  // A head that shares the embedding's numbers gets its own when it is quantized.
  void UntieHead(std::vector<TensorSpec>& specs) {
    if (checkpoint_.config().tie_word_embeddings) {
      for (size_t i = 0; i < specs.size(); ++i) {
        if (specs[i].kind != TensorKind::kEmbedding) continue;
        TensorSpec head = specs[i];
        head.name = "lm_head.weight";
        head.kind = TensorKind::kHead;
        if (!Selects(selection_, head, prefix_)) {
          tied_head_ = head;
          break;
        }
        plan_.unties_head = true;
        specs.insert(specs.begin() + static_cast<int64_t>(i) + 1, head);
        break;
      }
    }
    for (TensorSpec spec : specs) {
      if (spec.name.ends_with(".v_b_proj.weight") && checkpoint_.config().mla->split_kv_b) continue;
      plan_.specs.push_back(std::move(spec));
    }
  }

  std::string OutputName(const std::string& name) const { return gguf_ ? name : prefix_ + name; }

  Status Add(const TensorSpec& spec) {
    const ModelConfig& config = checkpoint_.config();
    if (config.mla && config.mla->split_kv_b) {
      if (spec.name.ends_with(".v_b_proj.weight")) return OkStatus();
      if (spec.name.ends_with(".k_b_proj.weight")) return AddJoined(spec);
    }
    const bool own_head = plan_.unties_head && spec.kind == TensorKind::kHead;
    const std::string stored = own_head ? "model.embed_tokens.weight" : spec.name;
    if (spec.next_token && checkpoint_.Find(stored) == nullptr) {
      absent_.insert(spec.name);
      return OkStatus();
    }
    if (own_head) consumed_.insert(spec.name);
    PlannedWeight weight{.name = spec.name,
                         .kind = std::string(TensorKindName(spec.kind)),
                         .layer = LayerOf(spec.name)};
    if (spec.shape.rank() != 2) return AddVector(spec, std::move(weight));
    TERN_ASSIGN_OR_RETURN(const StoredWeight found,
                          FindWeight(checkpoint_, stored, spec.shape[0], spec.shape[1]));
    TERN_RETURN_IF_ERROR(CheckScales(found));
    for (const CheckpointTensor* tensor : found.tensors) {
      if (tensor != nullptr) consumed_.insert(tensor->name);
    }
    const bool fp8 = found.view.scheme == WeightView::Scheme::kFp8Block;
    const bool selected = Selects(selection_, spec, prefix_);
    if (!gguf_ &&
        ((!fp8 && !selected) || (fp8 && selected && selection_.format == QuantFormat::kFp8))) {
      Copy(found, weight);
      return OkStatus();
    }
    weight.source = WeightSource::Stored(found);
    if (const int64_t head_dim = RotaryHead(spec.name)) {
      weight.source = weight.source.Deinterleaved(head_dim);
    }
    return AddMatrix(std::move(weight), selected);
  }

  // The head length of q_proj and k_proj whose rows a file stores in pairs, else 0.
  int64_t RotaryHead(const std::string& name) const {
    if (!checkpoint_.rotary_rows_interleaved()) return 0;
    const bool rotary = name.find(".self_attn.q_proj.") != std::string::npos ||
                        name.find(".self_attn.k_proj.") != std::string::npos;
    const ModelConfig& config = checkpoint_.config();
    return rotary ? config.head_dim.value_or(config.hidden_size / config.num_attention_heads) : 0;
  }

  Status AddJoined(const TensorSpec& spec) {
    const ModelConfig& config = checkpoint_.config();
    const MlaConfig& mla = *config.mla;
    const int64_t heads = config.num_attention_heads;
    const std::string base = spec.name.substr(0, spec.name.size() - std::strlen("k_b_proj.weight"));
    TERN_ASSIGN_OR_RETURN(
        const StoredWeight keys,
        FindWeight(checkpoint_, spec.name, heads * mla.kv_lora_rank, mla.qk_nope_head_dim));
    TERN_ASSIGN_OR_RETURN(const StoredWeight values,
                          FindWeight(checkpoint_, base + "v_b_proj.weight", heads * mla.v_head_dim,
                                     mla.kv_lora_rank));
    consumed_.insert(keys.data().name);
    consumed_.insert(values.data().name);
    TensorSpec joined = spec;
    joined.name = base + "kv_b_proj.weight";
    joined.shape = Shape{heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank};
    for (TensorSpec& listed : plan_.specs) {
      if (listed.name == spec.name) listed = joined;
    }
    PlannedWeight weight{.name = joined.name,
                         .kind = std::string(TensorKindName(spec.kind)),
                         .layer = LayerOf(spec.name),
                         .source = WeightSource::JoinedHalves(keys, values, heads)};
    return AddMatrix(std::move(weight), Selects(selection_, joined, prefix_));
  }

  Status AddVector(const TensorSpec& spec, PlannedWeight weight) {
    TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor,
                          checkpoint_.Require(spec.name, spec.shape));
    consumed_.insert(tensor->name);
    if (!gguf_) {
      Copy({WeightView(), {tensor, nullptr, nullptr}}, weight);
      return OkStatus();
    }
    if (!IsFloat(tensor->view.dtype)) {
      return Bad(*tensor, fmt::format("has type {}, a vector must be a float type",
                                      InfoOf(tensor->view.dtype).name));
    }
    weight.source = WeightSource::Vector(*tensor);
    if (const int64_t head_dim = RotaryHead(spec.name)) {
      weight.source = weight.source.Deinterleaved(head_dim);
    }
    const bool correction = spec.name.ends_with("e_score_correction_bias");
    weight.action = correction ? Action::kF32 : Action::kBf16;
    weight.outputs = {
        {OutputName(weight.name), correction ? DType::kF32 : DType::kBF16, spec.shape}};
    Push(std::move(weight));
    return OkStatus();
  }

  static bool IsFloat(DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  }

  // The tensors of a weight, as they are.
  void Copy(const StoredWeight& found, const PlannedWeight& like) {
    for (const CheckpointTensor* tensor : found.tensors) {
      if (tensor == nullptr) continue;
      PlannedWeight weight = like;
      weight.name = tensor->name;
      weight.tensor = tensor;
      weight.outputs = {{tensor->stored_name, tensor->view.dtype, tensor->view.shape}};
      Push(std::move(weight));
    }
  }

  Status AddMatrix(PlannedWeight weight, bool selected) {
    const int64_t rows = weight.source.rows(), columns = weight.source.columns();
    const std::string name = OutputName(weight.name);
    if (!selected) {
      weight.action = Action::kBf16;
      weight.outputs = {{name, DType::kBF16, Shape{rows, columns}}};
    } else if (selection_.format == QuantFormat::kFp8) {
      weight.action = Action::kFp8;
      weight.outputs = {
          {name, DType::kF8E4M3, Shape{rows, columns}},
          {name + "_scale_inv", DType::kF32, Shape{CeilDiv(rows, 128), CeilDiv(columns, 128)}}};
    } else {
      weight.action = Action::kInt4;
      if (columns % selection_.group != 0) odd_.push_back(plan_.weights.size());
      weight.outputs = {{name + "_packed", DType::kI32, Shape{rows, columns / 8}},
                        {name + "_scale", DType::kBF16, Shape{rows, columns / selection_.group}},
                        {name + "_shape", DType::kI64, Shape{2}}};
    }
    Push(std::move(weight));
    return OkStatus();
  }

  Status CheckWidths() const {
    if (odd_.empty()) return OkStatus();
    const PlannedWeight& weight = plan_.weights[odd_.front()];
    const std::string others =
        odd_.size() == 1 ? "" : fmt::format(" ({} more weights likewise)", odd_.size() - 1);
    return Bad(weight.source.tensor(),
               fmt::format("has {} input features, no multiple of --group {}{}: take a smaller "
                           "--group, or leave it out with --exclude '{}'",
                           weight.source.columns(), selection_.group, others,
                           ModuleOfWeight(weight.name)));
  }

  // What the architecture does not ask for goes along, so that nothing of a published checkpoint is
  // lost; an FP8 weight among it only where the result's config lets FP8 be.
  Status AddUnknown() {
    for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
      if (consumed_.contains(tensor.name)) continue;
      if (gguf_) {
        // The config's rope parameters say the same.
        if (tensor.name == "rope_freqs.weight") continue;
        return Bad(tensor, "is of no use to the architecture, and has no Hugging Face name");
      }
      if (tensor.name.ends_with("_scale_inv") && selection_.format == QuantFormat::kInt4) {
        continue;  // goes with its weight
      }
      plan_.unknown.push_back(tensor.stored_name);
      PlannedWeight weight{.name = tensor.name, .kind = kOtherKind, .layer = LayerOf(tensor.name)};
      const bool fp8 = tensor.view.dtype == DType::kF8E4M3;
      if (!fp8 || selection_.format == QuantFormat::kFp8) {
        Copy({WeightView(), {&tensor, nullptr, nullptr}}, weight);
        continue;
      }
      if (tensor.view.shape.rank() != 2) {
        return Bad(tensor, "is FP8 and no matrix, and the architecture does not know it");
      }
      TERN_ASSIGN_OR_RETURN(
          const StoredWeight found,
          FindWeight(checkpoint_, tensor.name, tensor.view.shape[0], tensor.view.shape[1]));
      TERN_RETURN_IF_ERROR(CheckScales(found));
      weight.source = WeightSource::Stored(found);
      weight.action = Action::kBf16;
      weight.outputs = {{tensor.stored_name, DType::kBF16, tensor.view.shape}};
      Push(std::move(weight));
    }
    return OkStatus();
  }

  void AddKvScales(std::span<const KvScales> kv) {
    for (size_t layer = 0; layer < kv.size(); ++layer) {
      for (const auto& [name, value] :
           {std::pair("k_scale", kv[layer].k), {"v_scale", kv[layer].v}}) {
        if (value == 0) continue;
        PlannedWeight weight{.name = LayerName(static_cast<int64_t>(layer), "self_attn.") + name,
                             .kind = "kv_scale",
                             .layer = static_cast<int64_t>(layer),
                             .action = Action::kConstant};
        weight.constant.assign(reinterpret_cast<const char*>(&value), sizeof(value));
        weight.outputs = {{OutputName(weight.name), DType::kF32, Shape{1}}};
        // Scales that the input brought are replaced.
        std::erase_if(plan_.weights, [&](const PlannedWeight& w) { return w.name == weight.name; });
        std::erase(plan_.unknown, OutputName(weight.name));
        Push(std::move(weight));
      }
    }
  }

  void Push(PlannedWeight weight) {
    if (weight.tensor != nullptr) weight.input_bytes = weight.tensor->view.bytes.size();
    if (weight.tensor == nullptr && weight.action != Action::kConstant) {
      weight.input_bytes = weight.source.stored_bytes();
    }
    plan_.input_bytes += weight.input_bytes;
    plan_.weights.push_back(std::move(weight));
  }

  const Checkpoint& checkpoint_;
  const QuantSelection& selection_;
  const std::string prefix_;
  const bool gguf_;
  QuantizePlan plan_;
  std::optional<TensorSpec> tied_head_;  // stays tied: --exclude may name it
  std::set<std::string> consumed_, absent_;
  std::vector<size_t> odd_;  // weights whose columns are no multiple of the group
};

// Cuts the weights into files and places every tensor.
Status PlaceShards(uint64_t shard_bytes, QuantizePlan* plan) {
  uint64_t filled = 0;
  for (size_t i = 0; i < plan->weights.size(); ++i) {
    uint64_t bytes = 0;
    for (const SafetensorsEntry& entry : plan->weights[i].outputs) {
      TERN_ASSIGN_OR_RETURN(const uint64_t size, entry.bytes());
      bytes += size;
    }
    if (plan->shards.empty() || filled + bytes > shard_bytes) {
      plan->shards.push_back({.first = i});
      filled = 0;
    }
    filled += bytes;
    plan->output_bytes += bytes;
    ++plan->shards.back().count;
  }
  const size_t count = plan->shards.size();
  for (size_t s = 0; s < count; ++s) {
    PlannedShard& shard = plan->shards[s];
    shard.file = count == 1 ? "model.safetensors"
                            : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, count);
    std::vector<SafetensorsEntry> entries;
    const std::span weights(plan->weights.data() + shard.first, shard.count);
    for (const PlannedWeight& weight : weights) {
      entries.insert(entries.end(), weight.outputs.begin(), weight.outputs.end());
    }
    TERN_ASSIGN_OR_RETURN(SafetensorsLayout layout, LayOutSafetensors(entries));
    shard.header = std::move(layout.header);
    shard.file_bytes = layout.file_bytes;
    auto offset = layout.offsets.begin();
    for (PlannedWeight& weight : weights) {
      weight.offsets.assign(offset, offset + static_cast<int64_t>(weight.outputs.size()));
      offset += static_cast<int64_t>(weight.outputs.size());
    }
  }
  return OkStatus();
}

}  // namespace

Result<QuantizePlan> MakeQuantizePlan(const Checkpoint& checkpoint, std::vector<TensorSpec> specs,
                                      const QuantSelection& selection, std::span<const KvScales> kv,
                                      uint64_t shard_bytes) {
  Planner planner(checkpoint, selection);
  TERN_ASSIGN_OR_RETURN(QuantizePlan plan, planner.Plan(std::move(specs), kv));
  TERN_RETURN_IF_ERROR(PlaceShards(shard_bytes, &plan));
  return plan;
}

}  // namespace tern
