#include "bench/kv_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "bench/random_tokens.h"
#include "report/text_table.h"

namespace tern {
namespace {

// One format at one batch size.
struct Variant {
  const KvBenchFormat* format;
  KvBenchResult* result;
};

int64_t PagesOf(const KvBenchFormat& format, int64_t context) {
  return (context + format.page_tokens - 1) / format.page_tokens;
}

constexpr int64_t kChunk = 512;  // of a prefill

Status Fill(const KvBenchOptions& options, const KvBenchFormat& format, int64_t sequences,
            int64_t context, Rng& rng) {
  TERN_RETURN_IF_ERROR(format.model->Reserve(sequences, context + options.steps));
  const int64_t computed = PagesOf(format, options.real_context) * format.page_tokens;
  return FillContexts(*format.model, sequences, context, computed, kChunk, rng);
}

Result<double> Turn(const KvBenchOptions& options, const Variant& variant, Rng& rng) {
  BenchModel& model = *variant.format->model;
  const int64_t batch = variant.result->batch;
  model.Rewind(variant.result->context);
  const int64_t start = SystemClock().NowUs();
  for (int64_t i = 0; i < options.steps; ++i) {
    TERN_RETURN_IF_ERROR(model.Decode(RandomTokens(batch, model.facts().vocab_size, rng)));
  }
  const int64_t us = std::max<int64_t>(SystemClock().NowUs() - start, 1);
  return static_cast<double>(options.steps * batch) / (static_cast<double>(us) * 1e-6);
}

std::string Share(double ratio) { return ratio > 0 ? fmt::format("{:.2f}", ratio) : "-"; }

}  // namespace

int64_t RequestsThatFit(const KvBenchFormat& format, int64_t context, int64_t bytes) {
  return bytes / (PagesOf(format, context) * format.page_bytes);
}

Result<std::vector<KvBenchResult>> RunKvBench(
    const std::vector<KvBenchFormat>& formats, const KvBenchOptions& options,
    const StepForecast& forecast,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  if (formats.size() < 2) return InvalidArgument("a comparison needs two KV formats or more");
  std::vector<KvBenchResult> results;
  Rng rng(options.seed);
  const auto total = static_cast<int64_t>(options.contexts.size()) * (options.turns + 2);
  int64_t done = 0;
  for (const int64_t context : options.contexts) {
    const int64_t length = context + options.steps;
    const auto memory_of = [&](const KvBenchFormat& format) {
      const KvBenchFormat& first = formats.front();
      const double bytes = static_cast<double>(options.requests * PagesOf(first, length)) *
                           static_cast<double>(first.page_bytes) * (1 + format.slack);
      return static_cast<int64_t>(bytes);
    };
    std::vector<KvBenchResult> here;
    std::vector<const KvBenchFormat*> format_of;
    const auto add = [&](const KvBenchFormat& format, int64_t batch) {
      const int64_t memory = memory_of(format);
      here.push_back({.context = context,
                      .kv_format = format.model->facts().kv_format,
                      .fits = RequestsThatFit(format, length, memory),
                      .memory = memory});
      here.back().batch = batch > 0 ? batch : here.back().fits;
      format_of.push_back(&format);
    };
    for (const KvBenchFormat& format : formats) {
      add(format, 0);
      progress(done, total);
      TERN_RETURN_IF_ERROR(
          Fill(options, format, std::max(here.back().fits, options.requests), context, rng));
    }
    for (size_t i = 1; i < formats.size(); ++i) {
      if (here[i].fits != options.requests) add(formats[i], options.requests);
    }
    ++done;
    for (int64_t turn = -1; turn < options.turns; ++turn) {
      progress(done++, total);
      std::vector<double> speeds(here.size());
      for (size_t i = 0; i < here.size(); ++i) {
        // Forwards and backwards: nobody always follows the same one.
        const size_t at = turn % 2 == 0 ? i : here.size() - 1 - i;
        TERN_ASSIGN_OR_RETURN(speeds[at],
                              Turn(options, {.format = format_of[at], .result = &here[at]}, rng));
      }
      if (turn < 0) continue;
      for (size_t i = 0; i < here.size(); ++i) {
        here[i].tokens_per_s.push_back(speeds[i]);
        here[i].ratios.push_back(speeds[i] / speeds[0]);
      }
    }
    for (size_t i = 0; forecast && i < here.size(); ++i) {
      const auto speed = [&](size_t at) {
        return static_cast<double>(here[at].batch) /
               forecast(format_of[at]->model->facts(), here[at].batch, context);
      };
      here[i].plan_ratio = speed(i) / speed(0);
    }
    results.insert(results.end(), here.begin(), here.end());
  }
  return results;
}

Json KvBenchJson(const BenchMachine& machine, const KvBenchOptions& options,
                 const BenchModelFacts& model, const std::vector<KvBenchResult>& results) {
  Json json = {{"bench", "kv"},           {"machine", machine.ToJson()},
               {"model", model.path},     {"requests", options.requests},
               {"steps", options.steps},  {"turns", options.turns},
               {"results", Json::array()}};
  for (const KvBenchResult& r : results) {
    const MedianInterval interval = MedianIntervalOf(r.ratios);
    json["results"].push_back({{"context", r.context},
                               {"kv_format", r.kv_format},
                               {"memory_bytes", r.memory},
                               {"requests_that_fit", r.fits},
                               {"batch", r.batch},
                               {"tokens_per_s", r.median_tokens_per_s()},
                               {"tokens_per_s_turns", r.tokens_per_s},
                               {"ratio", r.ratio()},
                               {"ratio_low", interval.low},
                               {"ratio_high", interval.high},
                               {"ratio_coverage", interval.coverage},
                               {"plan_ratio", r.plan_ratio}});
  }
  return json;
}

std::string KvBenchTable(const std::vector<KvBenchResult>& results) {
  using Align = TextTable::Align;
  TextTable table({{"context", Align::kRight},
                   {"KV"},
                   {"GiB", Align::kRight},
                   {"fit", Align::kRight},
                   {"batch", Align::kRight},
                   {"tokens/s", Align::kRight},
                   {"ratio", Align::kRight},
                   {"interval", Align::kRight},
                   {"plan", Align::kRight}});
  for (const KvBenchResult& r : results) {
    const MedianInterval interval = MedianIntervalOf(r.ratios);
    table.AddRow({fmt::format("{}", r.context), r.kv_format,
                  fmt::format("{:.3f}", static_cast<double>(r.memory) / (1 << 30)),
                  fmt::format("{}", r.fits), fmt::format("{}", r.batch),
                  fmt::format("{:.1f}", r.median_tokens_per_s()), fmt::format("{:.3f}", r.ratio()),
                  fmt::format("{:.3f}-{:.3f}", interval.low, interval.high), Share(r.plan_ratio)});
  }
  return table.ToText();
}

SvgPicture KvBenchPicture(const BenchMachine& machine, const BenchModelFacts& model,
                          const std::vector<KvBenchResult>& results) {
  BarChart memory, batch;
  memory.title = "Decode speed in the same memory";
  memory.note = model.path + ", " + machine.ToText();
  batch.title = "Decode speed of as many requests";
  batch.note = "neighbours in time compared with the first format";
  memory.axis.label = batch.axis.label = "tokens/s";
  std::vector<std::string> formats;
  for (const KvBenchResult& r : results) {
    if (std::find(formats.begin(), formats.end(), r.kv_format) == formats.end()) {
      formats.push_back(r.kv_format);
    }
    const std::string context = fmt::format("{} positions", r.context);
    for (BarChart* chart : {&memory, &batch}) {
      if (chart->categories.empty() || chart->categories.back() != context) {
        chart->categories.push_back(context);
      }
    }
  }
  const double none = std::numeric_limits<double>::quiet_NaN();
  for (BarChart* chart : {&memory, &batch}) {
    for (const std::string& format : formats) {
      chart->series.push_back({format, std::vector<ChartValue>(chart->categories.size(), {none})});
    }
  }
  for (const KvBenchResult& r : results) {
    const auto at = [&](BarChart& chart) -> ChartValue& {
      const auto series = std::find(formats.begin(), formats.end(), r.kv_format) - formats.begin();
      const std::string context = fmt::format("{} positions", r.context);
      const auto category = std::find(chart.categories.begin(), chart.categories.end(), context) -
                            chart.categories.begin();
      return chart.series[static_cast<size_t>(series)].values[static_cast<size_t>(category)];
    };
    const auto [low, high] = std::minmax_element(r.tokens_per_s.begin(), r.tokens_per_s.end());
    const ChartValue value = {r.median_tokens_per_s(), *low, *high};
    if (r.same_memory()) at(memory) = value;
    if (!r.same_memory() || r.kv_format == results.front().kv_format) at(batch) = value;
  }
  SvgPicture picture;
  picture.Add(memory);
  picture.Add(batch);
  return picture;
}

}  // namespace tern
