#include "report/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(ChartTicks, AreRound) {
  EXPECT_THAT(ChartTicks(0, 1, 5, false), ElementsAre(0, 0.2, 0.4, testing::DoubleEq(0.6), 0.8, 1));
  EXPECT_FALSE(std::signbit(ChartTicks(0, 1, 5, false)[0])) << "-0 would be printed";
  EXPECT_THAT(ChartTicks(-3, 42, 5, false), ElementsAre(0, 10, 20, 30, 40));
  EXPECT_THAT(ChartTicks(0.001, 10, 5, true),
              ElementsAre(testing::DoubleNear(1e-3, 1e-9), testing::DoubleNear(1e-2, 1e-8),
                          testing::DoubleNear(0.1, 1e-7), 1, 10));
}

BarChart Bars() {
  BarChart chart;
  chart.title = "Accuracy <by> kind & format";
  chart.note = "n = 6000";
  chart.axis.label = "accuracy, %";
  chart.categories = {"words", "a \"quoted\" name", std::string("bad \xff\x01")};
  chart.series = {{"bf16", {{80, 78.0, 82.0}, {50, {}, {}}, {kNan, {}, {}}}},
                  {"int4", {{79, 77.0, 81.0}, {48, {}, {}}, {-3, {}, {}}}}};
  chart.marks = {{60, "counted from here"}};
  return chart;
}

// The text of an attribute of the first element that follows `after`.
double Attribute(const std::string& svg, const std::string& after, const std::string& name) {
  const size_t at = svg.find(name + "=\"", svg.find(after));
  return std::stod(svg.substr(at + name.size() + 2));
}

TEST(SvgPicture, BarsAreProportionalToTheirValues) {
  BarChart chart;
  chart.axis.low = 0;
  chart.axis.high = 100;
  chart.categories = {"a", "b"};
  chart.series = {{"s", {{25, 20.0, 30.0}, {50, {}, {}}}}};
  SvgPicture picture;
  picture.Add(chart);
  const std::string svg = picture.ToSvg();
  const size_t first = svg.find("<rect x=");
  const size_t second = svg.find("<rect x=", first + 1);
  const double a = Attribute(svg.substr(first), "<rect", "width");
  const double b = Attribute(svg.substr(second), "<rect", "width");
  EXPECT_NEAR(b / a, 2, 0.01);
}

TEST(SvgPicture, EscapesTextAndHoldsNoScripts) {
  SvgPicture picture;
  picture.Add(Bars());
  const std::string svg = picture.ToSvg();
  EXPECT_THAT(svg, HasSubstr("Accuracy &lt;by&gt; kind &amp; format"));
  EXPECT_THAT(svg, HasSubstr("a &quot;quoted&quot; name"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, HasSubstr("accuracy, %"));
  EXPECT_THAT(svg, HasSubstr("counted from here"));
  for (const char* bad : {"<script", "nan", "inf", "\x01", "\xff"}) {
    EXPECT_THAT(svg, Not(HasSubstr(bad))) << bad;
  }
}

TEST(SvgPicture, LinesBandsAndLogAxesLeaveOutWhatCannotBeShown) {
  LineChart chart;
  chart.title = "Error by layer";
  chart.x.label = "layer";
  chart.y = {.label = "relative error", .log = true};
  chart.series = {{"rtn", {{0, {1e-3, 5e-4, 2e-3}}, {1, {0, {}, {}}}, {2, {1e-1, 1e-2, 1}}}},
                  {"empty", {}}};
  SvgPicture picture;
  picture.Add(chart);
  picture.Add(LineChart{});
  picture.Add(BarChart{});
  const std::string svg = picture.ToSvg();
  EXPECT_THAT(svg, HasSubstr("class=\"band f0\""));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_EQ(svg.find("<circle"), svg.rfind("<circle", svg.rfind("<circle") - 1)) << "two dots";
  EXPECT_FALSE(picture.empty());
}

}  // namespace
}  // namespace tern
