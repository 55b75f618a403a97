#include "bench/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "bench/statistics.h"
#include "report/text_table.h"

namespace tern {
namespace {

constexpr size_t kMaxSamples = 20'000;

KernelResult Measure(const std::string& name, const KernelRun& run, const MachineLimits& limits,
                     int64_t min_time_us) {
  const Clock& clock = SystemClock();
  // Short calls are timed in batches of 100 us and more: the clock counts microseconds.
  int64_t batch = 1;
  while (true) {
    const int64_t start = clock.NowUs();
    for (int64_t i = 0; i < batch; ++i) run.run();
    if (clock.NowUs() - start >= 100 || batch >= 1 << 20) break;
    batch *= 2;
  }
  std::vector<double> seconds;
  const int64_t end = clock.NowUs() + min_time_us;
  while ((clock.NowUs() < end || seconds.size() < 5) && seconds.size() < kMaxSamples) {
    const int64_t start = clock.NowUs();
    for (int64_t i = 0; i < batch; ++i) run.run();
    const int64_t us = std::max<int64_t>(clock.NowUs() - start, 1);
    seconds.push_back(static_cast<double>(us) * 1e-6 / static_cast<double>(batch));
  }
  KernelResult result{.name = name};
  result.fastest_s = *std::min_element(seconds.begin(), seconds.end());
  result.seconds = MedianOf(std::move(seconds));
  result.bytes = run.work.bytes;
  result.operations = run.work.operations();
  result.limit_s = std::max(limits.MemorySeconds(run.work), limits.ArithmeticSeconds(run.work));
  return result;
}

}  // namespace

Result<std::vector<KernelResult>> RunKernelBench(
    Ops& ops, const MachineLimits& limits, const std::vector<KernelCase>& cases,
    int64_t min_time_us, const std::function<void(int64_t done, int64_t total)>& progress) {
  std::vector<KernelResult> results;
  for (const KernelCase& one : cases) {
    progress(static_cast<int64_t>(results.size()), static_cast<int64_t>(cases.size()));
    const Result<KernelRun> run = one.make(ops);
    if (!run.ok()) return run.status().WithContext(one.name);
    results.push_back(Measure(one.name, *run, limits, min_time_us));
  }
  return results;
}

Json KernelBenchJson(const BenchMachine& machine, const MachineLimits& limits,
                     const char* activations, const std::vector<KernelResult>& results) {
  Json json = {{"bench", "kernels"},
               {"machine", machine.ToJson()},
               {"limits", limits.ToJson()},
               {"activation_format", activations},
               {"results", Json::array()}};
  for (const KernelResult& r : results) {
    json["results"].push_back({{"name", r.name},
                               {"us_median", r.seconds * 1e6},
                               {"us_fastest", r.fastest_s * 1e6},
                               {"bytes", r.bytes},
                               {"operations", r.operations},
                               {"share", r.limit_s / r.seconds}});
  }
  return json;
}

std::string KernelBenchTable(const std::vector<KernelResult>& results) {
  using Align = TextTable::Align;
  TextTable table({{"case"},
                   {"us", Align::kRight},
                   {"fastest", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"Gop/s", Align::kRight},
                   {"limit", Align::kRight}});
  for (const KernelResult& r : results) {
    table.AddRow({r.name, fmt::format("{:.1f}", r.seconds * 1e6),
                  fmt::format("{:.1f}", r.fastest_s * 1e6),
                  fmt::format("{:.1f}", r.bytes / r.seconds * 1e-9),
                  fmt::format("{:.1f}", r.operations / r.seconds * 1e-9),
                  fmt::format("{:.0f} %", r.limit_s / r.seconds * 100)});
  }
  return table.ToText();
}

SvgPicture KernelBenchPicture(const BenchMachine& machine,
                              const std::vector<KernelResult>& results) {
  BarChart chart;
  chart.title = "Share of the machine's limit";
  chart.note = machine.ToText();
  chart.axis.label = "%";
  chart.series = {{}};
  for (const KernelResult& r : results) {
    chart.categories.push_back(r.name);
    chart.series[0].values.push_back({r.limit_s / r.seconds * 100});
  }
  SvgPicture picture;
  picture.Add(chart);
  return picture;
}

}  // namespace tern
