#include "server/loads.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>

#include "engine/engine.h"

namespace tern {
namespace {

constexpr double kGiB = 1 << 30;
// tern does not speculate and has no adapters: nothing is reported under spec and lora.
constexpr const char* kSections[] = {"core", "memory", "spec", "lora", "disagg", "queues"};

double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Sections as their metrics' names have them.
std::string_view MetricPrefix(const std::string& section) {
  if (section == "disaggregation") return "disagg";
  if (section == "speculative") return "spec";
  return section;
}

void AddGauge(std::string_view name, const Json& value, std::string* text) {
  if (!value.is_number()) return;
  fmt::format_to(std::back_inserter(*text), "# TYPE {0} gauge\n{0}{{dp_rank=\"0\"}} {1}\n", name,
                 value.dump());
}

}  // namespace

Result<LoadsQuery> ParseLoadsQuery(const HttpRequest& request) {
  LoadsQuery query;
  const std::string format = request.QueryParameter("format").value_or("json");
  if (format != "json" && format != "prometheus") {
    return InvalidArgument("query.format must be json or prometheus");
  }
  query.prometheus = format == "prometheus";
  if (request.QueryParameter("dp_rank").value_or("0") != "0") {
    return InvalidArgument("query.dp_rank must be 0: there is one engine");
  }
  const std::string include = request.QueryParameter("include").value_or("all");
  for (size_t begin = 0; begin <= include.size();) {
    const size_t end = std::min(include.find(',', begin), include.size());
    std::string name = include.substr(begin, end - begin);
    begin = end + 1;
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (name == "all") {
      query.sections.insert(std::begin(kSections), std::end(kSections));
    } else if (std::find(std::begin(kSections), std::end(kSections), name) != std::end(kSections)) {
      query.sections.insert(name);
    } else if (!name.empty()) {
      return InvalidArgument(
          "query.include must list some of core, memory, spec, lora, disagg, queues, all");
    }
  }
  return query;
}

Json LoadJson(const ServedModel& model, const LoadsQuery& query, const Json& disaggregation,
              int64_t now) {
  const EngineStats stats = model.engine->Stats();
  const double token_usage = Share(stats.used_tokens, stats.total_tokens);
  // Routers want the core whatever they ask for.
  Json load = {{"timestamp", now},
               {"dp_rank", 0},
               {"num_running_reqs", stats.running_requests},
               {"num_waiting_reqs", stats.queued_requests},
               {"num_waiting_uncached_tokens", stats.queued_tokens},
               {"num_total_reqs", stats.running_requests + stats.queued_requests},
               {"num_used_tokens", stats.used_tokens},
               {"num_total_tokens", stats.used_tokens + stats.queued_tokens},
               {"num_active_tokens", stats.used_tokens},
               {"num_cached_tokens", stats.cached_tokens},
               {"num_free_tokens", stats.free_tokens},
               {"num_prealloc_ready_tokens", 0},
               {"max_total_num_tokens", stats.total_tokens},
               {"max_running_requests", stats.max_running_requests},
               {"token_usage", token_usage},
               {"gen_throughput", stats.generated_tokens_per_s},
               {"cache_hit_rate", Share(stats.cached_prompt_tokens, stats.prompt_tokens)},
               {"utilization", token_usage},
               {"total_prefill_uncached_tokens", stats.prefill_tokens},
               {"total_prefill_busy_us", stats.prefill_busy_us},
               {"decode_moments", nullptr}};
  if (query.sections.contains("memory")) {
    load["memory"] = {{"weight_gb", static_cast<double>(stats.weight_bytes) / kGiB},
                      {"kv_cache_gb", static_cast<double>(stats.kv_bytes) / kGiB},
                      {"graph_gb", 0.0},
                      {"token_capacity", stats.total_tokens}};
  }
  if (query.sections.contains("disagg")) load["disaggregation"] = disaggregation;
  if (query.sections.contains("queues")) {
    load["queues"] = {{"waiting", stats.queued_requests},
                      {"grammar", 0},
                      {"paused", 0},
                      {"retracted", stats.retracted_requests},
                      {"prealloc_ready", 0}};
  }
  return load;
}

Json LoadsJson(const Json& load, std::string_view version, int64_t now) {
  return {{"timestamp", fmt::format("{:%Y-%m-%dT%H:%M:%S}+00:00", fmt::gmtime(std::time_t{now}))},
          {"version", version},
          {"accelerator", nullptr},
          {"num_accelerators", 0},
          {"dp_rank_count", 1},
          {"loads", Json::array({load})}};
}

Json OldLoadJson(const ServedModel& model) {
  const EngineStats stats = model.engine->Stats();
  return Json::array({{{"dp_rank", 0},
                       {"num_reqs", stats.running_requests + stats.queued_requests},
                       {"num_waiting_reqs", stats.queued_requests},
                       {"num_tokens", stats.used_tokens + stats.queued_tokens}}});
}

std::string LoadsPrometheus(const Json& load) {
  std::string text;
  for (const auto& [key, value] : load.items()) {
    if (key == "dp_rank") continue;
    AddGauge("sglang_" + key, value, &text);
    if (!value.is_object()) continue;
    for (const auto& [name, number] : value.items()) {
      AddGauge(fmt::format("sglang_{}_{}", MetricPrefix(key), name), number, &text);
    }
  }
  return text;
}

}  // namespace tern
