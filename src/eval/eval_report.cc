#include "eval/eval_report.h"

#include <fmt/format.h>

#include <cmath>

#include "report/text_table.h"

namespace tern {
namespace {

using Align = TextTable::Align;

std::string Range(const std::optional<Interval>& interval, double scale, int digits) {
  if (!interval) return "too little text";
  return fmt::format("{:.{}f} to {:.{}f}", scale * interval->low, digits, scale * interval->high,
                     digits);
}

// Divergences span many orders of magnitude.
std::string SmallRange(const std::optional<Interval>& interval) {
  if (!interval) return "too little text";
  return fmt::format("{:.3g} to {:.3g}", interval->low, interval->high);
}

void AddTextRows(const TextResult& text, const BootstrapOptions& options, TextTable* table) {
  const std::string n = fmt::format("{} tokens, {} blocks", text.tokens(), text.losses.size());
  const Figure perplexity = PerplexityOf(text.losses, options);
  table->AddRow(
      {"perplexity", fmt::format("{:.5f}", perplexity.value), Range(perplexity.interval, 1, 3), n});
  if (!text.reference) return;
  const DivergenceFigures& d = text.reference->divergence;
  const Figure other = PerplexityOf(text.reference->losses, options);
  table->AddRow({"perplexity of " + text.reference->model, fmt::format("{:.5f}", other.value),
                 Range(other.interval, 1, 3), n});
  const auto add = [&](const char* name, const Figure& figure) {
    table->AddRow({name, fmt::format("{:.3g}", figure.value), SmallRange(figure.interval), n});
  };
  add("KL mean, nats", d.mean);
  add("KL median", d.median);
  add("KL p99", d.p99);
  table->AddRow({"KL max", fmt::format("{:.3g}", d.max),
                 fmt::format("at most {:.2g} % of tokens above", 100 * d.share_above_max), n});
  table->AddRow({"same top token, %", fmt::format("{:.2f}", 100 * d.same_top.value),
                 Range(d.same_top.interval, 100, 2), n});
}

std::string ResultTable(const EvalResult& result, const BootstrapOptions& options) {
  TextTable table({{"figure"}, {"value", Align::kRight}, {"95 % interval"}, {"measured on"}});
  if (result.text) AddTextRows(*result.text, options, &table);
  if (result.tasks) {
    const auto add = [&](const KindAccuracy& kind, const std::string& name) {
      table.AddRow({name, fmt::format("{:.1f}", 100 * kind.share()), Range(kind.interval, 100, 1),
                    fmt::format("{} items", kind.items)});
    };
    const auto kinds = AccuracyByKind(*result.tasks);
    for (const KindAccuracy& kind : kinds) add(kind, "accuracy " + kind.kind + ", %");
    if (kinds.size() > 1) add(AccuracyOfAll(*result.tasks), "accuracy of all, %");
  }
  return table.ToText();
}

void AddPaired(const std::string& name, const PairedAccuracy& a, const char* counts,
               TextTable* table) {
  const auto percent = [&](int64_t correct) {
    return fmt::format("{:.1f}", 100 * static_cast<double>(correct) / static_cast<double>(a.items));
  };
  table->AddRow({name, fmt::format("{}", a.items), percent(a.baseline_correct),
                 percent(a.candidate_correct), fmt::format("{:+.2f}", 100 * a.difference),
                 fmt::format("{:+.2f} to {:+.2f}", 100 * a.interval.low, 100 * a.interval.high),
                 fmt::format("{}", a.gained), fmt::format("{}", a.lost),
                 fmt::format("{:.2g}", a.mcnemar), counts});
}

std::string ComparisonTable(const Comparison& comparison) {
  const Verdict& v = comparison.verdict;
  std::string text = fmt::format("\nagainst the baseline {}\n\n", comparison.baseline_model);
  if (!v.kinds.empty()) {
    TextTable table({{"kind"},
                     {"items", Align::kRight},
                     {"baseline %", Align::kRight},
                     {"this %", Align::kRight},
                     {"points", Align::kRight},
                     {"95 % interval", Align::kRight},
                     {"gained", Align::kRight},
                     {"lost", Align::kRight},
                     {"McNemar p", Align::kRight},
                     {"counts"}});
    for (const KindComparison& kind : v.kinds) {
      AddPaired(kind.kind, kind.accuracy, kind.counts ? "yes" : "no", &table);
    }
    if (v.counted) AddPaired("all that count", *v.counted, "yes", &table);
    text += table.ToText();
    text += fmt::format("{} of {} answers are the same\n", comparison.same_answers, v.all->items);
  }
  if (v.perplexity) {
    text += fmt::format(
        "perplexity ratio {:.5f}, 95 % interval {:.5f} to {:.5f} ({} tokens, {} "
        "blocks)\n",
        v.perplexity->ratio, v.perplexity->interval.low, v.perplexity->interval.high,
        v.perplexity->tokens, v.perplexity->blocks);
  }
  std::string smallest;
  if (v.detectable_accuracy) {
    smallest += fmt::format("{:.2f} points of accuracy{}", 100 * *v.detectable_accuracy,
                            v.counted ? "" : " (over kinds that don't count)");
  }
  if (v.detectable_perplexity) {
    smallest += fmt::format("{}{:.3f} % of perplexity", smallest.empty() ? "" : ", ",
                            100 * *v.detectable_perplexity);
  }
  if (!smallest.empty()) {
    text += fmt::format("smallest difference that this could have seen: {}\n", smallest);
  }
  text += fmt::format("verdict: {}: {}\n", EquivalenceName(v.equivalence), v.why);
  return text;
}

ChartValue Percent(double share, const Interval& interval) {
  return {100 * share, 100 * interval.low, 100 * interval.high};
}

void AddAccuracy(const TaskResult& tasks, const std::optional<Comparison>& comparison,
                 SvgPicture* picture) {
  BarChart chart;
  chart.title = "Task accuracy";
  chart.note = fmt::format("{} items; bars with 95 % intervals", tasks.items.size());
  chart.axis = {.label = "accuracy, %", .low = 0.0, .high = 100.0};
  BarChart::Series here{.name = "this run"}, there{.name = "baseline"};
  for (const KindAccuracy& kind : AccuracyByKind(tasks)) {
    chart.categories.push_back(fmt::format("{} ({})", kind.kind, kind.items));
    here.values.push_back(Percent(kind.share(), kind.interval));
  }
  if (comparison && !comparison->verdict.kinds.empty()) {
    for (const KindComparison& kind : comparison->verdict.kinds) {
      const PairedAccuracy& a = kind.accuracy;
      there.values.push_back(
          Percent(a.baseline_accuracy(), WilsonInterval(a.baseline_correct, a.items)));
    }
    chart.series.push_back(std::move(there));
    chart.marks = {{100 * kLowestUseful, "60 %"}, {100 * kHighestUseful, "98 %"}};
  }
  chart.series.push_back(std::move(here));
  picture->Add(chart);
}

void AddDifferences(const Verdict& v, SvgPicture* picture) {
  if (!v.kinds.empty()) {
    BarChart chart;
    chart.title = "Accuracy against the baseline";
    chart.note = "paired difference on the same items, 95 % intervals; margin +-1.0 point";
    chart.axis.label = "difference, points";
    BarChart::Series series{.name = "difference"};
    const auto add = [&](const std::string& name, const PairedAccuracy& a) {
      chart.categories.push_back(name);
      series.values.push_back(Percent(a.difference, a.interval));
    };
    for (const KindComparison& kind : v.kinds) {
      add(kind.kind + (kind.counts ? "" : " (does not count)"), kind.accuracy);
    }
    if (v.counted) add("all that count", *v.counted);
    chart.series.push_back(std::move(series));
    chart.marks = {{-100 * kAccuracyMargin, "-1"}, {100 * kAccuracyMargin, "+1"}};
    picture->Add(chart);
  }
  if (v.perplexity) {
    BarChart chart;
    chart.title = "Perplexity against the baseline";
    chart.note = fmt::format("{} tokens, 95 % interval; margin +-0.5 %", v.perplexity->tokens);
    chart.axis.label = "ratio - 1, %";
    chart.categories = {"perplexity"};
    chart.series = {{"ratio - 1",
                     {{100 * (v.perplexity->ratio - 1), 100 * (v.perplexity->interval.low - 1),
                       100 * (v.perplexity->interval.high - 1)}}}};
    chart.marks = {{-100 * kPerplexityMargin, "-0.5"}, {100 * kPerplexityMargin, "+0.5"}};
    picture->Add(chart);
  }
}

void AddDivergence(const TextResult& text, SvgPicture* picture) {
  const DivergenceFigures& d = text.reference->divergence;
  BarChart chart;
  chart.title = "KL divergence from " + text.reference->model;
  chart.note = fmt::format("{} tokens, 95 % intervals; the largest value has none", text.tokens());
  chart.axis = {.label = "KL, nats a token", .log = true};
  chart.categories = {"mean", "median", "99 % of tokens below", "largest"};
  const auto value = [](const Figure& f) {
    return f.interval ? ChartValue{f.value, f.interval->low, f.interval->high}
                      : ChartValue{f.value, {}, {}};
  };
  chart.series = {{"KL", {value(d.mean), value(d.median), value(d.p99), {d.max, {}, {}}}}};
  picture->Add(chart);
}

}  // namespace

std::string EvalTable(const EvalResult& result, const std::optional<Comparison>& comparison,
                      const BootstrapOptions& options) {
  std::string text = result.model + "\n\n" + ResultTable(result, options);
  if (comparison) text += ComparisonTable(*comparison);
  return text;
}

SvgPicture EvalPicture(const EvalResult& result, const std::optional<Comparison>& comparison) {
  SvgPicture picture;
  if (result.tasks) AddAccuracy(*result.tasks, comparison, &picture);
  if (comparison) AddDifferences(comparison->verdict, &picture);
  if (result.text && result.text->reference) AddDivergence(*result.text, &picture);
  if (result.text && picture.empty()) {
    BarChart chart;
    const Figure p = PerplexityOf(result.text->losses);
    chart.title = "Perplexity";
    chart.note =
        fmt::format("{} tokens of {}, 95 % interval", result.text->tokens(), result.text->file);
    chart.axis.label = "perplexity";
    chart.categories = {"perplexity"};
    chart.series = {{"perplexity", {{p.value, {}, {}}}}};
    if (p.interval) {
      chart.series[0].values[0].low = p.interval->low;
      chart.series[0].values[0].high = p.interval->high;
    }
    picture.Add(chart);
  }
  return picture;
}

}  // namespace tern
