// EvalResult: what one run of `tern eval` measured, item by item and block by block, and its JSON
// (docs/eval.md), from which a later run reads its baseline.
// Thread: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "eval/bootstrap.h"
#include "eval/task_item.h"
#include "eval/text_score.h"

namespace tern {

// The other format of the model on the same text.
struct ReferenceResult {
  std::string model;
  std::vector<Block> losses;
  DivergenceFigures divergence;
  double seconds = 0;
};

struct TextResult {
  std::string file;
  uint64_t text_hash = 0;    // of the file's bytes
  uint64_t tokens_hash = 0;  // of the windows' token ids
  int64_t window = 0;
  std::string bos;            // text of the token in front of each window; empty: none
  std::vector<Block> losses;  // sums of -ln p, and tokens
  double seconds = 0;         // in forward passes
  std::optional<ReferenceResult> reference;

  int64_t tokens() const;
};

struct ItemResult {
  std::string id, kind;
  uint64_t hash = 0;
  bool correct = false;
  TaskAnswer answer;
};

struct TaskResult {
  std::string file;
  int64_t max_new_tokens = 0;
  std::vector<ItemResult> items;
  // Of this run alone, answers of an earlier one left out; tokens 0 when a server answered.
  double seconds = 0;
  int64_t prompt_tokens = 0, completion_tokens = 0, answered = 0;
};

struct EvalResult {
  std::string model;  // path or URL
  Json settings = Json::object();
  std::optional<TextResult> text;
  std::optional<TaskResult> tasks;
  bool complete = true;
};

struct KindAccuracy {
  std::string kind;
  int64_t items = 0, correct = 0;
  Interval interval;  // Wilson

  double share() const { return static_cast<double>(correct) / static_cast<double>(items); }
};
// In the order of first appearance. `all`: over all items.
std::vector<KindAccuracy> AccuracyByKind(const TaskResult& tasks);
KindAccuracy AccuracyOfAll(const TaskResult& tasks);

Json IntervalToJson(const std::optional<Interval>& interval);  // [low, high] or null
Json EvalResultToJson(const EvalResult& result, const BootstrapOptions& options = {});
// What comparing needs: settings, blocks, items. Errors: kInvalidArgument naming the field.
Result<EvalResult> EvalResultFromJson(const Json& json);

}  // namespace tern
