// What pd_bench.h's turns come to, and how it is shown.
#include <fmt/format.h>

#include <algorithm>

#include "bench/pd_bench.h"
#include "report/text_table.h"

namespace tern {
namespace {

// The p-th percentile in milliseconds; 0 of nothing.
double Ms(const std::vector<double>& seconds, double percent) {
  return seconds.empty() ? 0 : PercentileOf(seconds, percent) * 1e3;
}

template <typename Of>
std::vector<double> All(const PdBenchResult& result, const Of& of) {
  std::vector<double> all;
  for (const PdTurn& turn : result.turns) {
    const std::vector<double>& part = of(turn);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

const std::vector<double>& Gaps(const PdTurn& turn) { return turn.gaps; }

std::string LoadText(const PdBenchOptions& o) {
  return fmt::format("{} streams; {} prompts of {} tokens every {:g} s, {} times; {} turns each",
                     o.streams, o.burst, o.burst_prompt_tokens, o.interval_s, o.bursts, o.turns);
}

std::string TransferText(const PdTransferResult& t) {
  const std::vector<double> ratios = t.Ratios();
  if (ratios.empty()) return "";
  const MedianInterval interval = MedianIntervalOf(ratios);
  return fmt::format(
      "time to first token, by turns: {} {:.1f} ms, {} {:.1f} ms (medians of {}); ratio {:.4f}, "
      "{:.4f} to {:.4f}\n",
      t.names[0], MedianOf(t.ttft[0]) * 1e3, t.names[1], MedianOf(t.ttft[1]) * 1e3, ratios.size(),
      MedianOf(ratios), interval.low, interval.high);
}

}  // namespace

PdFigures FiguresOf(const PdBenchResult& result) {
  const std::vector<double> quiet = All(
      result, [](const PdTurn& turn) -> const auto& { return turn.quiet_gaps; });
  const std::vector<double> gaps = All(result, Gaps);
  const std::vector<double> ttft = All(
      result, [](const PdTurn& turn) -> const auto& { return turn.ttft; });
  PdFigures figures = {.quiet_p50 = Ms(quiet, 50),
                       .quiet_p99 = Ms(quiet, 99),
                       .p50 = Ms(gaps, 50),
                       .p99 = Ms(gaps, 99),
                       .worst = Ms(gaps, 100),
                       .ttft_p50 = Ms(ttft, 50),
                       .ttft_p99 = Ms(ttft, 99)};
  double seconds = 0;
  int64_t tokens = 0;
  for (const PdTurn& turn : result.turns) {
    seconds += turn.seconds;
    tokens += turn.tokens;
  }
  if (seconds > 0) figures.tokens_per_s = static_cast<double>(tokens) / seconds;
  return figures;
}

Json PdBenchJson(const BenchMachine& machine, const PdBenchOptions& o,
                 const PdBenchSubject& subject, const std::vector<PdBenchResult>& results,
                 const PdTransferResult& transfer) {
  Json json = {{"bench", "pd"},
               {"machine", machine.ToJson()},
               {"model", subject.model},
               {"transport", subject.transport},
               {"kv_format", subject.kv_format},
               {"prefill_kv_format", subject.prefill_kv_format}};
  json["settings"] = {{"streams", o.streams},
                      {"stream_prompt_tokens", o.stream_prompt_tokens},
                      {"stream_output_tokens", o.stream_output_tokens},
                      {"burst", o.burst},
                      {"burst_prompt_tokens", o.burst_prompt_tokens},
                      {"bursts", o.bursts},
                      {"quiet_s", o.quiet_s},
                      {"interval_s", o.interval_s},
                      {"turns", o.turns},
                      {"seed", o.seed}};
  json["results"] = Json::array();
  for (const PdBenchResult& result : results) {
    const PdFigures f = FiguresOf(result);
    json["results"].push_back({{"system", result.name},
                               {"quiet_itl_ms", {{"p50", f.quiet_p50}, {"p99", f.quiet_p99}}},
                               {"burst_itl_ms", {{"p50", f.p50}, {"p99", f.p99}, {"max", f.worst}}},
                               {"burst_ttft_ms", {{"p50", f.ttft_p50}, {"p99", f.ttft_p99}}},
                               {"stream_tokens_per_s", f.tokens_per_s}});
  }
  if (transfer.ttft[0].empty()) return json;
  const std::vector<double> ratios = transfer.Ratios();
  const MedianInterval interval = MedianIntervalOf(ratios);
  json["transfer"] = {{"systems", {transfer.names[0], transfer.names[1]}},
                      {"ttft_s", {transfer.ttft[0], transfer.ttft[1]}},
                      {"ratio", MedianOf(ratios)},
                      {"ratio_low", interval.low},
                      {"ratio_high", interval.high},
                      {"coverage", interval.coverage}};
  return json;
}

std::string PdBenchTable(const PdBenchOptions& o, const std::vector<PdBenchResult>& results,
                         const PdTransferResult& transfer) {
  using Align = TextTable::Align;
  std::string text;
  if (!results.empty()) {
    TextTable table({{"milliseconds"},
                     {"quiet p50", Align::kRight},
                     {"p99", Align::kRight},
                     {"bursts p50", Align::kRight},
                     {"p99", Align::kRight},
                     {"worst", Align::kRight},
                     {"prompts' TTFT p50", Align::kRight},
                     {"p99", Align::kRight},
                     {"tokens/s", Align::kRight}});
    const auto number = [](double x) { return fmt::format("{:.1f}", x); };
    for (const PdBenchResult& result : results) {
      const PdFigures f = FiguresOf(result);
      table.AddRow({result.name, number(f.quiet_p50), number(f.quiet_p99), number(f.p50),
                    number(f.p99), number(f.worst), number(f.ttft_p50), number(f.ttft_p99),
                    number(f.tokens_per_s)});
    }
    text = fmt::format("{}\n{}", LoadText(o), table.ToText());
  }
  return text + TransferText(transfer);
}

SvgPicture PdBenchPicture(const BenchMachine& machine, const PdBenchOptions& o,
                          const std::vector<PdBenchResult>& results,
                          const PdTransferResult& transfer) {
  SvgPicture picture;
  if (!results.empty()) {
    LineChart between;
    between.title = "Time between tokens of a stream, under bursts of prompts";
    between.note = machine.ToText() + "; " + LoadText(o);
    between.x.label = "share of gaps, %";
    between.y = {.label = "ms", .log = true};
    for (const PdBenchResult& result : results) {
      std::vector<double> gaps = All(result, Gaps);
      std::sort(gaps.begin(), gaps.end());
      LineChart::Series series = {.name = result.name, .points = {}};
      for (int tenths = 5; !gaps.empty() && tenths <= 1000; tenths += 5) {
        series.points.push_back({tenths / 10.0, {Ms(gaps, tenths / 10.0)}});
      }
      between.series.push_back(std::move(series));
    }
    picture.Add(between);
  }
  if (!transfer.ttft[0].empty()) {
    BarChart first;
    first.title = "Time to the first token of a prompt, with a hand-off and without";
    first.note = fmt::format("{}; {} prompts of {} tokens each, by turns; medians, their intervals",
                             machine.ToText(), transfer.ttft[0].size(), o.burst_prompt_tokens);
    first.axis.label = "ms";
    first.series = {{"", {}}};
    for (int i = 0; i < 2; ++i) {
      const MedianInterval interval = MedianIntervalOf(transfer.ttft[i]);
      first.categories.push_back(transfer.names[i]);
      first.series[0].values.push_back(
          {MedianOf(transfer.ttft[i]) * 1e3, interval.low * 1e3, interval.high * 1e3});
    }
    picture.Add(first);
  }
  return picture;
}

}  // namespace tern
