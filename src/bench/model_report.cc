// How model_bench.h's results are shown.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "bench/model_bench.h"
#include "report/text_table.h"

namespace tern {
namespace {

// What results of one loaded model and one setting share. Not the weights' formats: passes with few
// tokens don't touch all of them.
std::string Variant(const ModelResult& r) {
  return fmt::format("{}|{}|{}", r.model.recipe, r.model.kv_format, r.activation_format);
}
std::string VariantLabel(const ModelResult& r) {
  return fmt::format("{} weights, {} KV, {} activations", r.weight_format, r.model.kv_format,
                     r.activation_format);
}

// Of no time there is no rate: null, or an empty cell.
Json RateJson(double amount, double seconds) {
  return seconds > 0 ? Json(amount / seconds) : Json(nullptr);
}
std::string RateCell(double amount, double seconds, int digits, const char* unit = "") {
  return seconds > 0 ? fmt::format("{:.{}f}{}", amount / seconds, digits, unit) : "";
}

// memory_s and arithmetic_s against a time.
Json LimitJson(const char* bound, const Json& share, double memory_s, double arithmetic_s) {
  return {
      {"bound", bound}, {"share", share}, {"memory_s", memory_s}, {"arithmetic_s", arithmetic_s}};
}

Json OperationJson(const OperationTime& o, double pass_s) {
  Json json = {{"operation", o.name},    {"calls", o.calls},
               {"ms", o.seconds * 1e3},  {"share_of_pass", RateJson(o.seconds, pass_s)},
               {"bytes", nullptr},       {"f32_ops", nullptr},
               {"bf16_ops", nullptr},    {"int8_ops", nullptr},
               {"bytes_per_s", nullptr}, {"ops_per_s", nullptr},
               {"limit", nullptr}};
  if (!o.counted()) return json;
  json["bytes"] = o.work.bytes;
  json["f32_ops"] = o.work.f32_ops;
  json["bf16_ops"] = o.work.bf16_ops;
  json["int8_ops"] = o.work.int8_ops;
  json["bytes_per_s"] = RateJson(o.work.bytes, o.seconds);
  json["ops_per_s"] = RateJson(o.work.operations(), o.seconds);
  json["limit"] =
      LimitJson(o.bound(), o.timed() ? Json(o.share()) : Json(nullptr), o.memory_s, o.arithmetic_s);
  return json;
}

Json ResultJson(const ModelResult& r) {
  const bool prefill = r.work.kind == ModelWork::Kind::kPrefill;
  Json limit = nullptr;
  if (r.memory_s > 0) limit = LimitJson(r.bound(), r.share(), r.memory_s, r.arithmetic_s);
  Json json = {{"work", r.work.Name()},
               {"kind", prefill ? "prefill" : "decode"},
               {"tokens", r.work.tokens},
               {"batch", r.work.batch},
               {"context", r.work.context},
               {"weight_format", r.weight_format},
               {"kv_format", r.model.kv_format},
               {"activation_format", r.activation_format},
               {"isa", r.isa},
               {"threads", r.threads},
               {"tokens_per_s", r.median_tokens_per_s()},
               {"tokens_per_s_runs", r.tokens_per_s},
               {"step_ms_median", r.step_s * 1e3},
               {"bytes", r.total.bytes},
               {"f32_ops", r.total.f32_ops},
               {"bf16_ops", r.total.bf16_ops},
               {"int8_ops", r.total.int8_ops},
               {"limit", limit}};
  if (r.operations.empty()) return json;
  const double pass_s = PassSeconds(r.operations);
  json["profiled_pass_ms"] = pass_s * 1e3;
  json["operations"] = Json::array();
  for (const OperationTime& o : r.operations)
    json["operations"].push_back(OperationJson(o, pass_s));
  return json;
}

std::string Range(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return fmt::format("{:.1f}-{:.1f}", *low, *high);
}

constexpr size_t kRooflineOperations = 5;

double OpsPerByte(const Work& work) { return work.operations() / work.bytes; }

// The roof is memory bandwidth up to the highest peak; a line marks each peak.
LineChart Roofline(const MachineLimits& limits, const ModelResult& r) {
  LineChart chart;
  chart.title = "Roofline: " + r.work.Name();
  chart.note = fmt::format("{}; the operations that take the most of a pass", VariantLabel(r));
  chart.x = {.label = "operations for each byte from memory", .log = true};
  chart.y = {.label = "G operations/s", .log = true};
  const struct {
    const char* name;
    double best;
  } peaks[] = {{"FP32", limits.f32.best}, {"BF16", limits.bf16.best}, {"INT8", limits.int8.best}};
  double highest = 0;
  for (const auto& peak : peaks) {
    if (peak.best == 0) continue;
    highest = std::max(highest, peak.best);
    chart.marks.push_back({peak.best * 1e-9, peak.name});
  }
  const double ridge = highest / limits.read.best;
  double least = ridge, most = ridge;
  std::vector<LineChart::Series> points;
  for (const OperationTime& o : r.operations) {
    if (o.work.bytes == 0 || o.work.operations() == 0 || !o.timed()) continue;
    if (points.size() == kRooflineOperations) break;
    const double intensity = OpsPerByte(o.work);
    points.push_back(
        {fmt::format("{}, {:.0f} %", o.name, o.seconds / PassSeconds(r.operations) * 100),
         {{intensity, {o.work.operations() / o.seconds * 1e-9}}}});
    least = std::min(least, intensity);
    most = std::max(most, intensity);
  }
  chart.series.push_back({"limit", {}});
  for (const double x : {least / 2, ridge, most * 2}) {
    const double y = std::min(x * limits.read.best, highest);
    chart.series[0].points.push_back({x, {y * 1e-9}});
  }
  chart.series.insert(chart.series.end(), points.begin(), points.end());
  return chart;
}

}  // namespace

Json ModelBenchJson(const BenchMachine& machine, const MachineLimits& limits,
                    const ModelBenchOptions& options, const std::vector<ModelResult>& results) {
  Json json = {{"bench", "model"}, {"machine", machine.ToJson()}, {"limits", limits.ToJson()}};
  json["settings"] = {{"chunk", options.chunk},
                      {"repetitions", options.repetitions},
                      {"real_context", options.real_context},
                      {"seed", options.seed}};
  if (!results.empty()) {
    const BenchModelFacts& model = results[0].model;
    json["model"] = {{"path", model.path},
                     {"architecture", model.architecture},
                     {"weight_bytes", model.weight_bytes}};
  }
  json["results"] = Json::array();
  for (const ModelResult& result : results) json["results"].push_back(ResultJson(result));
  return json;
}

std::string ModelBenchTable(const std::vector<ModelResult>& results) {
  using Align = TextTable::Align;
  TextTable table({{"work"},
                   {"weights"},
                   {"KV"},
                   {"activations"},
                   {"tokens/s", Align::kRight},
                   {"range", Align::kRight},
                   {"ms/pass", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"Gop/s", Align::kRight},
                   {"limit", Align::kRight},
                   {"bound by"}});
  for (const ModelResult& r : results) {
    table.AddRow({r.work.Name(), r.weight_format, r.model.kv_format, r.activation_format,
                  fmt::format("{:.1f}", r.median_tokens_per_s()), Range(r.tokens_per_s),
                  fmt::format("{:.2f}", r.step_s * 1e3),
                  fmt::format("{:.1f}", r.total.bytes / r.seconds() * 1e-9),
                  fmt::format("{:.0f}", r.total.operations() / r.seconds() * 1e-9),
                  fmt::format("{:.0f} %", r.share() * 100), r.bound()});
  }
  return table.ToText();
}

std::string OperationsTable(const std::vector<ModelResult>& results) {
  using Align = TextTable::Align;
  std::string text;
  for (const ModelResult& r : results) {
    if (r.operations.empty()) continue;
    TextTable table({{"operation"},
                     {"calls", Align::kRight},
                     {"ms", Align::kRight},
                     {"of pass", Align::kRight},
                     {"MB", Align::kRight},
                     {"Mop", Align::kRight},
                     {"GB/s", Align::kRight},
                     {"Gop/s", Align::kRight},
                     {"limit", Align::kRight},
                     {"bound by"}});
    const double pass_s = PassSeconds(r.operations);
    for (const OperationTime& o : r.operations) {
      const bool whole = o.calls == std::floor(o.calls);
      std::vector<std::string> cells = {o.name, fmt::format("{:.{}f}", o.calls, whole ? 0 : 1),
                                        fmt::format("{:.3f}", o.seconds * 1e3),
                                        RateCell(o.seconds * 100, pass_s, 1, " %")};
      if (o.counted()) {
        cells.push_back(fmt::format("{:.2f}", o.work.bytes * 1e-6));
        cells.push_back(fmt::format("{:.1f}", o.work.operations() * 1e-6));
        cells.push_back(RateCell(o.work.bytes * 1e-9, o.seconds, 1));
        cells.push_back(RateCell(o.work.operations() * 1e-9, o.seconds, 0));
        cells.push_back(o.timed() ? fmt::format("{:.0f} %", o.share() * 100) : "");
        cells.push_back(o.bound());
      }
      table.AddRow(std::move(cells));
    }
    text += fmt::format("\n{}, {}, a pass of {:.2f} ms by operation:\n{}", r.work.Name(),
                        VariantLabel(r), pass_s * 1e3, table.ToText());
  }
  return text;
}

SvgPicture ModelBenchPicture(const BenchMachine& machine, const MachineLimits& limits,
                             const std::vector<ModelResult>& results) {
  std::vector<std::string> works, variants;
  std::map<std::string, std::string> labels;
  std::map<std::pair<std::string, std::string>, const ModelResult*> found;
  const auto add = [](std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const ModelResult& r : results) {
    add(works, r.work.Name());
    add(variants, Variant(r));
    labels.emplace(Variant(r), VariantLabel(r));
    found[{r.work.Name(), Variant(r)}] = &r;
  }
  const std::string model = results.empty() ? "" : results[0].model.path + ", ";
  BarChart speed, share;
  speed.title = "Speed";
  speed.note = model + machine.ToText();
  speed.axis.label = "tokens/s";
  speed.digits = 4;
  share.title = "Share of the machine's limit";
  share.note = "of memory bandwidth or peak arithmetic, whichever binds";
  share.axis.label = "%";
  speed.categories = share.categories = works;
  for (const std::string& variant : variants) {
    speed.series.push_back({labels[variant], {}});
    share.series.push_back({labels[variant], {}});
    for (const std::string& work : works) {
      const auto at = found.find({work, variant});
      const ModelResult* r = at == found.end() ? nullptr : at->second;
      const double none = std::numeric_limits<double>::quiet_NaN();
      ChartValue value{none};
      if (r != nullptr) {
        const auto [low, high] =
            std::minmax_element(r->tokens_per_s.begin(), r->tokens_per_s.end());
        value = {r->median_tokens_per_s(), *low, *high};
      }
      speed.series.back().values.push_back(value);
      share.series.back().values.push_back({r != nullptr ? r->share() * 100 : none});
    }
  }
  SvgPicture picture;
  picture.Add(speed);
  picture.Add(share);
  for (const ModelResult& r : results) {
    if (!r.operations.empty()) picture.Add(Roofline(limits, r));
  }
  return picture;
}

}  // namespace tern
