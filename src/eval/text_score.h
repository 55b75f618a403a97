// TextScore: a text through a model, or through two formats of one model at once: perplexity,
// KL divergence and agreement of the most likely token. Logits are never kept.
// Thread: pure functions, parallel over rows on the pool that is given.
//
// Windows are disjoint. With a BOS token a window is BOS and window - 1 tokens of the text, all of
// which count; without, it is `window` tokens, of which the first does not count.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "eval/bootstrap.h"
#include "eval/intervals.h"
#include "eval/logit_source.h"

namespace tern {

using TextTokens = std::vector<int32_t>;

// Errors: kInvalidArgument: a text of fewer than kMinCountedTokens tokens to count.
inline constexpr int64_t kMinCountedTokens = 64;
Result<std::vector<TextTokens>> CutWindows(const TextTokens& tokens, int64_t window,
                                           std::optional<int32_t> bos);

// What is measured at one token: from the logits before it.
struct TokenScore {
  double loss = 0;            // -ln p(token)
  double reference_loss = 0;  // of the reference model, if there is one
  double divergence = 0;      // KL(reference || model) over the whole vocabulary, nats
  bool same_top = true;       // both hold the same token most likely; the lowest id wins a tie
};

struct TextScore {
  std::vector<TokenScore> tokens;
  std::vector<int32_t> block_of;  // of each token; blocks are numbered in order
  int64_t blocks = 0;
  bool has_reference = false;
  double seconds = 0, reference_seconds = 0;  // in forward passes
};

using TextProgress = std::function<void(int64_t done_tokens, int64_t total_tokens)>;

// A block is a window; with fewer than kWantedBlocks windows, a part of one (at least 16 tokens).
// `reference` may be null. Errors: kInvalidArgument (vocabularies differ in size; a token outside
// it; a window over the context), kDataLoss naming model, window and position of logits that are
// not finite; the models' own.
inline constexpr int64_t kWantedBlocks = 32;
Result<TextScore> ScoreText(LogitSource& model, LogitSource* reference,
                            const std::vector<TextTokens>& windows, ThreadPool& pool,
                            const TextProgress& progress);

// A figure with its interval, where there is one.
struct Figure {
  double value = 0;
  std::optional<Interval> interval;
};

// exp of the mean loss.
Figure PerplexityOf(const std::vector<Block>& losses, const BootstrapOptions& options = {});
// Sums per block.
std::vector<Block> LossBlocks(const TextScore& score);
std::vector<Block> ReferenceLossBlocks(const TextScore& score);

struct DivergenceFigures {
  Figure mean, median, p99;
  double max = 0;
  // With 95 % confidence at most this share of tokens has more than `max`: 1 - 0.05^(1/n).
  double share_above_max = 0;
  // The hull of the bootstrap's and Wilson's interval.
  Figure same_top;
};
DivergenceFigures DivergenceOf(const TextScore& score, const BootstrapOptions& options = {});

}  // namespace tern
