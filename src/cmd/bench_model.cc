#include "cmd/bench_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "cmd/load_model.h"
#include "models/registry.h"

namespace tern {
namespace {

Result<ModelConfig> ConfigOf(const ModelOptions& options) {
  if (options.load_format == "dummy") {
    const std::string& path = options.model_path;
    return LoadModelConfig(IsDirectory(path) ? path + "/config.json" : path);
  }
  TERN_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(options.model_path));
  return checkpoint->config();
}

}  // namespace

Result<std::unique_ptr<LoadedBenchModel>> LoadedBenchModel::Load(const ModelOptions& options,
                                                                 Ops& ops) {
  std::unique_ptr<LoadedBenchModel> result(new LoadedBenchModel);
  TERN_ASSIGN_OR_RETURN(result->config_, ConfigOf(options));
  LoadOptions load;
  TERN_ASSIGN_OR_RETURN(load.format, LoadFormatNamed(options.load_format));
  TERN_ASSIGN_OR_RETURN(load.dummy_recipe, WeightRecipeNamed(options.dummy_recipe));
  TERN_ASSIGN_OR_RETURN(result->model_, LoadWithProgress(options.model_path, ops, load));
  result->page_tokens_ = options.engine.page_tokens;
  TERN_ASSIGN_OR_RETURN(result->kv_bf16_layers_, ParseKvBf16Layers(options.kv_bf16_layers));
  const ModelInfo& info = result->model_->info();
  BenchModelFacts& facts = result->facts_;
  facts.path = options.model_path;
  if (options.load_format == "dummy") facts.recipe = options.dummy_recipe;
  facts.architecture = info.architecture;
  facts.vocab_size = info.vocab_size;
  facts.context_length = info.context_length;
  facts.weight_bytes = info.weight_bytes;
  return result;
}

std::unique_ptr<LoadedBenchModel> LoadedBenchModel::SameWeights() const {
  std::unique_ptr<LoadedBenchModel> result(new LoadedBenchModel);
  result->model_ = model_;
  result->config_ = config_;
  result->page_tokens_ = page_tokens_;
  result->kv_bf16_layers_ = kv_bf16_layers_;
  result->facts_ = facts_;
  return result;
}

Status LoadedBenchModel::SetKvFormat(const std::string& name) {
  sequences_.clear();
  TERN_ASSIGN_OR_RETURN(const KvFormat format, ChooseKvFormat(name, model_->info()));
  TERN_ASSIGN_OR_RETURN(
      format_, PageFormat::Make(model_->info().kv_layers, format, page_tokens_, kv_bf16_layers_));
  facts_.kv_format = KvFormatName(format);
  facts_.kv_bytes_per_token = format_->bytes_per_token();
  return OkStatus();
}

Status LoadedBenchModel::Reserve(int64_t sequences, int64_t positions) {
  if (positions > facts_.context_length) {
    return InvalidArgument(fmt::format("{} positions exceed the context of {} that {} was made for",
                                       positions, facts_.context_length, facts_.path));
  }
  const int64_t pages = (positions + page_tokens_ - 1) / page_tokens_;
  const int64_t page_bytes = format_->page_bytes();
  const auto needed = static_cast<size_t>(sequences * pages * page_bytes);
  sequences_.clear();
  if (pages_.size_bytes() < needed) {
    pages_ = Buffer();
    pages_ = Buffer(needed);
    if (pages_.data() == nullptr) {
      return ResourceExhausted(
          fmt::format("no memory for {} KV pages of {} bytes", sequences * pages, page_bytes));
    }
    // As pages of a server's pool, these have been written before.
    std::memset(pages_.data(), 0, needed);
  }
  sequences_.resize(static_cast<size_t>(sequences));
  std::byte* next = pages_.data();
  for (Sequence& sequence : sequences_) {
    for (int64_t i = 0; i < pages; ++i, next += page_bytes) sequence.pages.push_back(next);
  }
  logits_.resize(static_cast<size_t>(sequences * facts_.vocab_size));
  return OkStatus();
}

ForwardRun LoadedBenchModel::NextRun(const Sequence& sequence, int64_t first_row, int64_t rows,
                                     RowForm form) const {
  return {.kv = {.format = &*format_, .pages = sequence.pages},
          .first_position = sequence.position,
          .first_row = first_row,
          .rows = rows,
          .form = form};
}

