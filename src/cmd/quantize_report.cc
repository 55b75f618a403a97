#include "cmd/quantize_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/output_file.h"
#include "report/svg_chart.h"
#include "report/text_table.h"

namespace tern {
namespace {

constexpr size_t kWorst = 20;

struct Group {
  QuantError error;
  int64_t weights = 0;
  std::map<std::string, int64_t> methods;

  void Add(const QuantizedWeight& weight) {
    error.Add(weight.error);
    ++weights;
    ++methods[weight.method];
  }
};

std::map<std::string, Group> ByKind(const QuantizeReport& report) {
  std::map<std::string, Group> kinds;
  for (const QuantizedWeight& weight : report.weights) kinds[weight.kind].Add(weight);
  return kinds;
}

using LayerKey = std::pair<int64_t, std::string>;
std::map<LayerKey, Group> ByLayer(const QuantizeReport& report) {
  std::map<LayerKey, Group> layers;
  for (const QuantizedWeight& weight : report.weights) {
    layers[{weight.layer, weight.kind}].Add(weight);
  }
  return layers;
}

std::vector<const QuantizedWeight*> Worst(const QuantizeReport& report, size_t count) {
  std::vector<const QuantizedWeight*> worst;
  for (const QuantizedWeight& weight : report.weights) worst.push_back(&weight);
  std::stable_sort(worst.begin(), worst.end(), [](const auto* a, const auto* b) {
    return a->error.RelativeRms() > b->error.RelativeRms();
  });
  worst.resize(std::min(worst.size(), count));
  return worst;
}

void AddError(const Group& group, Json* json) {
  (*json)["weights"] = group.weights;
  (*json)["parameters"] = group.error.count;
  (*json)["relative_rms_error"] = group.error.RelativeRms();
  (*json)["largest_error"] = group.error.largest;
  (*json)["methods"] = Json::object();
  for (const auto& [method, count] : group.methods) (*json)["methods"][method] = count;
}

}  // namespace

Json QuantizeReportJson(const QuantizeReport& report) {
  Json json = Json::object();
  json["job"] = report.job;
  json["input_bytes"] = report.input_bytes;
  json["output_bytes"] = report.output_bytes;
  json["tensors"] = report.tensors;
  json["shards"] = report.shards;
  json["kinds"] = Json::array();
  for (const auto& [kind, group] : ByKind(report)) {
    Json item = Json::object();
    item["kind"] = kind;
    AddError(group, &item);
    json["kinds"].push_back(std::move(item));
  }
  json["layers"] = Json::array();
  for (const auto& [key, group] : ByLayer(report)) {
    Json item = Json::object();
    item["layer"] = key.first < 0 ? Json() : Json(key.first);
    item["kind"] = key.second;
    AddError(group, &item);
    json["layers"].push_back(std::move(item));
  }
  json["worst"] = Json::array();
  for (const QuantizedWeight* weight : Worst(report, kWorst)) {
    Json item = Json::object();
    item["name"] = weight->name;
    item["kind"] = weight->kind;
    item["method"] = weight->method;
    item["relative_rms_error"] = weight->error.RelativeRms();
    item["largest_error"] = weight->error.largest;
    json["worst"].push_back(std::move(item));
  }
  json["carried_unknown_tensors"] = report.unknown;
  json["notes"] = report.notes;
  return json;
}

std::string QuantizeReportSvg(const QuantizeReport& report) {
  const std::string note = fmt::format("{} weights, {:.2f} GB to {:.2f} GB", report.weights.size(),
                                       static_cast<double>(report.input_bytes) / 1e9,
                                       static_cast<double>(report.output_bytes) / 1e9);
  SvgPicture picture;
  BarChart bars{.title = "Quantization error by kind of weight",
                .note = note,
                .axis = {.label = "relative RMS error, %"}};
  BarChart::Series series{.name = "relative RMS error"};
  for (const auto& [kind, group] : ByKind(report)) {
    bars.categories.push_back(kind);
    series.values.push_back({.value = group.error.RelativeRms() * 100});
  }
  bars.series.push_back(std::move(series));
  picture.Add(bars);

  LineChart lines{.title = "Quantization error by layer",
                  .note = note,
                  .x = {.label = "layer"},
                  .y = {.label = "relative RMS error, %"}};
  std::map<std::string, LineChart::Series> kinds;
  for (const auto& [key, group] : ByLayer(report)) {
    if (key.first < 0) continue;
    LineChart::Series& line = kinds[key.second];
    line.name = key.second;
    line.points.push_back(
        {.x = static_cast<double>(key.first), .y = {.value = group.error.RelativeRms() * 100}});
  }
  for (auto& [kind, line] : kinds) lines.series.push_back(std::move(line));
  if (!lines.series.empty()) picture.Add(lines);
  return picture.ToSvg();
}

std::string QuantizeReportText(const QuantizeReport& report) {
  using enum TextTable::Align;
  TextTable table({{"kind", kLeft},
                   {"weights", kRight},
                   {"parameters", kRight},
                   {"relative RMS error", kRight}});
  for (const auto& [kind, group] : ByKind(report)) {
    table.AddRow({kind, fmt::format("{}", group.weights), fmt::format("{}", group.error.count),
                  fmt::format("{:.3f} %", group.error.RelativeRms() * 100)});
  }
  std::string text = table.ToText() + "\nworst:\n";
  for (const QuantizedWeight* weight : Worst(report, 5)) {
    text += fmt::format("  {:.3f} %  {}\n", weight->error.RelativeRms() * 100, weight->name);
  }
  return text;
}

Status WriteQuantizeReport(const QuantizeReport& report, const std::string& folder) {
  TERN_RETURN_IF_ERROR(WriteFileAtomically(folder + "/" + kQuantizeReportFile,
                                           DumpJson(QuantizeReportJson(report), 2) + "\n"));
  return WriteFileAtomically(folder + "/quantize_report.svg", QuantizeReportSvg(report));
}

}  // namespace tern
