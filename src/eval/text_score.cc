#include "eval/text_score.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tern {
namespace {

constexpr int64_t kChunk = 64;  // rows whose logits are held
constexpr int64_t kFewestBlockTokens = 16;

// log(sum(exp(x))) in double, and the index of the largest (the first of equals); false when a
// value is not finite.
bool Summarize(const float* x, int64_t n, double* log_sum, int64_t* top) {
  float best = x[0];
  int64_t at = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    finite &= std::isfinite(x[i]);
    if (x[i] > best) {
      best = x[i];
      at = i;
    }
  }
  if (!finite) return false;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - best);
  *log_sum = best + std::log(sum);
  *top = at;
  return true;
}

double Divergence(const float* reference, double reference_sum, const float* model,
                  double model_sum, int64_t n) {
  double kl = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double r = reference[i] - reference_sum;
    kl += std::exp(r) * (r - (model[i] - model_sum));
  }
  return std::max(kl, 0.0);  // rounding only
}

// One pass over a window's tokens.
class WindowScorer {
 public:
  WindowScorer(LogitSource& model, LogitSource* reference, ThreadPool& pool)
      : model_(model), reference_(reference), pool_(pool) {
    const auto cells = static_cast<size_t>(kChunk * model.vocab_size());
    logits_.resize(cells);
    if (reference != nullptr) reference_logits_.resize(cells);
  }

  // Appends to score->tokens one entry for each token but the first.
  Status Score(const TextTokens& window, int64_t number, TextScore* score) {
    const auto length = static_cast<int64_t>(window.size()) - 1;  // the last token is never fed
    TERN_RETURN_IF_ERROR(model_.Begin(length));
    if (reference_ != nullptr) TERN_RETURN_IF_ERROR(reference_->Begin(length));
    for (int64_t at = 0; at < length; at += kChunk) {
      const int64_t rows = std::min(kChunk, length - at);
      const std::span<const int32_t> tokens(window.data() + at, static_cast<size_t>(rows));
      TERN_RETURN_IF_ERROR(Timed(model_, tokens, logits_.data(), &score->seconds));
      if (reference_ != nullptr) {
        TERN_RETURN_IF_ERROR(
            Timed(*reference_, tokens, reference_logits_.data(), &score->reference_seconds));
      }
      const size_t first = score->tokens.size();
      score->tokens.resize(first + static_cast<size_t>(rows));
      const int64_t bad = ScoreRows(window.data() + at + 1, rows, score->tokens.data() + first);
      if (bad < 0) continue;
      const LogitSource& source = bad % 2 == 0 ? model_ : *reference_;
      return DataLoss(fmt::format("{}: the logits at token {} of window {} are not finite",
                                  source.name(), at + bad / 2, number));
    }
    return OkStatus();
  }

 private:
  static Status Timed(LogitSource& source, std::span<const int32_t> tokens, float* logits,
                      double* seconds) {
    const int64_t start_us = SystemClock().NowUs();
    const Status status = source.Append(tokens, logits);
    *seconds += static_cast<double>(SystemClock().NowUs() - start_us) * 1e-6;
    return status;
  }

  // -1, or 2 * row of the first row that is not finite, + 1 when it is the reference's.
  int64_t ScoreRows(const int32_t* next, int64_t rows, TokenScore* scores) {
    const int64_t vocab = model_.vocab_size();
    std::atomic<int64_t> bad{INT64_MAX};
    const auto note = [&](int64_t value) {
      int64_t seen = bad.load();
      while (value < seen && !bad.compare_exchange_weak(seen, value)) {
      }
    };
    pool_.ParallelFor(rows, [&](int64_t row, int) {
      const float* logits = logits_.data() + row * vocab;
      TokenScore& score = scores[row];
      double sum = 0;
      int64_t top = 0;
      if (!Summarize(logits, vocab, &sum, &top)) return note(2 * row);
      score.loss = sum - logits[next[row]];
      if (reference_ == nullptr) return;
      const float* reference = reference_logits_.data() + row * vocab;
      double reference_sum = 0;
      int64_t reference_top = 0;
      if (!Summarize(reference, vocab, &reference_sum, &reference_top)) return note(2 * row + 1);
      score.reference_loss = reference_sum - reference[next[row]];
      score.divergence = Divergence(reference, reference_sum, logits, sum, vocab);
      score.same_top = top == reference_top;
    });
    return bad.load() == INT64_MAX ? -1 : bad.load();
  }

  LogitSource& model_;
  LogitSource* const reference_;
  ThreadPool& pool_;
  std::vector<float> logits_, reference_logits_;  // [kChunk, vocab]
};

Status CheckTokens(const std::vector<TextTokens>& windows, const LogitSource& model) {
  for (const TextTokens& window : windows) {
    if (static_cast<int64_t>(window.size()) > model.context_length()) {
      return InvalidArgument(fmt::format("a window of {} tokens exceeds the context of {}, {}",
                                         window.size(), model.name(), model.context_length()));
    }
    for (const int32_t token : window) {
      if (token >= 0 && token < model.vocab_size()) continue;
      return InvalidArgument(fmt::format("token {} of the text is outside the vocabulary of {}, {}",
                                         token, model.name(), model.vocab_size()));
    }
  }
  return OkStatus();
}