Status LoadedBenchModel::Prefill(int64_t index, std::span<const int32_t> tokens) {
  Sequence& sequence = sequences_[static_cast<size_t>(index)];
  const auto rows = static_cast<int64_t>(tokens.size());
  const ForwardRun run = NextRun(sequence, 0, rows, RowForm::kPrefill);
  const int32_t last = static_cast<int32_t>(rows) - 1;
  TERN_RETURN_IF_ERROR(model_->Forward(
      {.tokens = tokens, .runs = {&run, 1}, .logit_rows = {&last, 1}}, logits_.data()));
  sequence.position += rows;
  return OkStatus();
}

void LoadedBenchModel::Spread(int64_t positions) {
  const auto page_bytes = static_cast<size_t>(format_->page_bytes());
  for (Sequence& sequence : sequences_) {
    const int64_t whole = std::max<int64_t>(sequence.position / page_tokens_, 1);
    const int64_t held = (sequence.position + page_tokens_ - 1) / page_tokens_;
    for (int64_t page = held; page * page_tokens_ < positions; ++page) {
      std::memcpy(sequence.pages[static_cast<size_t>(page)],
                  sequence.pages[static_cast<size_t>(page % whole)], page_bytes);
    }
    sequence.position = positions;
  }
}

Status LoadedBenchModel::Decode(std::span<const int32_t> tokens) {
  std::vector<ForwardRun> runs;
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    runs.push_back(NextRun(sequences_[i], static_cast<int64_t>(i), 1, RowForm::kDecode));
  }
  TERN_RETURN_IF_ERROR(
      model_->Forward({.tokens = tokens, .runs = runs, .logit_rows = rows}, logits_.data()));
  for (size_t i = 0; i < tokens.size(); ++i) ++sequences_[i].position;
  return OkStatus();
}

void LoadedBenchModel::Rewind(int64_t positions) {
  for (Sequence& sequence : sequences_) sequence.position = positions;
}

int64_t LoadedBenchModel::Attended(int64_t positions) const {
  return config_.dsa ? std::min(positions, config_.dsa->index_topk) : positions;
}

double LoadedBenchModel::DecodeAttentionBytes(int64_t positions) const {
  int64_t index_bytes = 0;  // of a token, as docs/formats/kv_page.md has them
  for (const KvLayerSpec& layer : model_->info().kv_layers) {
    if (layer.index_dim == 0) continue;
    const bool wide = format_->format() == KvFormat::kBf16 || format_->format() == KvFormat::kF32;
    const int64_t number = format_->format() == KvFormat::kF32 ? 4 : 2;
    index_bytes += wide ? layer.index_dim * number : layer.index_dim + 4;
  }
  const int64_t row_bytes = format_->bytes_per_token() - index_bytes;
  return static_cast<double>(row_bytes * Attended(positions) + index_bytes * positions);
}

double LoadedBenchModel::DecodeAttentionOps(int64_t positions) const {
  double operations = 0;
  const auto heads = static_cast<double>(config_.num_attention_heads);
  for (const KvLayerSpec& layer : model_->info().kv_layers) {
    const bool mla = layer.kind == KvLayerSpec::Kind::kMla;
    // Queries meet keys and weights meet values, of every head.
    const int64_t width = mla ? 2 * layer.latent + layer.rope : 2 * layer.head_dim;
    operations += 2 * heads * static_cast<double>(width * Attended(positions));
    if (layer.index_dim > 0 && config_.dsa) {
      operations += 2.0 * static_cast<double>(config_.dsa->index_n_heads * layer.index_dim) *
                    static_cast<double>(positions);
    }
  }
  return operations;
}

double LoadedBenchModel::PrefillAttentionOps(int64_t first, int64_t rows) const {
  double operations = 0;
  const auto heads = static_cast<double>(config_.num_attention_heads);
  double attended = 0, indexed = 0;  // positions, over all rows
  for (int64_t i = 1; i <= rows; ++i) {
    attended += static_cast<double>(Attended(first + i));
    indexed += static_cast<double>(first + i);
  }
  for (const KvLayerSpec& layer : model_->info().kv_layers) {
    const bool mla = layer.kind == KvLayerSpec::Kind::kMla && config_.mla;
    const int64_t width = mla ? config_.mla->qk_nope_head_dim + config_.mla->qk_rope_head_dim +
                                    config_.mla->v_head_dim
                              : 2 * layer.head_dim;
    operations += 2 * heads * static_cast<double>(width) * attended;
    if (layer.index_dim > 0 && config_.dsa) {
      operations +=
          2.0 * static_cast<double>(config_.dsa->index_n_heads * layer.index_dim) * indexed;
    }
  }
  return operations;
}

}  // namespace tern
