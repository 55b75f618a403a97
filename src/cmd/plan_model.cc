#include "cmd/plan_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "models/mla.h"
#include "models/registry.h"

namespace tern {
namespace {

Status CheckRanks(const ModelConfig& config, int64_t tp) {
  if (config.num_attention_heads % tp != 0) {
    return InvalidArgument(fmt::format("--tp {}: {} attention heads of {} cannot be split evenly",
                                       tp, config.num_attention_heads, config.source));
  }
  const int64_t kv_heads = config.num_key_value_heads;
  if (!config.mla && kv_heads % tp != 0 && tp % kv_heads != 0) {
    return InvalidArgument(fmt::format("--tp {}: {} key-value heads of {} cannot be split evenly",
                                       tp, kv_heads, config.source));
  }
  return OkStatus();
}

int64_t HeadDim(const ModelConfig& config) {
  return config.head_dim.value_or(config.hidden_size / config.num_attention_heads);
}

bool HasIndexer(const ModelConfig& config, int64_t layer) {
  return config.dsa && config.dsa->full_layers[static_cast<size_t>(layer)];
}

KvLayerSpec KvLayerOf(const ModelConfig& config, int64_t layer, int64_t tp) {
  if (config.mla) {
    return {.kind = KvLayerSpec::Kind::kMla,
            .latent = config.mla->kv_lora_rank,
            .rope = config.mla->qk_rope_head_dim,
            .index_dim = HasIndexer(config, layer) ? config.dsa->index_head_dim : 0};
  }
  return {.kind = KvLayerSpec::Kind::kGqa,
          .kv_heads = std::max<int64_t>(config.num_key_value_heads / tp, 1),
          .head_dim = HeadDim(config)};
}

// As the file has it, where there is one; else by the recipe.
Result<RecipeWeight> StoredIn(const Checkpoint* file, const TensorSpec& spec,
                              const ModelConfig& config, WeightRecipe recipe) {
  if (file == nullptr) return StoredAs(spec, config, recipe);
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, file->Require(spec.name, spec.shape));
  return RecipeWeight{.format = std::string(InfoOf(tensor->view.dtype).name),
                      .bytes = tensor->view.bytes.size()};
}

// Adds matrices [rows, columns] of one format to a group of theirs.
void AddToGroup(WeightGroup::Use use, const std::string& format, double rows, double columns,
                double bytes, double products, SpeedModel* speed) {
  auto& groups = speed->groups;
  auto group = std::find_if(groups.begin(), groups.end(), [&](const WeightGroup& one) {
    return one.use == use && one.format == format && one.columns == columns;
  });
  if (group == groups.end()) {
    group = groups.insert(groups.end(), {.use = use, .format = format, .columns = columns});
  }
  const double all = group->products + products;
  group->rows = (group->rows * group->products + rows * products) / all;
  group->bytes += bytes;
  group->products = all;
}

// Regions of a decode step that threads share: products that have their input in common are one,
// as are all experts' first ones and all their second ones; attention is two.
double RegionsOf(const ModelConfig& config, int64_t expert_layers) {
  const auto layers = static_cast<double>(config.num_hidden_layers);
  // MLA: down, up, keys of heads, attention, values of heads, out; else: q k v, attention, out.
  const double attention = config.mla ? 5 + (config.mla->q_lora_rank ? 1 : 0) + 1 : 4;
  // Gate and up, down; a mixture has a router, experts and shared experts.
  const auto sparse = static_cast<double>(expert_layers);
  const double shared = config.moe && config.moe->n_shared_experts > 0 ? 2 : 0;
  return layers * (attention + 2) + sparse * (1 + shared) + 1;
}

// What attention multiplies, with one rank's heads.
void AddAttention(const ModelConfig& config, int64_t tp, SpeedModel* speed) {
  const auto heads = static_cast<double>(config.num_attention_heads / tp);
  const auto layers = static_cast<double>(config.num_hidden_layers);
  if (config.mla) {
    const MlaConfig& mla = *config.mla;
    speed->decode_products =
        layers * heads * static_cast<double>(2 * mla.kv_lora_rank + mla.qk_rope_head_dim);
    speed->prefill_products =
        layers * heads *
        static_cast<double>(mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim);
  } else {
    speed->decode_products = speed->prefill_products =
        layers * heads * static_cast<double>(2 * HeadDim(config));
  }
  if (!config.dsa) return;
  const auto& full = config.dsa->full_layers;
  const auto indexers = static_cast<double>(std::count(full.begin(), full.end(), true));
  // Indexers are small: every rank runs them whole.
  speed->index_products =
      indexers * static_cast<double>(config.dsa->index_n_heads * config.dsa->index_head_dim);
  speed->most_attended = config.dsa->index_topk;
}

}  // namespace

