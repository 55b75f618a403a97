// What serve_bench.h's records come to, and how it is shown.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "bench/serve_bench.h"
#include "bench/statistics.h"
#include "report/text_table.h"

namespace tern {
namespace {

LatencyFigures LatencyOf(const std::vector<double>& seconds) {
  if (seconds.empty()) return {};
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return {PercentileOf(seconds, 50) * 1e3, PercentileOf(seconds, 90) * 1e3,
          PercentileOf(seconds, 99) * 1e3, sum / static_cast<double>(seconds.size()) * 1e3};
}

Json LatencyJson(const LatencyFigures& figures) {
  return {{"mean", figures.mean}, {"p50", figures.p50}, {"p90", figures.p90}, {"p99", figures.p99}};
}

std::string LoadText(const ServeBenchOptions& o) {
  return o.rate > 0 ? fmt::format("open loop, {:g} requests/s", o.rate)
                    : fmt::format("closed loop, {} at a time", o.concurrency);
}

std::string SizeText(const ServeBenchOptions& o) {
  return fmt::format("{} requests of {} + {} tokens", o.requests, o.prompt_tokens, o.output_tokens);
}

}  // namespace

ServeFigures FiguresOf(const ServeBenchOptions& options, const ServeBenchResult& result) {
  ServeFigures figures;
  std::vector<double> ttft, itl, tpot, whole;
  int64_t tokens = 0, good = 0;
  for (const RequestRecord& record : result.records) {
    if (!record.error.empty()) {
      ++figures.failed;
      continue;
    }
    ++figures.answered;
    tokens += record.output_tokens;
    ttft.push_back(record.ttft());
    whole.push_back(record.last - record.start);
    itl.insert(itl.end(), record.gaps.begin(), record.gaps.end());
    const double per_token = record.output_tokens > 1 ? record.tpot() : 0;
    if (record.output_tokens > 1) tpot.push_back(per_token);
    good += record.ttft() * 1e3 <= options.ttft_goal_ms && per_token * 1e3 <= options.itl_goal_ms;
  }
  figures.ttft = LatencyOf(ttft);
  figures.itl = LatencyOf(itl);
  figures.tpot = LatencyOf(tpot);
  figures.whole = LatencyOf(whole);
  if (result.seconds > 0) {
    figures.requests_per_s = static_cast<double>(figures.answered) / result.seconds;
    figures.output_tokens_per_s = static_cast<double>(tokens) / result.seconds;
    figures.goodput = static_cast<double>(good) / result.seconds;
  }
  if (!result.records.empty()) {
    figures.good_share = static_cast<double>(good) / static_cast<double>(result.records.size());
  }
  return figures;
}

Json ServeBenchJson(const ServeBenchOptions& o, const ServeBenchResult& result) {
  const ServeFigures figures = FiguresOf(o, result);
  Json json = {{"bench", "serve"}, {"url", o.url}, {"model", o.model}};
  json["settings"] = {{"loop", o.rate > 0 ? "open" : "closed"},
                      {"rate", o.rate},
                      {"concurrency", o.concurrency},
                      {"requests", o.requests},
                      {"warm_ups", o.warm_ups},
                      {"prompt_tokens", o.prompt_tokens},
                      {"output_tokens", o.output_tokens},
                      {"ttft_goal_ms", o.ttft_goal_ms},
                      {"itl_goal_ms", o.itl_goal_ms},
                      {"seed", o.seed}};
  json["answered"] = figures.answered;
  json["failed"] = figures.failed;
  json["seconds"] = result.seconds;
  json["ttft_ms"] = LatencyJson(figures.ttft);
  json["itl_ms"] = LatencyJson(figures.itl);
  json["tpot_ms"] = LatencyJson(figures.tpot);
  json["request_ms"] = LatencyJson(figures.whole);
  json["requests_per_s"] = figures.requests_per_s;
  json["output_tokens_per_s"] = figures.output_tokens_per_s;
  json["goodput_requests_per_s"] = figures.goodput;
  json["good_share"] = figures.good_share;
  return json;
}

std::string ServeBenchTable(const ServeBenchOptions& o, const ServeBenchResult& result) {
  using Align = TextTable::Align;
  const ServeFigures figures = FiguresOf(o, result);
  TextTable table({{"milliseconds"},
                   {"mean", Align::kRight},
                   {"p50", Align::kRight},
                   {"p90", Align::kRight},
                   {"p99", Align::kRight}});
  const auto add = [&table](const char* name, const LatencyFigures& f) {
    table.AddRow({name, fmt::format("{:.1f}", f.mean), fmt::format("{:.1f}", f.p50),
                  fmt::format("{:.1f}", f.p90), fmt::format("{:.1f}", f.p99)});
  };
  add("first token (TTFT)", figures.ttft);
  add("between pieces (ITL)", figures.itl);
  add("per token after the first", figures.tpot);
  add("whole request", figures.whole);
  std::string text = fmt::format("{}: {}, {}\n{}", o.url, LoadText(o), SizeText(o), table.ToText());
  text += fmt::format(
      "{} answered, {} failed in {:.1f} s: {:.2f} requests/s, {:.1f} output tokens/s\n"
      "goodput (TTFT <= {:g} ms, {:g} ms a token): {:.2f} requests/s, {:.0f} % of all\n",
      figures.answered, figures.failed, result.seconds, figures.requests_per_s,
      figures.output_tokens_per_s, o.ttft_goal_ms, o.itl_goal_ms, figures.goodput,
      figures.good_share * 100);
  const auto failed =
      std::find_if(result.records.begin(), result.records.end(),
                   [](const RequestRecord& record) { return !record.error.empty(); });
  if (failed != result.records.end()) text += "first failure: " + failed->error + "\n";
  return text;
}

SvgPicture ServeBenchPicture(const ServeBenchOptions& o, const ServeBenchResult& result) {
  SvgPicture picture;
  const auto add = [&](const char* title, std::vector<double> seconds) {
    LineChart chart;
    chart.title = title;
    chart.note = LoadText(o) + ", " + SizeText(o);
    chart.x.label = "share of requests or pieces, %";
    chart.y.label = "ms";
    chart.series.push_back({title, {}});
    std::sort(seconds.begin(), seconds.end());
    if (seconds.empty()) return;
    for (int percent = 1; percent <= 100; ++percent) {
      const double value = PercentileOf(seconds, percent) * 1e3;
      chart.series[0].points.push_back({static_cast<double>(percent), {value}});
    }
    picture.Add(chart);
  };
  std::vector<double> ttft, itl;
  for (const RequestRecord& record : result.records) {
    if (!record.error.empty()) continue;
    ttft.push_back(record.ttft());
    itl.insert(itl.end(), record.gaps.begin(), record.gaps.end());
  }
  add("Time to the first token", ttft);
  add("Time between pieces", itl);
  return picture;
}

}  // namespace tern
