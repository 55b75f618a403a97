// Calibration: runs a model over a text and learns what quantization needs of it: the second
// moments of each linear layer's inputs (quant/gptq.h), the range of the KV cache, and how well the
// model knows the text at all.
// Owner: whoever quantizes. Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "models/observer.h"
#include "models/tensor_list.h"
#include "quant/gptq.h"

namespace tern {

struct CalibrationOptions {
  int64_t window = 512;        // tokens; longer sequences are cut into windows, each run by itself
  int64_t max_tokens = 0;      // windows beyond are left out, evenly over the text; 0: none
  int64_t min_tokens = 256;    // a text with fewer is an error
  int64_t min_rows = 32;       // weights that saw fewer inputs (rare experts) are not calibrated
  int64_t text_bytes = 0;      // of the text that the sequences were made of; 0: unknown
  std::optional<int32_t> bos;  // put before windows that don't start a sequence
  GptqOptions gptq;
  // Tokens run and to run in this pass.
  std::function<void(int64_t done, int64_t total)> progress;
};

// One weight of a wave.
struct CalibratedWeight {
  std::shared_ptr<const Gptq>
      solver;           // shared by weights with the same input; null: not calibrated
  int64_t rows = 0;     // inputs seen
  std::string why_not;  // why there is no solver: a sentence for the report
};

// Largest magnitudes of one layer's cached rows and the FP8 scales that follow: amax / 448, 1 where
// all rows were zero. v_* are 0 where the layer caches latents: one scale for the whole row.
struct KvRange {
  float k_amax = 0, v_amax = 0;
  float k_scale = 0, v_scale = 0;
};

struct CalibrationSummary {
  int64_t tokens = 0, windows = 0;
  double perplexity = 0;              // of the text, under the model as it is
  double expected_perplexity = 0;     // exp of the mean entropy of the model's predictions
  std::vector<KvRange> kv;            // per layer
  std::vector<std::string> warnings;  // sentences for the user
};

class Calibration {
 public:
  // `sequences`: documents or conversations as token ids, each with its own BOS where the model
  // wants one. `source`: the text's file, for errors. `model` must outlive the result.
  // Errors: kInvalidArgument: no tokens, fewer than min_tokens, a token outside the vocabulary.
  static Result<Calibration> Make(ObservedModel& model, const std::string& source,
                                  std::vector<std::vector<int32_t>> sequences,
                                  const CalibrationOptions& options);

  // Runs the text once and factors what the weights' inputs gave. Every name of `weights` is in the
  // result, also those that the model never multiplied.
  // Errors: ObservedModel::Run's; kInvalidArgument naming a weight whose input is not finite;
  // kResourceExhausted.
  Result<std::map<std::string, CalibratedWeight>> Collect(std::span<const std::string> weights);

  // REQUIRES: one Collect, of no weights at least.
  const CalibrationSummary& summary() const { return summary_; }

  // The quantizable ones of `specs`, in order, in waves whose Collect takes at most `budget_bytes`
  // (or a single input, where that one is larger).
  static std::vector<std::vector<std::string>> Waves(std::span<const TensorSpec> specs,
                                                     uint64_t budget_bytes);

 private:
  explicit Calibration(ObservedModel& model) : model_(&model) {}

  ObservedModel* model_;
  std::string source_;
  CalibrationOptions options_;
  int64_t text_tokens_ = 0;  // before windows were cut
  std::vector<std::vector<int32_t>> windows_;
  int64_t tokens_ = 0;
  CalibrationSummary summary_;
};

}  // namespace tern
