#include "models/observer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "models/registry.h"
#include "models/single_sequence.h"
#include "tensor/number.h"

namespace tern {
namespace {

// Rows of a batch: enough for matrix products to run at full speed, few enough for their logits.
constexpr int64_t kBatchRows = 256;
constexpr int64_t kPageTokens = 64;

// Passes on what Ops shows, under the weights' names.
class NamedInputs final : public MatMulObserver {
 public:
  NamedInputs(const WeightNames& names, ActivationObserver& observer)
      : names_(names), observer_(observer) {}
  void OnInput(const PackedMatrix& weight, const float* x, int64_t x_stride,
               int64_t rows) override {
    if (const std::string* name = names_.Find(weight)) {
      observer_.OnInput(*name, x, x_stride, rows, weight.columns());
    }
  }

 private:
  const WeightNames& names_;
  ActivationObserver& observer_;
};

// Sets the observer of Ops while it lives.
class Observing {
 public:
  Observing(Ops& ops, MatMulObserver& observer) : ops_(ops) { ops_.SetObserver(&observer); }
  ~Observing() { ops_.SetObserver(nullptr); }
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  Ops& ops_;
};

// A window on its way through the model.
struct Window {
  std::span<const int32_t> tokens;
  SingleSequence sequence;
  int64_t rows_in_batch = 0;

  int64_t rows_left() const {
    return static_cast<int64_t>(tokens.size()) - sequence.position() - rows_in_batch;
  }
};

// Shows the cached rows of a finished window (layouts: docs/formats/kv_page.md).
void ShowKvRows(std::span<const KvLayerSpec> layers, const Window& window,
                ActivationObserver& observer) {
  const ForwardRun run = window.sequence.NextRun(0, 0, RowForm::kPrefill);
  const PageFormat& format = *run.kv.format;
  std::vector<float> row;
  const auto show = [&](int64_t layer, KvRowKind part, int64_t part_offset, int64_t width) {
    row.resize(static_cast<size_t>(width));
    for (int64_t position = 0; position < window.sequence.position(); ++position) {
      const std::byte* stored = run.kv.pages[static_cast<size_t>(position / kPageTokens)] +
                                format.slab(layer).offset_bytes + part_offset +
                                position % kPageTokens * width * 2;
      for (int64_t i = 0; i < width; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, stored + i * 2, sizeof(bits));
        row[static_cast<size_t>(i)] = FloatFromBf16(bits);
      }
      observer.OnKvRow(layer, part, row);
    }
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    if (layers[i].kind == KvLayerSpec::Kind::kMla) {
      show(layer, KvRowKind::kLatent, 0, layers[i].latent + layers[i].rope);
    } else {
      const int64_t width = layers[i].kv_heads * layers[i].head_dim;
      show(layer, KvRowKind::kKey, 0, width);
      show(layer, KvRowKind::kValue, kPageTokens * width * 2, width);
    }
  }
}

}  // namespace

void WeightNames::Add(const PackedMatrix& matrix, const std::string& name) {
  // An embedding is packed where it is the head as well, and only as the head.
  names_[matrix.identity()] = name == "model.embed_tokens.weight" ? "lm_head.weight" : name;
}

const std::string* WeightNames::Find(const PackedMatrix& matrix) const {
  const auto found = names_.find(matrix.identity());
  return found == names_.end() ? nullptr : &found->second;
}

Result<std::unique_ptr<ObservedModel>> ObservedModel::Load(
    const std::string& path, Ops& ops, Precision precision,
    const std::function<void(uint64_t done_bytes, uint64_t total_bytes)>& progress) {
  std::unique_ptr<ObservedModel> result(new ObservedModel(ops));
  LoadOptions options;
  options.precision = precision;
  options.progress = progress;
  options.weight_names = &result->names_;
  TERN_ASSIGN_OR_RETURN(result->model_, LoadModel(path, ops, options));
  return result;
}

ObservedModel::ObservedModel(Ops& ops) : ops_(ops) {}
ObservedModel::~ObservedModel() = default;

int64_t ObservedModel::vocab_size() const { return model_->info().vocab_size; }
int64_t ObservedModel::context_length() const { return model_->info().context_length; }
int64_t ObservedModel::layers() const {
  return static_cast<int64_t>(model_->info().kv_layers.size());
}

Status ObservedModel::Run(std::span<const std::vector<int32_t>> windows, bool logits,
                          ActivationObserver& observer,
                          const std::function<void(int64_t rows)>& done) {
  NamedInputs inputs(names_, observer);
  const Observing observing(ops_, inputs);
  const int64_t vocab = vocab_size();
  std::vector<float> batch_logits(logits ? static_cast<size_t>(kBatchRows * vocab) : 0);
  std::vector<Window> running;  // in order; only the last may have rows left
  size_t next_window = 0;
  int64_t total_rows = 0;
  while (true) {
    // Fill the batch, first with what is left of the last window of the batch before.
    std::vector<int32_t> tokens;
    std::vector<ForwardRun> runs;
    for (size_t i = 0; static_cast<int64_t>(tokens.size()) < kBatchRows; ++i) {
      if (i == running.size()) {
        while (next_window < windows.size() && windows[next_window].empty()) ++next_window;
        if (next_window == windows.size()) break;
        const std::vector<int32_t>& window = windows[next_window++];
        TERN_ASSIGN_OR_RETURN(SingleSequence sequence,
                              SingleSequence::Make(*model_, KvFormat::kBf16, kPageTokens,
                                                   static_cast<int64_t>(window.size())));
        running.push_back({window, std::move(sequence)});
      }
      Window& window = running[i];
      const auto first_row = static_cast<int64_t>(tokens.size());
      window.rows_in_batch = std::min(window.rows_left(), kBatchRows - first_row);
      runs.push_back(window.sequence.NextRun(first_row, window.rows_in_batch, RowForm::kPrefill));
      const auto piece = window.tokens.subspan(static_cast<size_t>(window.sequence.position()),
                                               static_cast<size_t>(window.rows_in_batch));
      tokens.insert(tokens.end(), piece.begin(), piece.end());
    }
    if (tokens.empty()) return OkStatus();

    std::vector<int32_t> logit_rows(logits ? tokens.size() : 0);
    std::iota(logit_rows.begin(), logit_rows.end(), 0);
    TERN_RETURN_IF_ERROR(model_->Forward({.tokens = tokens, .runs = runs, .logit_rows = logit_rows},
                                         batch_logits.data()));
    std::vector<int32_t> next_tokens;
    for (Window& window : running) {
      for (int64_t i = 0; i < window.rows_in_batch; ++i) {
        const auto next = static_cast<size_t>(window.sequence.position() + i + 1);
        next_tokens.push_back(next < window.tokens.size() ? window.tokens[next] : -1);
      }
      window.sequence.Advance(window.rows_in_batch);
      window.rows_in_batch = 0;
    }
    if (logits) observer.OnLogits(batch_logits.data(), vocab, next_tokens);
    TERN_RETURN_IF_ERROR(observer.status());
    std::erase_if(running, [&](const Window& window) {
      if (window.rows_left() > 0) return false;
      ShowKvRows(model_->info().kv_layers, window, observer);
      return true;
    });
    total_rows += static_cast<int64_t>(tokens.size());
    if (done) done(total_rows);
  }
}

}  // namespace tern
