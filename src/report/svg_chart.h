// SVG charts: bars with intervals and lines, one picture of one or more panels. Plain SVG 1.1:
// no scripts, no outside fonts or images; colours follow the reader's light or dark setting.
// Owner: whoever writes the file. Thread: values.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tern {

struct ChartAxis {
  std::string label;  // with its unit: "accuracy, %"
  // Zero and below can't be shown on a logarithmic axis: such values are left out.
  bool log = false;
  std::optional<double> low, high;  // else from the data; bars on a linear axis include 0
};

// A value and, when known, an interval around it. Values that are not finite are left out.
struct ChartValue {
  double value = 0;
  std::optional<double> low, high;
};

// A line across the value axis, with its name.
struct ChartMark {
  double value = 0;
  std::string label;
};

struct BarChart {
  struct Series {
    std::string name;
    std::vector<ChartValue> values;  // one for each category
  };
  std::string title;
  std::string note;  // one line below the title: what was measured, on how much
  ChartAxis axis;
  std::vector<std::string> categories;
  std::vector<Series> series;
  std::vector<ChartMark> marks;
  // "%.3g" style precision of the numbers at the bars' ends.
  int digits = 3;
};

struct LineChart {
  struct Point {
    double x = 0;
    ChartValue y;
  };
  struct Series {
    std::string name;
    std::vector<Point> points;
  };
  std::string title;
  std::string note;
  ChartAxis x, y;
  std::vector<Series> series;
  std::vector<ChartMark> marks;  // of y
};

// Panels below each other, 760 units wide; as high as they need.
class SvgPicture {
 public:
  void Add(const BarChart& chart);
  void Add(const LineChart& chart);
  bool empty() const { return panels_.empty(); }
  std::string ToSvg() const;

 private:
  struct Panel {
    std::string body, title;
    double height = 0;
  };
  std::vector<Panel> panels_;
};

// Round numbers from low to high, about `count` of them: multiples of 1, 2 or 5 times a power of
// ten; on a logarithmic axis powers of ten. REQUIRES: low < high, finite; log: low > 0.
std::vector<double> ChartTicks(double low, double high, int count, bool log);

}  // namespace tern
