#include "quant/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tensor/number.h"

namespace tern {
namespace {

constexpr float kLargestFp8 = 448.0f;
constexpr std::string_view kHead = "lm_head.weight";
constexpr float kNegligible = -30.0f;  // log of a probability that adds nothing to an entropy
// A model that knows a text is about as surprised by it as it expects to be: English prose, code
// and chats gave ratios of 0.98 to 1.28 with SmolLM2, German and Polish 1.7, random tokens 200.
constexpr double kForeignRatio = 1.5;
// Bytes of text per token. Tokenizers cut languages that they know into pieces of 3 to 5 bytes.
constexpr double kFewBytesPerToken = 2.3;

// What weights that are multiplied with the same input have in common.
std::string InputOf(const std::string& weight) {
  const auto with_suffix = [&](std::initializer_list<std::string_view> suffixes,
                               std::string_view input) -> std::string {
    for (const std::string_view suffix : suffixes) {
      if (weight.ends_with(suffix)) {
        return weight.substr(0, weight.size() - suffix.size()) + std::string(input);
      }
    }
    return "";
  };
  std::string input = with_suffix({".gate_proj.weight", ".up_proj.weight"}, ".gate_up");
  if (input.empty()) {
    input = with_suffix(
        {".self_attn.q_proj.weight", ".self_attn.k_proj.weight", ".self_attn.v_proj.weight",
         ".self_attn.q_a_proj.weight", ".self_attn.kv_a_proj_with_mqa.weight"},
        ".self_attn.input");
  }
  return input.empty() ? weight : input;
}

// The inputs that a wave wants, under the weight that stands for each.
class Collector final : public ActivationObserver {
 public:
  Collector(Ops& ops, std::span<const std::string> weights) : ops_(ops) {
    for (const std::string& weight : weights) {
      standing_for_.try_emplace(InputOf(weight), weight);
    }
    for (const auto& [input, weight] : standing_for_) wanted_.insert(weight);
  }
  // Also measures the text and the KV cache.
  void Measure(CalibrationSummary* summary) { summary_ = summary; }

  void OnInput(const std::string& weight, const float* x, int64_t x_stride, int64_t rows,
               int64_t columns) override {
    if (!status_.ok() || !wanted_.contains(weight)) return;
    auto sum = sums_.find(weight);
    if (sum == sums_.end()) {
      Result<HessianSum> made = HessianSum::Make(columns);
      if (!made.ok()) {
        status_ = made.status();
        return;
      }
      sum = sums_.emplace(weight, std::move(*made)).first;
    }
    const Status added = sum->second.Add(x, x_stride, rows, ops_);
    if (!added.ok()) status_ = added.WithContext("the input of " + weight);
  }

  void OnKvRow(int64_t layer, KvRowKind part, std::span<const float> row) override {
    if (summary_ == nullptr) return;
    KvRange& range = summary_->kv[static_cast<size_t>(layer)];
    float& amax = part == KvRowKind::kValue ? range.v_amax : range.k_amax;
    for (const float x : row) {
      // Also for NaN, which then stays.
      if (!(std::fabs(x) <= amax)) amax = std::fabs(x);
    }
    has_values_ |= part == KvRowKind::kValue;
  }

  void OnLogits(const float* logits, int64_t vocab, std::span<const int32_t> next_tokens) override {
    if (summary_ == nullptr) return;
    // Loss and entropy of each row; summed in order, whoever computed them.
    std::vector<std::pair<double, double>> of_row(next_tokens.size());
    ops_.pool().ParallelFor(static_cast<int64_t>(next_tokens.size()), [&](int64_t row, int) {
      const int32_t next = next_tokens[static_cast<size_t>(row)];
      if (next < 0) return;
      const float* const x = logits + row * vocab;
      const float log_sum = ops_.LogSumExp(x, vocab);
      double entropy = 0;
      for (int64_t i = 0; i < vocab; ++i) {
        const float log_p = x[i] - log_sum;
        if (log_p > kNegligible) entropy -= static_cast<double>(std::exp(log_p) * log_p);
      }
      of_row[static_cast<size_t>(row)] = {static_cast<double>(log_sum - x[next]), entropy};
    });
    for (size_t row = 0; row < next_tokens.size(); ++row) {
      if (next_tokens[row] < 0) continue;
      loss_ += of_row[row].first;
      entropy_ += of_row[row].second;
      ++predictions_;
    }
  }

