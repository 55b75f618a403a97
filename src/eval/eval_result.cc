#include "eval/eval_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "eval/journal.h"

namespace tern {
namespace {

constexpr int64_t kFormat = 1;

Json FigureToJson(const Figure& figure) {
  return {{"value", figure.value}, {"interval", IntervalToJson(figure.interval)}};
}

Json BlocksToJson(const std::vector<Block>& blocks) {
  Json json = Json::array();
  for (const Block& block : blocks) {
    json.push_back(Json::array({block.sum, static_cast<int64_t>(block.weight)}));
  }
  return json;
}

Json TextToJson(const TextResult& text, const BootstrapOptions& options) {
  const Figure perplexity = PerplexityOf(text.losses, options);
  Json json = {{"file", text.file},
               {"text_hash", HashText(text.text_hash)},
               {"tokens_hash", HashText(text.tokens_hash)},
               {"window", text.window},
               {"bos", text.bos.empty() ? Json() : Json(text.bos)},
               {"tokens", text.tokens()},
               {"value", perplexity.value},
               {"interval", IntervalToJson(perplexity.interval)},
               {"seconds", text.seconds},
               {"tokens_per_s", static_cast<double>(text.tokens()) / std::max(text.seconds, 1e-9)},
               {"blocks", BlocksToJson(text.losses)}};
  return json;
}

Json ReferenceToJson(const ReferenceResult& r, const BootstrapOptions& options) {
  const DivergenceFigures& d = r.divergence;
  return {{"model", r.model},
          {"direction", "KL(that model || this one), nats a token"},
          {"mean", FigureToJson(d.mean)},
          {"median", FigureToJson(d.median)},
          {"p99", FigureToJson(d.p99)},
          {"max", {{"value", d.max}, {"share_above_at_most", d.share_above_max}}},
          {"top1_agreement", FigureToJson(d.same_top)},
          {"perplexity", FigureToJson(PerplexityOf(r.losses, options))},
          {"seconds", r.seconds},
          {"blocks", BlocksToJson(r.losses)}};
}

Json AccuracyToJson(const KindAccuracy& kind) {
  return {{"items", kind.items},
          {"correct", kind.correct},
          {"accuracy", kind.share()},
          {"interval", IntervalToJson(kind.interval)}};
}

Json TasksToJson(const TaskResult& tasks) {
  Json json = {{"file", tasks.file}, {"max_new_tokens", tasks.max_new_tokens}};
  Json kinds = Json::object();
  for (const KindAccuracy& kind : AccuracyByKind(tasks)) kinds[kind.kind] = AccuracyToJson(kind);
  json["kinds"] = std::move(kinds);
  if (!tasks.items.empty()) json["all"] = AccuracyToJson(AccuracyOfAll(tasks));
  json["seconds"] = tasks.seconds;
  json["answered"] = tasks.answered;
  json["prompt_tokens"] = tasks.prompt_tokens;
  json["completion_tokens"] = tasks.completion_tokens;
  Json items = Json::array();
  for (const ItemResult& item : tasks.items) {
    Json one = {{"id", item.id},
                {"task", item.kind},
                {"hash", HashText(item.hash)},
                {"correct", item.correct}};
    one["answer"] = AnswerToJson(item.answer);
    items.push_back(std::move(one));
  }
  json["items"] = std::move(items);
  return json;
}

Result<uint64_t> ReadHash(const Json& object, const char* key, std::string_view where) {
  TERN_ASSIGN_OR_RETURN(const std::string text, JsonString(object, key, "", where));
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return InvalidArgument(fmt::format("{}.{} must be 16 hexadecimal digits", where, key));
  }
  return std::strtoull(text.c_str(), nullptr, 16);
}

Result<std::vector<Block>> ReadBlocks(const Json& object, std::string_view where) {
  const Json* list = JsonMember(object, "blocks");
  if (list == nullptr || !list->is_array() || list->empty()) {
    return InvalidArgument(fmt::format("{}.blocks must be a list of [sum, tokens]", where));
  }
  std::vector<Block> blocks;
  for (const Json& pair : *list) {
    const bool fits = pair.is_array() && pair.size() == 2 && pair[0].is_number() &&
                      pair[1].is_number() && pair[1].get<double>() > 0;
    if (!fits) return InvalidArgument(fmt::format("{}.blocks must hold [sum, tokens]", where));
    blocks.push_back({pair[0].get<double>(), pair[1].get<double>()});
  }
  return blocks;
}

Result<TextResult> ReadText(const Json& json) {
  constexpr std::string_view kWhere = "perplexity";
  if (!json.is_object()) return InvalidArgument("perplexity must be an object");
  TextResult text;
  TERN_ASSIGN_OR_RETURN(text.file, JsonString(json, "file", "", kWhere));
  TERN_ASSIGN_OR_RETURN(text.text_hash, ReadHash(json, "text_hash", kWhere));
  TERN_ASSIGN_OR_RETURN(text.tokens_hash, ReadHash(json, "tokens_hash", kWhere));
  TERN_ASSIGN_OR_RETURN(text.window, JsonInt(json, "window", 0, kWhere));
  TERN_ASSIGN_OR_RETURN(text.bos, JsonString(json, "bos", "", kWhere));
  TERN_ASSIGN_OR_RETURN(text.seconds, JsonDouble(json, "seconds", 0, kWhere));
  TERN_ASSIGN_OR_RETURN(text.losses, ReadBlocks(json, kWhere));
  return text;
}

Result<TaskResult> ReadTasks(const Json& json) {
  constexpr std::string_view kWhere = "tasks";
  if (!json.is_object()) return InvalidArgument("tasks must be an object");
  TaskResult tasks;
  TERN_ASSIGN_OR_RETURN(tasks.file, JsonString(json, "file", "", kWhere));
  TERN_ASSIGN_OR_RETURN(tasks.max_new_tokens, JsonInt(json, "max_new_tokens", 0, kWhere));
  const Json* items = JsonMember(json, "items");
  if (items == nullptr || !items->is_array()) return InvalidArgument("tasks.items must be a list");
  for (size_t i = 0; i < items->size(); ++i) {
    const Json& one = (*items)[i];
    const std::string where = fmt::format("tasks.items[{}]", i);
    if (!one.is_object()) return InvalidArgument(where + " must be an object");
    ItemResult item;
    TERN_ASSIGN_OR_RETURN(item.id, JsonString(one, "id", "", where));
    TERN_ASSIGN_OR_RETURN(item.kind, JsonString(one, "task", "", where));
    TERN_ASSIGN_OR_RETURN(item.hash, ReadHash(one, "hash", where));
    const Json* correct = JsonMember(one, "correct");
    if (correct == nullptr || !correct->is_boolean()) {
      return InvalidArgument(where + ".correct must be true or false");
    }
    item.correct = correct->get<bool>();
    if (const Json* answer = JsonMember(one, "answer")) {
      TERN_ASSIGN_OR_RETURN(item.answer, AnswerFromJson(*answer));
    }
    tasks.items.push_back(std::move(item));
  }
  return tasks;
}

void Count(const ItemResult& item, KindAccuracy* kind) {
  ++kind->items;
  kind->correct += item.correct;
}

}  // namespace