template <typename Value>
std::vector<Block> Sums(const TextScore& score, Value value) {
  std::vector<Block> blocks(static_cast<size_t>(score.blocks));
  for (size_t i = 0; i < score.tokens.size(); ++i) {
    Block& block = blocks[static_cast<size_t>(score.block_of[i])];
    block.sum += value(score.tokens[i]);
    block.weight += 1;
  }
  return blocks;
}

Figure RatioFigure(const std::vector<Block>& blocks, const BootstrapOptions& options) {
  Figure figure{RatioOf(blocks), std::nullopt};
  if (static_cast<int64_t>(blocks.size()) >= kMinBlocks) {
    figure.interval = BootstrapRatio(blocks, options);
  }
  return figure;
}

}  // namespace

Result<std::vector<TextTokens>> CutWindows(const TextTokens& tokens, int64_t window,
                                           std::optional<int32_t> bos) {
  TERN_CHECK(window >= 2);
  const int64_t step = bos ? window - 1 : window;
  std::vector<TextTokens> windows;
  int64_t counted = 0;
  for (int64_t at = 0; at < static_cast<int64_t>(tokens.size()); at += step) {
    const int64_t end = std::min(at + step, static_cast<int64_t>(tokens.size()));
    TextTokens one;
    if (bos) one.push_back(*bos);
    one.insert(one.end(), tokens.begin() + at, tokens.begin() + end);
    if (one.size() < 2) break;
    counted += static_cast<int64_t>(one.size()) - 1;
    windows.push_back(std::move(one));
  }
  if (counted < kMinCountedTokens) {
    return InvalidArgument(fmt::format("the text is too short: {} tokens to count, {} are needed",
                                       counted, kMinCountedTokens));
  }
  return windows;
}

Result<TextScore> ScoreText(LogitSource& model, LogitSource* reference,
                            const std::vector<TextTokens>& windows, ThreadPool& pool,
                            const TextProgress& progress) {
  if (reference != nullptr && reference->vocab_size() != model.vocab_size()) {
    return InvalidArgument(fmt::format("the vocabularies differ: {} has {} tokens, {} has {}",
                                       model.name(), model.vocab_size(), reference->name(),
                                       reference->vocab_size()));
  }
  TERN_RETURN_IF_ERROR(CheckTokens(windows, model));
  if (reference != nullptr) TERN_RETURN_IF_ERROR(CheckTokens(windows, *reference));
  int64_t total = 0;
  for (const TextTokens& window : windows) total += static_cast<int64_t>(window.size()) - 1;
  int64_t block_tokens = INT64_MAX;
  if (static_cast<int64_t>(windows.size()) < kWantedBlocks) {
    block_tokens = std::max((total + kWantedBlocks - 1) / kWantedBlocks, kFewestBlockTokens);
  }

  TextScore score;
  score.has_reference = reference != nullptr;
  WindowScorer scorer(model, reference, pool);
  for (size_t w = 0; w < windows.size(); ++w) {
    TERN_RETURN_IF_ERROR(scorer.Score(windows[w], static_cast<int64_t>(w), &score));
    const auto counted = static_cast<int64_t>(windows[w].size()) - 1;
    for (int64_t i = 0; i < counted; ++i) {
      if (i % block_tokens == 0) ++score.blocks;
      score.block_of.push_back(static_cast<int32_t>(score.blocks - 1));
    }
    if (progress) progress(static_cast<int64_t>(score.tokens.size()), total);
  }
  return score;
}

std::vector<Block> LossBlocks(const TextScore& score) {
  return Sums(score, [](const TokenScore& token) { return token.loss; });
}

std::vector<Block> ReferenceLossBlocks(const TextScore& score) {
  return Sums(score, [](const TokenScore& token) { return token.reference_loss; });
}

Figure PerplexityOf(const std::vector<Block>& losses, const BootstrapOptions& options) {
  Figure figure = RatioFigure(losses, options);
  figure.value = std::exp(figure.value);
  if (figure.interval) {
    figure.interval = Interval{std::exp(figure.interval->low), std::exp(figure.interval->high)};
  }
  return figure;
}

DivergenceFigures DivergenceOf(const TextScore& score, const BootstrapOptions& options) {
  DivergenceFigures figures;
  std::vector<double> values;
  int64_t same = 0;
  for (const TokenScore& token : score.tokens) {
    values.push_back(token.divergence);
    same += token.same_top;
  }
  const auto n = static_cast<int64_t>(values.size());
  figures.mean =
      RatioFigure(Sums(score, [](const TokenScore& t) { return t.divergence; }), options);
  figures.median.value = QuantileOf(values, 50);
  figures.p99.value = QuantileOf(values, 99);
  figures.max = *std::max_element(values.begin(), values.end());
  figures.share_above_max = -std::expm1(std::log(0.05) / static_cast<double>(n));
  if (score.blocks >= kMinBlocks) {
    const int64_t percents[] = {50, 99};
    const auto limits = BootstrapQuantiles(values, score.block_of, score.blocks, percents, options);
    figures.median.interval = limits[0];
    figures.p99.interval = limits[1];
  }
  figures.same_top =
      RatioFigure(Sums(score, [](const TokenScore& t) { return t.same_top ? 1.0 : 0.0; }), options);
  const Interval wilson = WilsonInterval(same, n);
  figures.same_top.interval =
      figures.same_top.interval ? Hull(*figures.same_top.interval, wilson) : wilson;
  return figures;
}

}  // namespace tern