  Status status() const override { return status_; }

  double perplexity() const { return std::exp(loss_ / static_cast<double>(predictions_)); }
  double expected_perplexity() const {
    return std::exp(entropy_ / static_cast<double>(predictions_));
  }
  bool has_values() const { return has_values_; }

  // The sum that `weight` shares, or nullptr.
  HessianSum* Find(const std::string& input) {
    const auto standing_for = standing_for_.find(input);
    if (standing_for == standing_for_.end()) return nullptr;
    const auto sum = sums_.find(standing_for->second);
    return sum == sums_.end() ? nullptr : &sum->second;
  }

 private:
  Ops& ops_;
  std::map<std::string, std::string> standing_for_;  // input -> weight
  std::set<std::string> wanted_;
  std::map<std::string, HessianSum> sums_;  // by weight
  Status status_;
  CalibrationSummary* summary_ = nullptr;
  double loss_ = 0, entropy_ = 0;
  int64_t predictions_ = 0;
  bool has_values_ = false;
};

// FP8 is made of rows that have been rounded to BF16, and so is amax.
float ScaleOf(float amax) { return amax > 0 ? amax / kLargestFp8 : 1.0f; }

// Cuts sequences into windows of at most `length` tokens. One token alone predicts nothing.
std::vector<std::vector<int32_t>> Cut(const std::vector<std::vector<int32_t>>& sequences,
                                      int64_t length, std::optional<int32_t> bos) {
  std::vector<std::vector<int32_t>> windows;
  for (const std::vector<int32_t>& sequence : sequences) {
    for (size_t at = 0; at < sequence.size();) {
      std::vector<int32_t>& window = windows.emplace_back();
      if (at > 0 && bos) window.push_back(*bos);
      const size_t room = static_cast<size_t>(length) - window.size();
      const size_t end = std::min(sequence.size(), at + room);
      window.insert(window.end(), sequence.begin() + static_cast<int64_t>(at),
                    sequence.begin() + static_cast<int64_t>(end));
      at = end;
      if (window.size() < 2) windows.pop_back();
    }
  }
  return windows;
}

int64_t TokensOf(const std::vector<std::vector<int32_t>>& windows) {
  int64_t tokens = 0;
  for (const auto& window : windows) tokens += static_cast<int64_t>(window.size());
  return tokens;
}

}  // namespace

Result<Calibration> Calibration::Make(ObservedModel& model, const std::string& source,
                                      std::vector<std::vector<int32_t>> sequences,
                                      const CalibrationOptions& options) {
  for (const std::vector<int32_t>& sequence : sequences) {
    for (const int32_t token : sequence) {
      if (token >= 0 && token < model.vocab_size()) continue;
      return InvalidArgument(fmt::format("{}: token id {} is outside the model's vocabulary of {}",
                                         source, token, model.vocab_size()));
    }
  }
  Calibration result(model);
  result.source_ = source;
  result.options_ = options;
  result.text_tokens_ = TokensOf(sequences);
  const int64_t length = std::clamp<int64_t>(options.window, 2, model.context_length());
  result.windows_ = Cut(sequences, length, options.bos);
  const int64_t tokens = TokensOf(result.windows_);
  if (tokens == 0) return InvalidArgument(source + ": the calibration text is empty");
  if (tokens < options.min_tokens) {
    return InvalidArgument(
        fmt::format("{}: the calibration text has {} tokens, and at least {} are needed", source,
                    tokens, options.min_tokens));
  }
  if (options.max_tokens > 0 && tokens > options.max_tokens) {
    std::vector<std::vector<int32_t>> kept;
    int64_t seen = 0, taken = 0;
    for (std::vector<int32_t>& window : result.windows_) {
      seen += static_cast<int64_t>(window.size());
      const auto share = static_cast<double>(seen) / static_cast<double>(tokens);
      if (static_cast<double>(taken) >= share * static_cast<double>(options.max_tokens)) continue;
      taken += static_cast<int64_t>(window.size());
      kept.push_back(std::move(window));
    }
    result.windows_ = std::move(kept);
  }
  result.tokens_ = TokensOf(result.windows_);
  return result;
}

Result<std::map<std::string, CalibratedWeight>> Calibration::Collect(
    std::span<const std::string> weights) {
  const bool first = summary_.tokens == 0;
  Collector collector(model_->ops(), weights);
  CalibrationSummary summary;
  summary.kv.resize(static_cast<size_t>(model_->layers()));
  if (first) collector.Measure(&summary);
  const bool logits = first || std::find(weights.begin(), weights.end(), kHead) != weights.end();
  TERN_RETURN_IF_ERROR(model_->Run(windows_, logits, collector, [this](int64_t rows) {
    if (options_.progress) options_.progress(rows, tokens_);
  }));
  if (first) {
    summary.tokens = tokens_;
    summary.windows = static_cast<int64_t>(windows_.size());
    summary.perplexity = collector.perplexity();
    summary.expected_perplexity = collector.expected_perplexity();
    for (KvRange& range : summary.kv) {
      range.k_scale = ScaleOf(range.k_amax);
      range.v_scale = collector.has_values() ? ScaleOf(range.v_amax) : 0;
    }
    if (!std::isfinite(summary.perplexity)) {
      return InvalidArgument(source_ + ": the model's logits for this text are not finite");
    }
    if (summary.perplexity > kForeignRatio * summary.expected_perplexity) {
      summary.warnings.push_back(fmt::format(
          "{}: the model does not know text of this kind or language: its perplexity is {:.4g}, "
          "where the model itself expects {:.3g}; calibrate with text like what it will serve",
          source_, summary.perplexity, summary.expected_perplexity));
    }
    const double bytes_per_token =
        static_cast<double>(options_.text_bytes) / static_cast<double>(text_tokens_);
    if (options_.text_bytes > 0 && bytes_per_token < kFewBytesPerToken) {
      summary.warnings.push_back(fmt::format(
          "{}: the tokenizer was not made for this text's language: a token holds {:.2g} bytes of "
          "it (perplexity {:.4g}); calibrate with text like what the model will serve",
          source_, bytes_per_token, summary.perplexity));
    }
    summary_ = std::move(summary);
  }

  std::map<std::string, CalibratedWeight> by_input;
  std::map<std::string, CalibratedWeight> result;
  for (const std::string& weight : weights) {
    const std::string input = InputOf(weight);
    const auto [made, is_new] = by_input.try_emplace(input);
    if (is_new) {
      CalibratedWeight& entry = made->second;
      HessianSum* const sum = collector.Find(input);
      if (sum == nullptr) {
        entry.why_not = "no token of the calibration text reached it";
      } else {
        TERN_ASSIGN_OR_RETURN(Hessian hessian, sum->Finish(model_->ops()));
        entry.rows = hessian.rows;
        if (entry.rows < options_.min_rows) {
          entry.why_not = fmt::format(
              "{} tokens of the calibration text reached it, and at least {} are needed",
              entry.rows, options_.min_rows);
        } else {
          Result<Gptq> solver = Gptq::Factor(std::move(hessian), options_.gptq, model_->ops());
          if (solver.ok()) {
            entry.solver = std::make_shared<const Gptq>(std::move(*solver));
          } else if (solver.status().code() == StatusCode::kFailedPrecondition) {
            entry.why_not = solver.status().message();
          } else {
            return solver.status().WithContext("the input of " + weight);
          }
        }
      }
    }
    result.emplace(weight, made->second);
  }
  return result;
}

std::vector<std::vector<std::string>> Calibration::Waves(std::span<const TensorSpec> specs,
                                                         uint64_t budget_bytes) {
  std::vector<std::vector<std::string>> waves;
  std::set<std::string> inputs;  // of the current wave
  uint64_t bytes = 0;
  for (const TensorSpec& spec : specs) {
    const uint64_t needed = HessianSum::Bytes(spec.shape[1]) + Gptq::Bytes(spec.shape[1]);
    const std::string input = InputOf(spec.name);
    if (!waves.empty() && inputs.contains(input)) {
      waves.back().push_back(spec.name);
      continue;
    }
    if (waves.empty() || bytes + needed > budget_bytes) {
      waves.emplace_back();
      inputs.clear();
      bytes = 0;
    }
    waves.back().push_back(spec.name);
    inputs.insert(input);
    bytes += needed;
  }
  return waves;
}

}  // namespace tern
