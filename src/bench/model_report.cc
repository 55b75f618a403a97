// How model_bench.h's results are shown.
#include <fmt/format.h>

#include <algorithm>
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

Json ResultJson(const ModelResult& r) {
  const bool prefill = r.work.kind == ModelWork::Kind::kPrefill;
  Json limit = nullptr;
  if (r.memory_s > 0) {
    limit = {{"bound", r.bound()},
             {"share", r.share()},
             {"memory_s", r.memory_s},
             {"arithmetic_s", r.arithmetic_s}};
  }
  return {{"work", r.work.Name()},
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
          {"bytes", r.bytes},
          {"f32_ops", r.f32_ops},
          {"bf16_ops", r.bf16_ops},
          {"int8_ops", r.int8_ops},
          {"limit", limit}};
}

std::string Range(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return fmt::format("{:.1f}-{:.1f}", *low, *high);
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
                  fmt::format("{:.1f}", r.bytes / r.seconds() * 1e-9),
                  fmt::format("{:.0f}", (r.f32_ops + r.bf16_ops + r.int8_ops) / r.seconds() * 1e-9),
                  fmt::format("{:.0f} %", r.share() * 100), r.bound()});
  }
  return table.ToText();
}

SvgPicture ModelBenchPicture(const BenchMachine& machine, const std::vector<ModelResult>& results) {
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
  return picture;
}

}  // namespace tern
