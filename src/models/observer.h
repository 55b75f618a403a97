// What a forward pass shows of itself, for calibration: the input of every linear layer under its
// weight's Hugging Face name, the rows of the KV cache and the logits. Models don't know of it:
// WeightLoader names the packed weights, and Ops::MatMul shows its inputs.
// Owner: whoever calibrates. Thread: the one that calls Run; observers are called on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "kernels/matmul_observer.h"
#include "kernels/ops.h"

namespace tern {

class Model;

// The names of packed weights. A tied head is "lm_head.weight".
class WeightNames {
 public:
  void Add(const PackedMatrix& matrix, const std::string& name);
  // nullptr: a matrix without a name (a router, a part of another weight).
  const std::string* Find(const PackedMatrix& matrix) const;

 private:
  std::unordered_map<const void*, std::string> names_;
};

// Which part of a cached row: K and V of grouped-query attention, or the whole latent row.
enum class KvRowKind { kKey, kValue, kLatent };

class ActivationObserver {
 public:
  virtual ~ActivationObserver() = default;
  // The rows that the weight is about to be multiplied with: x [rows, columns], `x_stride` floats
  // apart. Weights that share an input are shown with it one after the other.
  virtual void OnInput(const std::string& weight, const float* x, int64_t x_stride, int64_t rows,
                       int64_t columns) = 0;
  // One position's row of one layer, as BF16 cache pages hold it.
  virtual void OnKvRow(int64_t layer, KvRowKind part, std::span<const float> row) = 0;
  // The logits [next_tokens.size(), vocab] of a batch, and the token that came after each of its
  // rows; -1 where the window ends.
  virtual void OnLogits(const float* logits, int64_t vocab,
                        std::span<const int32_t> next_tokens) = 0;
  // Asked after each pass: an error ends the run.
  virtual Status status() const { return OkStatus(); }
};

class ObservedModel {
 public:
  // As LoadModel, errors too. kProduction computes with the weights as they are stored, in a
  // fraction of the memory and time of kReference; it rounds activations to BF16, which changes
  // second moments by less than the choice of the text does. `ops` must outlive the result.
  // `progress`: LoadOptions::progress.
  static Result<std::unique_ptr<ObservedModel>> Load(
      const std::string& path, Ops& ops, Precision precision = Precision::kProduction,
      const std::function<void(uint64_t done_bytes, uint64_t total_bytes)>& progress = {});
  ~ObservedModel();

  const Model& model() const { return *model_; }
  Ops& ops() const { return ops_; }
  int64_t vocab_size() const;
  int64_t context_length() const;
  int64_t layers() const;

  // Runs each window, a sequence from position 0, in prompt form over BF16 cache pages, in batches
  // of at most 256 rows. Logits cost the head's product and vocab floats a row: `logits` says
  // whether they, and with them the head's input, are wanted. `done` is called after each batch
  // with the rows run so far. What is observed does not depend on the number of threads.
  // Errors: Model::Forward's (a token outside the vocabulary), SingleSequence::Make's (a window
  // longer than the context), the observer's.
  Status Run(std::span<const std::vector<int32_t>> windows, bool logits,
             ActivationObserver& observer, const std::function<void(int64_t rows)>& done);

 private:
  explicit ObservedModel(Ops& ops);

  Ops& ops_;
  WeightNames names_;
  std::unique_ptr<Model> model_;
};

}  // namespace tern
