#include "eval/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace tern {
namespace {

// Where an interval lies against +-margin.
enum class Side { kWithin, kBelow, kAbove, kAcross };

Side SideOf(const Interval& interval, double low, double high) {
  if (interval.Within(low, high)) return Side::kWithin;
  if (interval.high < low) return Side::kBelow;
  if (interval.low > high) return Side::kAbove;
  return Side::kAcross;
}

// Fills equivalence and why from what was measured.
void Decide(Verdict* v) {
  if (!v->counted) {
    v->why = v->all ? "no task kind counts: the baseline is outside 60-98 % on every one"
                    : "tasks were not compared";
    return;
  }
  const Side accuracy = SideOf(v->counted->interval, -kAccuracyMargin, kAccuracyMargin);
  if (!v->perplexity) {
    v->why = "perplexity was not compared, or on too little text";
    if (accuracy == Side::kWithin) v->why += "; accuracy alone is within 1.0 point";
    return;
  }
  const Side perplexity =
      SideOf(v->perplexity->interval, 1 - kPerplexityMargin, 1 + kPerplexityMargin);
  std::vector<std::string> beyond, across;
  if (accuracy == Side::kBelow) beyond.push_back("accuracy is lower by more than 1.0 point");
  if (accuracy == Side::kAbove) beyond.push_back("accuracy is higher by more than 1.0 point");
  if (accuracy == Side::kAcross) {
    across.push_back(fmt::format("accuracy ({:+.2f} to {:+.2f} points against +-1.0)",
                                 100 * v->counted->interval.low, 100 * v->counted->interval.high));
  }
  if (perplexity == Side::kBelow) beyond.push_back("perplexity is lower by more than 0.5 %");
  if (perplexity == Side::kAbove) beyond.push_back("perplexity is higher by more than 0.5 %");
  if (perplexity == Side::kAcross) {
    across.push_back(fmt::format("perplexity ({:+.2f} to {:+.2f} % against +-0.5)",
                                 100 * (v->perplexity->interval.low - 1),
                                 100 * (v->perplexity->interval.high - 1)));
  }
  if (!beyond.empty()) {
    v->equivalence = Equivalence::kNotEquivalent;
    v->why = fmt::format("{}", fmt::join(beyond, "; "));
  } else if (!across.empty()) {
    v->equivalence = Equivalence::kUndecided;
    v->why = fmt::format("the interval reaches beyond the margin for {}", fmt::join(across, ", "));
  } else {
    v->equivalence = Equivalence::kEquivalent;
    v->why = "accuracy is within 1.0 point and perplexity within 0.5 %";
  }
}

}  // namespace

std::string_view EquivalenceName(Equivalence equivalence) {
  switch (equivalence) {
    case Equivalence::kEquivalent:
      return "equivalent";
    case Equivalence::kNotEquivalent:
      return "not equivalent";
    case Equivalence::kUndecided:
      return "undecided";
    case Equivalence::kNoVerdict:
      break;
  }
  return "no verdict";
}

PairedAccuracy ComparePairs(const std::vector<PairedItem>& items, const BootstrapOptions& options) {
  TERN_CHECK(!items.empty());
  PairedAccuracy a;
  std::vector<Block> differences;
  for (const PairedItem& item : items) {
    ++a.items;
    a.baseline_correct += item.baseline;
    a.candidate_correct += item.candidate;
    a.gained += item.candidate && !item.baseline;
    a.lost += item.baseline && !item.candidate;
    differences.push_back({static_cast<double>(item.candidate) - item.baseline, 1});
  }
  a.difference = static_cast<double>(a.gained - a.lost) / static_cast<double>(a.items);
  a.interval = PairedScoreInterval(a.gained, a.lost, a.items);
  if (a.items >= kMinBlocks) a.interval = Hull(a.interval, BootstrapRatio(differences, options));
  a.mcnemar = McNemarExact(a.gained, a.lost);
  return a;
}

std::optional<PerplexityComparison> ComparePerplexity(const std::vector<PairedBlock>& blocks,
                                                      const BootstrapOptions& options) {
  if (static_cast<int64_t>(blocks.size()) < kMinBlocks) return std::nullopt;
  std::vector<Block> differences;
  PerplexityComparison p;
  for (const PairedBlock& block : blocks) {
    differences.push_back({block.candidate - block.baseline, block.tokens});
    p.tokens += static_cast<int64_t>(block.tokens);
  }
  p.blocks = static_cast<int64_t>(blocks.size());
  p.ratio = std::exp(RatioOf(differences));
  const Interval logs = BootstrapRatio(differences, options);
  p.interval = {std::exp(logs.low), std::exp(logs.high)};
  return p;
}

Verdict Judge(const std::vector<PairedItem>& items, std::optional<PerplexityComparison> perplexity,
              const BootstrapOptions& options) {
  Verdict v;
  v.perplexity = std::move(perplexity);
  std::vector<std::pair<std::string, std::vector<PairedItem>>> kinds;
  for (const PairedItem& item : items) {
    auto found = std::find_if(kinds.begin(), kinds.end(),
                              [&](const auto& kind) { return kind.first == item.kind; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {item.kind, {}});
    found->second.push_back(item);
  }
  std::vector<PairedItem> counted;
  for (const auto& [kind, of_kind] : kinds) {
    KindComparison k{kind, ComparePairs(of_kind, options)};
    const double share = k.accuracy.baseline_accuracy();
    k.counts = kLowestUseful <= share && share <= kHighestUseful;
    if (k.counts) counted.insert(counted.end(), of_kind.begin(), of_kind.end());
    v.kinds.push_back(std::move(k));
  }
  if (!items.empty()) v.all = ComparePairs(items, options);
  if (!counted.empty()) v.counted = ComparePairs(counted, options);
  if (v.all)
    v.detectable_accuracy = DetectableDifference((v.counted ? v.counted : v.all)->interval);
  if (v.perplexity) v.detectable_perplexity = DetectableDifference(v.perplexity->interval);
  Decide(&v);
  return v;
}

}  // namespace tern
