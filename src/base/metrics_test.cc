#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tern {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Metrics, TheSameNameAndLabelsGiveTheSameMetric) {
  MetricRegistry registry(MetricLabels{{"model", "m"}});
  Counter& counter = registry.AddCounter("c_total", "help", {{"path", "/a"}});
  EXPECT_EQ(&counter, &registry.AddCounter("c_total", "help", {{"path", "/a"}}));
  EXPECT_NE(&counter, &registry.AddCounter("c_total", "help", {{"path", "/b"}}));
  EXPECT_NE(&counter, &registry.AddCounter("d_total", "help", {{"path", "/a"}}));
  // A label that the registry puts on everything may be spelled out.
  EXPECT_EQ(&counter, &registry.AddCounter("c_total", "help", {{"path", "/a"}, {"model", "m"}}));

  Gauge& gauge = registry.AddGauge("g", "help");
  EXPECT_EQ(&gauge, &registry.AddGauge("g", "help"));
  EXPECT_NE(&gauge, &registry.AddGauge("g", "help", {{"x", "y"}}));

  Histogram& histogram = registry.AddHistogram("h", "help", {1, 2});
  EXPECT_EQ(&histogram, &registry.AddHistogram("h", "help", {1, 2}));
  EXPECT_NE(&histogram, &registry.AddHistogram("h", "help", {1, 2}, {{"x", "y"}}));
}

TEST(Metrics, RendersPrometheusText) {
  MetricRegistry registry(MetricLabels{{"model", "m"}});
  registry.AddCounter("c_total", "What c counts.", {{"path", "/a"}}).Add(2);
  registry.AddCounter("c_total", "What c counts.", {{"path", "/a"}}).Add();
  registry.AddGauge("g", "help").Set(1.5);
  registry.AddHistogram("h", "help", {1, 2}).Observe(1.5);
  const std::string text = registry.Render();
  EXPECT_THAT(text, HasSubstr("# HELP c_total What c counts.\n# TYPE c_total counter\n"
                              "c_total{model=\"m\",path=\"/a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("g{model=\"m\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("h_bucket{model=\"m\",le=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("h_bucket{model=\"m\",le=\"2\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("h_sum{model=\"m\"} 1.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("path=\"/b\"")));
}

}  // namespace
}  // namespace tern