Result<PlannedModel> PlanModel(const std::string& path, WeightRecipe recipe, int64_t tp) {
  PlannedModel planned{.tp = tp};
  std::unique_ptr<Checkpoint> gguf;
  if (path.ends_with(".gguf")) {
    TERN_ASSIGN_OR_RETURN(gguf, Checkpoint::Open(path));
    planned.config = gguf->config();
  } else {
    TERN_ASSIGN_OR_RETURN(planned.config,
                          LoadModelConfig(IsDirectory(path) ? path + "/config.json" : path));
  }
  const ModelConfig& config = planned.config;
  TERN_ASSIGN_OR_RETURN(const auto specs, TensorList(config));
  TERN_RETURN_IF_ERROR(CheckRanks(config, tp));
  SpeedModel& speed = planned.speed;
  if (config.moe) {
    const auto& sparse = config.moe->sparse_layers;
    speed.expert_layers = std::count(sparse.begin(), sparse.end(), true);
    speed.experts = config.moe->n_routed_experts;
    speed.experts_per_token = config.moe->num_experts_per_tok;
  }
  for (const TensorSpec& spec : specs) {
    TERN_ASSIGN_OR_RETURN(const RecipeWeight weight, StoredIn(gguf.get(), spec, config, recipe));
    if (__builtin_add_overflow(planned.checkpoint_bytes, weight.bytes, &planned.checkpoint_bytes)) {
      return InvalidArgument(fmt::format("{}: the size of its weights overflows", config.source));
    }
    const bool replicated = spec.split == TensorSplit::kReplicated || spec.split_units < tp;
    if (replicated) planned.replicated_bytes += weight.bytes;
    if (spec.next_token) {
      planned.next_token_bytes += weight.bytes;
      continue;
    }
    const double share = replicated ? 1.0 : 1.0 / static_cast<double>(tp);
    const double bytes = share * static_cast<double>(weight.bytes);
    const double products =
        spec.shape.rank() == 2 ? share * static_cast<double>(spec.shape.elements().value_or(0)) : 0;
    const auto add = [&](WeightGroup::Use use, const std::string& format, double bytes_of,
                         double products_of) {
      AddToGroup(use, format, static_cast<double>(spec.shape[0]),
                 static_cast<double>(spec.shape[1]), bytes_of, products_of, &speed);
    };
    if (spec.kind == TensorKind::kHead ||
        (spec.kind == TensorKind::kEmbedding && config.tie_word_embeddings)) {
      speed.head_bytes += bytes;
      speed.head_products += products;
      add(WeightGroup::Use::kHead, weight.format, bytes, products);
    } else if (spec.kind == TensorKind::kExpert) {
      const auto all = static_cast<double>(speed.expert_layers * speed.experts);
      speed.expert_bytes += bytes / all;
      speed.expert_products += products / all;
      add(WeightGroup::Use::kExpert, weight.format, bytes / all, products / all);
    } else if (config.mla && (spec.name.ends_with(".kv_b_proj.weight") ||
                              spec.name.ends_with(".k_b_proj.weight") ||
                              spec.name.ends_with(".v_b_proj.weight"))) {
      speed.kv_up_bytes += bytes;
      speed.kv_up_products += products;
      // Halves: keys of a head have its nope part for columns, values the latent.
      const double nope = static_cast<double>(config.mla->qk_nope_head_dim);
      const double value = static_cast<double>(config.mla->v_head_dim);
      const double latent = static_cast<double>(config.mla->kv_lora_rank);
      for (const auto& [rows, columns, part] :
           {std::tuple(latent, nope, nope), std::tuple(value, latent, value)}) {
        const double share_of = products * part / (nope + value);
        AddToGroup(WeightGroup::Use::kKvUp, "BF16", rows, columns, 2 * share_of, share_of, &speed);
      }
    } else if (spec.kind != TensorKind::kEmbedding) {  // its rows are looked up
      speed.weight_bytes += bytes;
      speed.weight_products += products;
      if (products > 0) {  // here, a router is in float32 whatever the checkpoint holds
        const bool router = spec.kind == TensorKind::kRouter;
        add(WeightGroup::Use::kRow, router ? "F32" : weight.format, router ? 4 * products : bytes,
            products);
      }
    }
  }
  speed.layers = config.num_hidden_layers;
  speed.regions = RegionsOf(config, speed.expert_layers);
  // Absorbed halves of kv_b are BF16 whatever the checkpoint holds (models/mla.cc).
  speed.absorbed_bytes = 2 * speed.kv_up_products;
  AddAttention(config, tp, &speed);
  const auto ranks = static_cast<uint64_t>(tp);
  planned.rank_weight_bytes =
      planned.checkpoint_bytes / ranks + (planned.checkpoint_bytes % ranks != 0);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    planned.kv_layers.push_back(KvLayerOf(config, i, tp));
  }
  return planned;
}

PlannedLayer PlannedLayerOf(const ModelConfig& config, KvFormat format) {
  PlannedLayer layer = {.latent = config.mla.has_value(),
                        .format = format,
                        .hidden = config.hidden_size,
                        .intermediate = config.intermediate_size};
  if (config.mla) {
    layer.mla = MlaShapeOf(config);
    layer.q_latent = config.mla->q_lora_rank.value_or(0);
  } else {
    layer.gqa = {.heads = config.num_attention_heads,
                 .kv_heads = config.num_key_value_heads,
                 .head_dim = HeadDim(config)};
  }
  if (config.moe) {
    const MoeConfig& moe = *config.moe;
    layer.intermediate =
        moe.moe_intermediate_size * (moe.num_experts_per_tok + moe.n_shared_experts);
  }
  return layer;
}

Status SetCacheBytes(const std::vector<KvLayerSpec>& layers, KvFormat format, int64_t page_tokens,
                     const std::vector<int64_t>& bf16_layers, SpeedModel* speed) {
  std::vector<KvLayerSpec> rows = layers;
  for (KvLayerSpec& layer : rows) layer.index_dim = 0;
  TERN_ASSIGN_OR_RETURN(const PageFormat all,
                        PageFormat::Make(layers, format, page_tokens, bf16_layers));
  TERN_ASSIGN_OR_RETURN(const PageFormat without,
                        PageFormat::Make(rows, format, page_tokens, bf16_layers));
  speed->row_bytes = static_cast<double>(without.bytes_per_token());
  speed->index_bytes = static_cast<double>(all.bytes_per_token() - without.bytes_per_token());
  return OkStatus();
}

}  // namespace tern