int64_t TextResult::tokens() const {
  double sum = 0;
  for (const Block& block : losses) sum += block.weight;
  return static_cast<int64_t>(sum);
}

std::vector<KindAccuracy> AccuracyByKind(const TaskResult& tasks) {
  std::vector<KindAccuracy> kinds;
  for (const ItemResult& item : tasks.items) {
    auto found = std::find_if(kinds.begin(), kinds.end(),
                              [&](const KindAccuracy& kind) { return kind.kind == item.kind; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {.kind = item.kind});
    Count(item, &*found);
  }
  for (KindAccuracy& kind : kinds) kind.interval = WilsonInterval(kind.correct, kind.items);
  return kinds;
}

KindAccuracy AccuracyOfAll(const TaskResult& tasks) {
  KindAccuracy all{.kind = "all"};
  for (const ItemResult& item : tasks.items) Count(item, &all);
  all.interval = WilsonInterval(all.correct, all.items);
  return all;
}

Json IntervalToJson(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  return Json::array({interval->low, interval->high});
}

Json EvalResultToJson(const EvalResult& result, const BootstrapOptions& options) {
  Json json = {{"tern_eval", kFormat},
               {"model", result.model},
               {"settings", result.settings},
               {"complete", result.complete}};
  if (result.text) {
    json["perplexity"] = TextToJson(*result.text, options);
    if (result.text->reference) json["kl"] = ReferenceToJson(*result.text->reference, options);
  }
  if (result.tasks) json["tasks"] = TasksToJson(*result.tasks);
  return json;
}

Result<EvalResult> EvalResultFromJson(const Json& json) {
  if (!json.is_object() || !json.contains("tern_eval")) {
    return InvalidArgument("is no result of tern eval");
  }
  TERN_ASSIGN_OR_RETURN(const int64_t format, JsonInt(json, "tern_eval", 0, "result"));
  if (format != kFormat) {
    return InvalidArgument(fmt::format("is of format {}; this version reads {}", format, kFormat));
  }
  EvalResult result;
  TERN_ASSIGN_OR_RETURN(result.model, JsonString(json, "model", "", "result"));
  TERN_ASSIGN_OR_RETURN(result.complete, JsonBool(json, "complete", true, "result"));
  if (const Json* settings = JsonMember(json, "settings")) result.settings = *settings;
  if (const Json* text = JsonMember(json, "perplexity")) {
    TERN_ASSIGN_OR_RETURN(result.text, ReadText(*text));
  }
  if (const Json* tasks = JsonMember(json, "tasks")) {
    TERN_ASSIGN_OR_RETURN(result.tasks, ReadTasks(*tasks));
  }
  return result;
}

}  // namespace tern
