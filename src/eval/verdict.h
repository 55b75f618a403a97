// Verdict: are two runs of one model equivalent? Not "no significant difference": an interval has
// to lie within margins that were fixed before. Thread: pure functions. Rules: docs/eval.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/bootstrap.h"
#include "eval/intervals.h"

namespace tern {

inline constexpr double kAccuracyMargin = 0.01;     // of the paired accuracy difference
inline constexpr double kPerplexityMargin = 0.005;  // of the perplexity ratio - 1
inline constexpr double kLowestUseful = 0.60;       // baseline accuracy of a kind that counts
inline constexpr double kHighestUseful = 0.98;

// One item, in both runs.
struct PairedItem {
  std::string kind;
  bool baseline = false, candidate = false;  // correct?
};

// Candidate minus baseline, over the same items.
struct PairedAccuracy {
  int64_t items = 0, baseline_correct = 0, candidate_correct = 0;
  int64_t gained = 0, lost = 0;  // correct in one run only
  double difference = 0;
  // The hull of the paired bootstrap's interval (from kMinBlocks items on) and the score interval,
  // which has a width also when no item differs.
  Interval interval;
  double mcnemar = 1;

  double baseline_accuracy() const {
    return static_cast<double>(baseline_correct) / static_cast<double>(items);
  }
};
// REQUIRES: items not empty.
PairedAccuracy ComparePairs(const std::vector<PairedItem>& items,
                            const BootstrapOptions& options = {});

struct KindComparison {
  std::string kind;
  PairedAccuracy accuracy;
  bool counts = false;  // the baseline is within 60-98 %
};

struct PerplexityComparison {
  double ratio = 1;
  Interval interval;
  int64_t tokens = 0, blocks = 0;
};
// Per block of text: the two sums of negative log probabilities and the tokens.
struct PairedBlock {
  double baseline = 0, candidate = 0, tokens = 0;
};
// exp of the mean difference. nullopt for fewer than kMinBlocks blocks.
std::optional<PerplexityComparison> ComparePerplexity(const std::vector<PairedBlock>& blocks,
                                                      const BootstrapOptions& options = {});

enum class Equivalence {
  kEquivalent,     // both intervals within the margins
  kNotEquivalent,  // an interval lies wholly beyond a margin
  kUndecided,      // an interval reaches beyond a margin, and does not lie wholly there
  kNoVerdict,      // no kind counts, or one half was not compared
};
std::string_view EquivalenceName(Equivalence equivalence);

struct Verdict {
  Equivalence equivalence = Equivalence::kNoVerdict;
  std::string why;                        // one sentence
  std::vector<KindComparison> kinds;      // in the order of first appearance
  std::optional<PairedAccuracy> counted;  // over the items of kinds that count
  std::optional<PairedAccuracy> all;      // over all items
  std::optional<PerplexityComparison> perplexity;
  // The smallest true differences that these runs would have shown (80 % power).
  std::optional<double> detectable_accuracy, detectable_perplexity;
};

// `items` empty: tasks were not compared. `perplexity`: likewise.
Verdict Judge(const std::vector<PairedItem>& items, std::optional<PerplexityComparison> perplexity,
              const BootstrapOptions& options = {});

}  // namespace tern
