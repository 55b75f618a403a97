// LoadedBenchModel: a model of models/ as `tern bench model` drives it: pages of its own for each
// sequence, no pool, no scheduler. Owner: the command. Thread: the command's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/bench_model.h"
#include "checkpoint/model_config.h"
#include "cmd/serving.h"
#include "kernels/ops.h"
#include "kv/page_format.h"
#include "models/model.h"

namespace tern {

class LoadedBenchModel final : public BenchModel {
 public:
  // Errors name the file or flag. `ops` outlives the result.
  static Result<std::unique_ptr<LoadedBenchModel>> Load(const ModelOptions& options, Ops& ops);

  // Another one with the same weights and no sequences: its KV format is its own.
  std::unique_ptr<LoadedBenchModel> SameWeights() const;

  // Rows are stored so from the next Reserve on: `name` as --kv-cache-dtype. Errors:
  // ChooseKvFormat's and PageFormat::Make's.
  Status SetKvFormat(const std::string& name);

  Model& model() { return *model_; }
  int64_t page_tokens() const { return page_tokens_; }
  int64_t page_bytes() const { return format_->page_bytes(); }  // REQUIRES: SetKvFormat
  const BenchModelFacts& facts() const override { return facts_; }
  Status Reserve(int64_t sequences, int64_t positions) override;
  Status Prefill(int64_t sequence, std::span<const int32_t> tokens) override;
  void Spread(int64_t positions) override;
  Status Decode(std::span<const int32_t> tokens) override;
  void Rewind(int64_t positions) override;
  double DecodeAttentionBytes(int64_t positions) const override;
  double DecodeAttentionOps(int64_t positions) const override;
  double PrefillAttentionOps(int64_t first, int64_t rows) const override;

 private:
  struct Sequence {
    std::vector<std::byte*> pages;
    int64_t position = 0;
  };

  LoadedBenchModel() = default;
  ForwardRun NextRun(const Sequence& sequence, int64_t first_row, int64_t rows, RowForm form) const;
  // Positions that a row attends when `positions` are cached.
  int64_t Attended(int64_t positions) const;

  std::shared_ptr<Model> model_;
  ModelConfig config_;
  int64_t page_tokens_ = 0;
  std::vector<int64_t> kv_bf16_layers_;
  BenchModelFacts facts_;
  std::optional<PageFormat> format_;
  Buffer pages_;
  std::vector<Sequence> sequences_;
  std::vector<float> logits_;
};

}  // namespace tern
