#include "models/deepseek_v3.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "models/decoder.h"
#include "models/mla.h"

namespace tern {
namespace {

class DeepseekV3Attention final : public AttentionStack {
 public:
  DeepseekV3Attention(const ModelConfig& config, const Ops& ops) : config_(config), ops_(ops) {}

  Status Load(WeightLoader& loader, int64_t layer) override {
    TERN_ASSIGN_OR_RETURN(layers_.emplace_back(), MlaLayer::Load(loader, config_, layer));
    return OkStatus();
  }
  KvLayerSpec kv_layer(int64_t) const override {
    return {.kind = KvLayerSpec::Kind::kMla,
            .latent = config_.mla->kv_lora_rank,
            .rope = config_.mla->qk_rope_head_dim};
  }
  int64_t rotary_dims() const override { return config_.mla->qk_rope_head_dim; }
  int64_t floats_per_row() const override { return MlaPass::FloatsPerRow(config_); }
  uint64_t scratch_bytes() const override {
    return ops_.MlaPrefillBytes(MlaShapeOf(config_), config_.max_position_embeddings);
  }

  Status Begin(const AttentionPass& pass) override {
    return shared_.Begin(config_, pass, std::numeric_limits<int64_t>::max());
  }
  void Forward(int64_t layer, const AttentionPass& pass, const float* normed, float* out) override {
    const MlaLayer& mla = layers_[static_cast<size_t>(layer)];
    const KvSlab& slab = pass.format->slab(layer);
    mla.Project(ops_, slab, pass, normed, shared_);
    mla.Attend(ops_, slab, pass, {}, shared_, out);
  }

 private:
  const ModelConfig config_;
  const Ops& ops_;
  std::vector<MlaLayer> layers_;
  MlaPass shared_;
};

}  // namespace

Result<std::unique_ptr<Model>> LoadDeepseekV3(std::shared_ptr<const Checkpoint> checkpoint,
                                              Ops& ops, const LoadOptions& options) {
  TERN_ASSIGN_OR_RETURN(const auto specs, DeepseekV3TensorList(checkpoint->config()));
  auto attention = std::make_unique<DeepseekV3Attention>(checkpoint->config(), ops);
  return LoadDecoder(std::move(checkpoint), ops, options, std::move(attention), specs);
}

Result<std::vector<TensorSpec>> DeepseekV3TensorList(const ModelConfig& config) {
  TERN_RETURN_IF_ERROR(CheckDecoderConfig(config));
  TERN_RETURN_IF_ERROR(CheckMlaConfig(config));
  if (config.dsa) {
    return InvalidArgument(fmt::format("{}: index_topk belongs to another architecture than {}",
                                       config.source, config.architecture));
  }
  return DecoderTensorList(config, AddMlaTensors);
}

}  // namespace tern
