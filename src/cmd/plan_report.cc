#include "cmd/plan_report.h"

#include <fmt/format.h>

#include "base/units.h"
#include "report/text_table.h"

namespace tern {
namespace {

double TokensPerGib(const PlanReport& r) {
  return static_cast<double>(int64_t{1} << 30) * static_cast<double>(r.page_tokens) /
         static_cast<double>(r.memory.page_bytes);
}

const char* Bound(bool memory) { return memory ? "memory" : "arithmetic"; }

Json PointJson(const PlanReport& r, const PlanPoint& point, bool decode) {
  Json json = Json::object();
  if (decode) json["batch"] = point.batch;
  json[decode ? "context" : "prompt_tokens"] = point.tokens;
  json["seconds"] = point.cost.seconds;
  json["tokens_per_s"] = point.tokens_per_s;
  if (decode) json["tokens_per_s_per_request"] = 1 / point.cost.seconds;
  json["weight_seconds"] = point.cost.weight_seconds;
  json["attention_seconds"] = point.cost.attention_seconds;
  json["other_seconds"] = point.cost.other_seconds;
  json["weight_bytes"] = point.cost.weight_bytes;
  json["weight_operations"] = point.cost.weight_operations;
  json["attention_bytes"] = point.cost.attention_bytes;
  json["attention_operations"] = point.cost.attention_operations;
  json["weights_bound_by"] = Bound(point.cost.weights_bound_by_memory);
  json["attention_bound_by"] = Bound(point.cost.attention_bound_by_memory);
  json["cost_per_million_tokens"] =
      r.price_per_hour > 0 ? Json(CostPerMillionTokens(r.price_per_hour, point.tokens_per_s))
                           : Json();
  return json;
}

std::string Money(const PlanReport& r, double tokens_per_s) {
  if (r.price_per_hour <= 0) return "-";
  return fmt::format("{:.4g}", CostPerMillionTokens(r.price_per_hour, tokens_per_s));
}

std::string SpeedText(const PlanReport& r) {
  using Align = TextTable::Align;
  TextTable table({{"work"},
                   {"tokens/s", Align::kRight},
                   {"per request", Align::kRight},
                   {"ms", Align::kRight},
                   {"weights by"},
                   {"attention by"},
                   {"cost per million", Align::kRight}});
  const auto add = [&](const PlanPoint& p, bool decode) {
    table.AddRow({decode ? fmt::format("decode {} at {}", p.batch, p.tokens)
                         : fmt::format("prefill {}", p.tokens),
                  fmt::format("{:.1f}", p.tokens_per_s),
                  decode ? fmt::format("{:.2f}", 1 / p.cost.seconds) : "-",
                  fmt::format("{:.3f}", p.cost.seconds * 1e3),
                  Bound(p.cost.weights_bound_by_memory), Bound(p.cost.attention_bound_by_memory),
                  Money(r, p.tokens_per_s)});
  };
  for (const PlanPoint& point : r.decode) add(point, true);
  for (const PlanPoint& point : r.prefill) add(point, false);
  return table.ToText();
}

}  // namespace

Json PlanJson(const PlanReport& r) {
  const MemoryPlan& m = r.memory;
  Json json = Json::object();
  json["path"] = r.path;
  json["architecture"] = r.model.config.architecture;
  json["recipe"] = r.recipe;
  json["kv_format"] = r.kv_format;
  json["machine"] = {{"name", r.machine},
                     {"this_host", r.host},
                     {"gpus", r.gpus},
                     {"tp", r.model.tp},
                     {"replicas", r.replicas()},
                     {"bytes_per_s", r.limits.bytes_per_s},
                     {"operations_per_s", r.limits.operations_per_s},
                     {"limits_from", r.limits_from}};
  json["free_parameters"] = {{"mem_fraction_static", r.mem_fraction_static},
                             {"reserve_bytes", r.reserve_bytes},
                             {"bandwidth_efficiency", r.limits.bandwidth_efficiency},
                             {"arithmetic_efficiency", r.limits.arithmetic_efficiency},
                             {"price_per_hour", r.price_per_hour}};
  json["checkpoint_bytes"] = r.model.checkpoint_bytes;
  json["next_token_bytes"] = r.model.next_token_bytes;
  json["replicated_bytes"] = r.model.replicated_bytes;
  json["bytes_per_rank"] = {{"available", m.available_bytes},
                            {"weights", m.weight_bytes},
                            {"workspace", m.workspace_bytes},
                            {"kv", m.kv_bytes},
                            {"total", m.total_bytes()}};
  json["program_bytes"] = r.program_bytes > 0 ? Json(r.program_bytes) : Json();
  json["kv"] = {{"bytes_per_token", m.bytes_per_token},
                {"page_bytes", m.page_bytes},
                {"page_tokens", r.page_tokens},
                {"pages", m.pages},
                {"tokens", m.total_tokens},
                {"tokens_per_gib", TokensPerGib(r)},
                {"tokens_all_replicas", m.total_tokens * r.replicas()}};
  if (r.prefill_pool) {
    const PrefillPool& pool = *r.prefill_pool;
    const MemoryPlan& p = pool.plan.prefill;
    json["prefill_pool"] = {{"path", pool.path},
                            {"recipe", pool.recipe},
                            {"kv_format", pool.kv_format},
                            {"weights", p.weight_bytes},
                            {"workspace", p.workspace_bytes},
                            {"kv", p.kv_bytes},
                            {"bytes_per_token", p.bytes_per_token},
                            {"pages", p.pages},
                            {"tokens", p.total_tokens},
                            {"total", p.total_bytes()}};
    json["shared_weights"] = pool.plan.shared_weight_bytes;
    json["total_bytes"] = pool.plan.total_bytes();
  }
  json["context_length"] = m.context_length;
  json["concurrent_requests"] = m.full_contexts * r.replicas();
  json["memory_summary"] = r.prefill_pool ? r.prefill_pool->plan.Summary() : m.Summary();
  json["decode"] = Json::array();
  json["prefill"] = Json::array();
  for (const PlanPoint& point : r.decode) json["decode"].push_back(PointJson(r, point, true));
  for (const PlanPoint& point : r.prefill) json["prefill"].push_back(PointJson(r, point, false));
  return json;
}

std::string PlanText(const PlanReport& r) {
  const MemoryPlan& m = r.memory;
  const PrefillPool* const pool = r.prefill_pool ? &*r.prefill_pool : nullptr;
  std::string text = fmt::format("{}: {}, weights {}, KV {}\n{}\n\n", r.path,
                                 r.model.config.architecture, r.recipe, r.kv_format, r.machine);
  using Align = TextTable::Align;
  TextTable memory({{pool != nullptr ? "of this machine" : "of one rank"},
                    {"bytes", Align::kRight},
                    {"GiB", Align::kRight}});
  const auto row = [&](const char* name, uint64_t bytes) {
    memory.AddRow({name, fmt::format("{}", bytes), fmt::format("{:.2f}", Gib(bytes))});
  };
  row("available", pool != nullptr ? pool->plan.available_bytes : m.available_bytes);
  if (pool != nullptr) {
    const MemoryPlan& p = pool->plan.prefill;
    row("weights of both engines", pool->plan.shared_weight_bytes);
    row("weights of prefill alone", p.weight_bytes);
    row("weights of decode alone", m.weight_bytes - pool->plan.shared_weight_bytes);
    row("workspace of prefill", p.workspace_bytes);
    row("workspace of decode", m.workspace_bytes);
    row("KV pages of prefill", p.kv_bytes);
    row("KV pages of decode", m.kv_bytes);
    row("total", pool->plan.total_bytes());
  } else {
    row("weights", m.weight_bytes);
    row("workspace", m.workspace_bytes);
    row("KV pages", m.kv_bytes);
    row("total", m.total_bytes());
    if (r.program_bytes > 0) {
      row("program, tokenizer", r.program_bytes);
      row("resident when all is used", m.total_bytes() + r.program_bytes);
    }
  }
  text += memory.ToText();
  text += fmt::format(
      "\nKV: {} tokens in {} pages of {}; {} bytes a token, {:.1f} tokens a GiB\n"
      "Requests of {} tokens at once: {}{}\n",
      m.total_tokens, m.pages, r.page_tokens, m.bytes_per_token, TokensPerGib(r), m.context_length,
      m.full_contexts * r.replicas(),
      r.replicas() > 1 ? fmt::format(" ({} replicas of {})", r.replicas(), m.full_contexts) : "");
  if (pool != nullptr) {
    const MemoryPlan& p = pool->plan.prefill;
    text += fmt::format(
        "Prefill's KV: {}: {} tokens in {} pages; {} bytes a token; weights {} of {}\n",
        pool->kv_format, p.total_tokens, p.pages, p.bytes_per_token, pool->recipe, pool->path);
    text += fmt::format("serve allocates:\n{}\n", pool->plan.Summary());
  } else if (r.host) {
    text += fmt::format("serve allocates: {}\n", m.Summary());
  }
  if (r.model.tp > 1) {
    text += fmt::format(
        "Weights of a rank: an even share of the checkpoint. {:.2f} GiB of it are not split by "
        "tensor parallelism;\neach rank would hold them whole.\n",
        Gib(r.model.replicated_bytes));
  }
  text += "\nFree parameters:\n";
  if (r.kv_memory_given) {
    text += "  --kv-memory          given: no fraction, no reserve\n";
  } else {
    text += fmt::format("  --mem-fraction-static    {} of {} for weights and KV\n",
                        r.mem_fraction_static,
                        pool != nullptr ? "what prefill leaves" : "a rank's memory");
    if (pool != nullptr) {
      text += fmt::format("  --prefill-max-total-tokens {}: prefill's share\n",
                          pool->plan.prefill.total_tokens);
    }
    if (!r.host) {
      text +=
          fmt::format("  --reserve                {:.2f} GiB a rank for activations and graphs\n",
                      Gib(r.reserve_bytes));
    }
  }
  text += fmt::format(
      "  --bandwidth-efficiency   {}\n  --arithmetic-efficiency  {}\n  --price                  "
      "{}\n",
      r.limits.bandwidth_efficiency, r.limits.arithmetic_efficiency,
      r.price_per_hour > 0 ? fmt::format("{} an hour, all devices", r.price_per_hour) : "none");
  if (r.decode.empty()) return text + "\nNo speed: --bandwidth and --flops are not given.\n";
  text += fmt::format(
      "\n{:.1f} GB/s and {:.1f} G operations/s a rank ({}); no communication, no "
      "host work:\n\n{}",
      r.limits.bytes_per_s * 1e-9, r.limits.operations_per_s * 1e-9, r.limits_from, SpeedText(r));
  return text;
}

SvgPicture PlanPicture(const PlanReport& r) {
  BarChart memory;
  memory.title = "Memory of one rank";
  memory.note = fmt::format("{}, weights {}, KV {}: {} tokens", r.path, r.recipe, r.kv_format,
                            r.memory.total_tokens);
  memory.axis.label = "GiB";
  memory.categories = {"available", "weights", "workspace", "KV pages"};
  const auto bars = [](const MemoryPlan& m) {
    BarChart::Series series;
    for (const uint64_t bytes :
         {m.available_bytes, m.weight_bytes, m.workspace_bytes, m.kv_bytes}) {
      series.values.push_back({Gib(bytes)});
    }
    return series;
  };
  if (r.prefill_pool) {
    memory.title = "Memory of two engines in one process";
    memory.series = {bars(r.prefill_pool->plan.prefill), bars(r.memory)};
    memory.series[0].name = "prefill";
    memory.series[1].name = "decode, of what prefill leaves";
  } else {
    memory.series = {bars(r.memory)};
  }
  SvgPicture picture;
  picture.Add(memory);
  if (r.curve.empty()) return picture;
  LineChart speed;
  speed.title = "Expected decode";
  speed.note = fmt::format("{}; {} positions each; efficiencies {} and {}", r.machine,
                           r.curve.front().tokens, r.limits.bandwidth_efficiency,
                           r.limits.arithmetic_efficiency);
  speed.x = {.label = "requests of a replica at once", .log = true};
  speed.y.label = "tokens/s, all replicas";
  speed.series = {{"decode", {}}};
  for (const PlanPoint& point : r.curve) {
    speed.series[0].points.push_back({static_cast<double>(point.batch), {point.tokens_per_s}});
  }
  picture.Add(speed);
  return picture;
}

}  // namespace tern
