#include "models/glm_moe_dsa.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/decoder.h"
#include "models/dsa.h"
#include "models/mla.h"

namespace tern {
namespace {

// A next-token layer, past the last, has an indexer of its own.
bool IsFull(const DsaConfig& dsa, int64_t layer) {
  return layer >= static_cast<int64_t>(dsa.full_layers.size()) ||
         dsa.full_layers[static_cast<size_t>(layer)];
}

class GlmMoeDsaAttention final : public AttentionStack {
 public:
  GlmMoeDsaAttention(const ModelConfig& config, const Ops& ops) : config_(config), ops_(ops) {}

  Status Load(WeightLoader& loader, int64_t layer) override {
    TERN_ASSIGN_OR_RETURN(layers_.emplace_back(), MlaLayer::Load(loader, config_, layer));
    indexers_.emplace_back();
    if (IsFull(*config_.dsa, layer)) {
      TERN_ASSIGN_OR_RETURN(indexers_.back(), Indexer::Load(loader, config_, layer));
    }
    return OkStatus();
  }
  KvLayerSpec kv_layer(int64_t layer) const override {
    return {.kind = KvLayerSpec::Kind::kMla,
            .latent = config_.mla->kv_lora_rank,
            .rope = config_.mla->qk_rope_head_dim,
            .index_dim = IsFull(*config_.dsa, layer) ? config_.dsa->index_head_dim : 0};
  }
  int64_t rotary_dims() const override { return config_.mla->qk_rope_head_dim; }
  int64_t floats_per_row() const override {
    return MlaPass::FloatsPerRow(config_) + DsaPass::FloatsPerRow(config_);
  }
  uint64_t scratch_bytes() const override {
    const DsaConfig& dsa = *config_.dsa;
    const IndexerShape indexer{.heads = dsa.index_n_heads, .dim = dsa.index_head_dim};
    const int64_t positions = config_.max_position_embeddings;
    return ops_.MlaPrefillBytes(MlaShapeOf(config_), std::min(positions, dsa.index_topk)) +
           ops_.IndexerSelectBytes(indexer, positions, positions);
  }

  Status Begin(const AttentionPass& pass) override {
    TERN_RETURN_IF_ERROR(selected_.Begin(*config_.dsa, pass));
    return shared_.Begin(config_, pass, config_.dsa->index_topk);
  }
  void Forward(int64_t layer, const AttentionPass& pass, const float* normed, float* out) override {
    const MlaLayer& mla = layers_[static_cast<size_t>(layer)];
    const KvSlab& slab = pass.format->slab(layer);
    mla.Project(ops_, slab, pass, normed, shared_);
    if (const auto& indexer = indexers_[static_cast<size_t>(layer)]) {
      indexer->Select(ops_, pass.format->index_slab(layer), pass, normed, shared_.query_latent(),
                      selected_);
    }
    mla.Attend(ops_, slab, pass, selected_.selections(), shared_, out);
  }

 private:
  const ModelConfig config_;
  const Ops& ops_;
  std::vector<MlaLayer> layers_;
  std::vector<std::optional<Indexer>> indexers_;  // none: the layer shares the one before it
  MlaPass shared_;
  DsaPass selected_;
};

}  // namespace

Result<std::unique_ptr<Model>> LoadGlmMoeDsa(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                             const LoadOptions& options) {
  TERN_ASSIGN_OR_RETURN(const auto specs, GlmMoeDsaTensorList(checkpoint->config()));
  auto attention = std::make_unique<GlmMoeDsaAttention>(checkpoint->config(), ops);
  return LoadDecoder(std::move(checkpoint), ops, options, std::move(attention), specs);
}

Result<std::vector<TensorSpec>> GlmMoeDsaTensorList(const ModelConfig& config) {
  TERN_RETURN_IF_ERROR(CheckDecoderConfig(config));
  TERN_RETURN_IF_ERROR(CheckMlaConfig(config));
  if (!config.dsa) {
    return InvalidArgument(fmt::format("{}: index_topk is missing", config.source));
  }
  return DecoderTensorList(config,
                           [](const ModelConfig& c, int64_t layer, std::vector<TensorSpec>& specs) {
                             AddMlaTensors(c, layer, specs);
                             if (IsFull(*c.dsa, layer)) AddIndexerTensors(c, layer, specs);
                           });
}

}  // namespace tern
