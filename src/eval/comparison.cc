#include "eval/comparison.h"

#include <fmt/format.h>

#include <utility>

namespace tern {
namespace {

Result<std::vector<PairedItem>> PairItems(const TaskResult& baseline, const TaskResult& candidate,
                                          int64_t* same_answers) {
  if (baseline.items.size() != candidate.items.size()) {
    return InvalidArgument(fmt::format("the baseline is of other items: it has {}, this run {}",
                                       baseline.items.size(), candidate.items.size()));
  }
  if (baseline.max_new_tokens != candidate.max_new_tokens) {
    return InvalidArgument(fmt::format("the baseline allowed {} new tokens, this run {}",
                                       baseline.max_new_tokens, candidate.max_new_tokens));
  }
  std::vector<PairedItem> pairs;
  for (size_t i = 0; i < candidate.items.size(); ++i) {
    const ItemResult &a = baseline.items[i], &b = candidate.items[i];
    if (a.hash != b.hash) {
      return InvalidArgument(
          fmt::format("the baseline is of other items: number {} there is id {}, here id {}", i + 1,
                      a.id, b.id));
    }
    pairs.push_back({b.kind, a.correct, b.correct});
    *same_answers += a.answer.text == b.answer.text;
  }
  return pairs;
}

Result<std::vector<PairedBlock>> PairBlocks(const TextResult& baseline,
                                            const TextResult& candidate) {
  if (baseline.text_hash != candidate.text_hash) {
    return InvalidArgument(fmt::format("the baseline is of another text ({}, here {})",
                                       baseline.file, candidate.file));
  }
  if (baseline.tokens_hash != candidate.tokens_hash ||
      baseline.losses.size() != candidate.losses.size()) {
    return InvalidArgument(
        "the baseline cut the text into other tokens or windows (tokenizer, --window or --bos)");
  }
  std::vector<PairedBlock> pairs;
  for (size_t i = 0; i < candidate.losses.size(); ++i) {
    const Block &a = baseline.losses[i], &b = candidate.losses[i];
    if (a.weight != b.weight) return InvalidArgument("the baseline's blocks are of other sizes");
    pairs.push_back({a.sum, b.sum, b.weight});
  }
  return pairs;
}

Json PairedToJson(const PairedAccuracy& a) {
  return {{"items", a.items},
          {"baseline_correct", a.baseline_correct},
          {"correct", a.candidate_correct},
          {"gained", a.gained},
          {"lost", a.lost},
          {"difference", a.difference},
          {"interval", IntervalToJson(a.interval)},
          {"mcnemar_p", a.mcnemar}};
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Result<Comparison> Compare(const EvalResult& baseline, const EvalResult& candidate,
                           const BootstrapOptions& options) {
  if (!baseline.complete) return InvalidArgument("the baseline's run was not complete");
  Comparison comparison;
  comparison.baseline_model = baseline.model;
  std::vector<PairedItem> items;
  std::optional<PerplexityComparison> perplexity;
  if (baseline.tasks && candidate.tasks) {
    TERN_ASSIGN_OR_RETURN(items,
                          PairItems(*baseline.tasks, *candidate.tasks, &comparison.same_answers));
  }
  if (baseline.text && candidate.text) {
    TERN_ASSIGN_OR_RETURN(const auto blocks, PairBlocks(*baseline.text, *candidate.text));
    perplexity = ComparePerplexity(blocks, options);
  }
  if (!(baseline.tasks && candidate.tasks) && !(baseline.text && candidate.text)) {
    return InvalidArgument("the baseline has nothing in common with this run");
  }
  comparison.verdict = Judge(items, perplexity, options);
  return comparison;
}

Json ComparisonToJson(const Comparison& comparison) {
  const Verdict& v = comparison.verdict;
  Json json = {{"baseline", comparison.baseline_model},
               {"verdict", EquivalenceName(v.equivalence)},
               {"why", v.why},
               {"margins",
                {{"accuracy", kAccuracyMargin},
                 {"perplexity", kPerplexityMargin},
                 {"baseline_accuracy", Json::array({kLowestUseful, kHighestUseful})}}}};
  Json kinds = Json::object();
  for (const KindComparison& kind : v.kinds) {
    kinds[kind.kind] = PairedToJson(kind.accuracy);
    kinds[kind.kind]["counts"] = kind.counts;
  }
  json["kinds"] = std::move(kinds);
  json["counted"] = v.counted ? PairedToJson(*v.counted) : Json();
  json["all"] = v.all ? PairedToJson(*v.all) : Json();
  json["same_answers"] = comparison.same_answers;
  json["perplexity"] = nullptr;
  if (v.perplexity) {
    json["perplexity"] = {{"ratio", v.perplexity->ratio},
                          {"interval", IntervalToJson(v.perplexity->interval)},
                          {"tokens", v.perplexity->tokens},
                          {"blocks", v.perplexity->blocks}};
  }
  json["detectable"] = {{"accuracy", OrNull(v.detectable_accuracy)},
                        {"perplexity_ratio", OrNull(v.detectable_perplexity)}};
  return json;
}

}  // namespace tern
