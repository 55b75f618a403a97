#include "report/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/utf8.h"

namespace tern {
namespace {

constexpr double kWidth = 760, kMargin = 16, kRowGap = 8, kBar = 15;
constexpr double kPlotHeight = 260;
constexpr double kGlyph = 6.7;  // mean width of a character of 12 units height
constexpr size_t kMaxLabel = 44;
constexpr size_t kColors = 6;

// Colours told apart also by readers with colour vision deficiency (after Okabe and Ito, 2008).
constexpr std::string_view kStyle = R"(<style>
text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:#1c2127}
.title{font-size:16px;font-weight:600}.note,.tick{fill:#59626c}.mark{fill:#59626c;font-style:italic}
.back{fill:#fff}.grid{stroke:#dde1e6}.axis{stroke:#59626c}.markline{stroke:#59626c;stroke-dasharray:5 4}
.interval{stroke:#1c2127;stroke-width:1.5;fill:none}.line{fill:none;stroke-width:2}.band{opacity:.18;stroke:none}
.f0{fill:#0b6fb8}.f1{fill:#d0560a}.f2{fill:#007a5e}.f3{fill:#a4508f}.f4{fill:#8a6d00}.f5{fill:#5b6770}
.s0{stroke:#0b6fb8}.s1{stroke:#d0560a}.s2{stroke:#007a5e}.s3{stroke:#a4508f}.s4{stroke:#8a6d00}.s5{stroke:#5b6770}
@media (prefers-color-scheme:dark){text{fill:#e6e9ec}.note,.tick,.mark{fill:#a3adb7}.back{fill:#14181c}
.grid{stroke:#2d343b}.axis,.markline{stroke:#a3adb7}.interval{stroke:#e6e9ec}.band{opacity:.28}
.f0{fill:#4ba3e3}.f1{fill:#f28b4b}.f2{fill:#34b894}.f3{fill:#cf8fc1}.f4{fill:#cfae3c}.f5{fill:#9aa6b0}
.s0{stroke:#4ba3e3}.s1{stroke:#f28b4b}.s2{stroke:#34b894}.s3{stroke:#cf8fc1}.s4{stroke:#cfae3c}.s5{stroke:#9aa6b0}}
</style>)";

// Text that XML 1.0 allows: valid UTF-8, no control characters.
std::string Xml(std::string_view text) {
  std::string out;
  for (const char c : ReplaceInvalidUtf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

double TextWidth(std::string_view text) { return kGlyph * static_cast<double>(CodePoints(text)); }

// The text, or its first and last parts around an ellipsis.
std::string Shortened(const std::string& text) {
  const size_t count = CodePoints(text);
  if (count <= kMaxLabel) return text;
  std::string out;
  size_t at = 0, index = 0;
  while (at < text.size()) {
    size_t length = 0;
    DecodeUtf8(text, at, &length);
    if (index == kMaxLabel / 2) out += "\u2026";
    if (index < kMaxLabel / 2 || index + kMaxLabel / 2 > count) out += text.substr(at, length);
    at += length;
    ++index;
  }
  return out;
}

std::string Text(double x, double y, std::string_view anchor, std::string_view css,
                 const std::string& text) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)"
                     "\n",
                     x, y, anchor, css, Xml(text));
}

std::string Line(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>)"
                     "\n",
                     x1, y1, x2, y2, css);
}

std::string Number(double value, int digits) { return fmt::format("{:.{}g}", value, digits); }

// From values to positions on the paper.
class Scale {
 public:
  Scale(const ChartAxis& axis, std::vector<double> values, bool from_zero) : log_(axis.log) {
    std::erase_if(values, [&](double v) { return !std::isfinite(v) || (log_ && v <= 0); });
    if (values.empty()) values = {log_ ? 1.0 : 0.0};
    low_ = *std::min_element(values.begin(), values.end());
    high_ = *std::max_element(values.begin(), values.end());
    if (log_) {
      low_ = std::pow(10, std::floor(std::log10(low_)));
      high_ = std::pow(10, std::ceil(std::log10(high_)));
      if (high_ <= low_) high_ = low_ * 10;
    } else {
      if (from_zero) {
        low_ = std::min(low_, 0.0);
        high_ = std::max(high_, 0.0);
      }
      if (high_ <= low_) {
        const double pad = low_ == 0 ? 1 : std::fabs(low_) * 0.1;
        high_ += pad;
        if (!from_zero || low_ != 0) low_ -= from_zero ? 0 : pad;
      }
      const double pad = (high_ - low_) * 0.05;
      if (high_ != 0 || !from_zero) high_ += pad;
      if (low_ != 0 || !from_zero) low_ -= pad;
    }
    const auto usable = [&](const std::optional<double>& v) {
      return v && std::isfinite(*v) && (!log_ || *v > 0);
    };
    if (usable(axis.low)) low_ = *axis.low;
    if (usable(axis.high)) high_ = *axis.high;
    if (!(low_ < high_)) high_ = log_ ? low_ * 10 : low_ + 1;
  }

  void Place(double at_low, double at_high) {
    from_ = at_low;
    to_ = at_high;
  }
  bool Shows(double v) const { return std::isfinite(v) && (!log_ || v > 0); }
  // Values outside the axis sit on its end.
  double At(double v) const {
    const double clamped = std::clamp(v, low_, high_);
    const double share = log_ ? std::log(clamped / low_) / std::log(high_ / low_)
                              : (clamped - low_) / (high_ - low_);
    return from_ + share * (to_ - from_);
  }
  double Base() const { return log_ ? low_ : std::clamp(0.0, low_, high_); }
  std::vector<double> Ticks(int count) const { return ChartTicks(low_, high_, count, log_); }

 private:
  bool log_;
  double low_ = 0, high_ = 1, from_ = 0, to_ = 1;
};

void Collect(const ChartValue& value, std::vector<double>* out) {
  out->push_back(value.value);
  if (value.low) out->push_back(*value.low);
  if (value.high) out->push_back(*value.high);
}

// Title, note and legend; returns the height that they take.
double AddHead(const std::string& title, const std::string& note,
               const std::vector<std::string>& names, std::string* body) {
  double y = 26;
  *body += Text(kMargin, y, "start", "title", title);
  if (!note.empty()) *body += Text(kMargin, y += 19, "start", "note", note);
  if (names.size() > 1) {
    double x = kMargin;
    y += 22;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string name = Shortened(names[i]);
      const double width = 18 + TextWidth(name) + 20;
      if (x > kMargin && x + width > kWidth - kMargin) {
        x = kMargin;
        y += 18;
      }
      *body +=
          fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="12" height="12" rx="2" class="f{}"/>)"
                      "\n",
                      x, y - 10, i % kColors);
      *body += Text(x + 18, y, "start", "", name);
      x += width;
    }
  }
  return y + 16;
}

}  // namespace

std::vector<double> ChartTicks(double low, double high, int count, bool log) {
  std::vector<double> ticks;
  if (log) {
    const auto first = static_cast<int>(std::ceil(std::log10(low) - 1e-9));
    const auto last = static_cast<int>(std::floor(std::log10(high) + 1e-9));
    const int step = std::max(1, (last - first + count) / std::max(count, 1));
    for (int e = first; e <= last; e += step) ticks.push_back(std::pow(10, e));
    if (ticks.size() >= 2) return ticks;
    ticks.clear();  // within one decade a linear choice says more
  }
  const double raw = (high - low) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double step = raw / power <= 1   ? power
                      : raw / power <= 2 ? 2 * power
                      : raw / power <= 5 ? 5 * power
                                         : 10 * power;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    ticks.push_back(i * step + 0.0);  // never -0
  }
  return ticks;
}

void SvgPicture::Add(const BarChart& chart) {
  std::vector<std::string> names;
  std::vector<double> values;
  for (const auto& series : chart.series) {
    names.push_back(series.name);
    for (const ChartValue& value : series.values) Collect(value, &values);
  }
  for (const ChartMark& mark : chart.marks) values.push_back(mark.value);

  std::string body;
  const double top =
      AddHead(chart.title, chart.note, names, &body) + (chart.marks.empty() ? 0 : 14);
  const double group =
      kBar * static_cast<double>(std::max<size_t>(chart.series.size(), 1)) + kRowGap;
  const double bottom = top + group * static_cast<double>(chart.categories.size()) + kRowGap;
  double left = 40;
  for (const auto& c : chart.categories) left = std::max(left, TextWidth(Shortened(c)));
  left += kMargin + 8;
  Scale scale(chart.axis, std::move(values), /*from_zero=*/true);
  scale.Place(left, kWidth - kMargin - 64);

  for (const double tick : scale.Ticks(6)) {
    const double x = scale.At(tick);
    body += Line(x, top, x, bottom, "grid");
    body += Text(x, bottom + 16, "middle", "tick", Number(tick, 6));
  }
  for (size_t c = 0; c < chart.categories.size(); ++c) {
    const double y0 = top + kRowGap + group * static_cast<double>(c);
    const std::string label = Shortened(chart.categories[c]);
    body += Text(left - 8, y0 + (group - kRowGap) / 2 + 4, "end", "", label);
    for (size_t s = 0; s < chart.series.size(); ++s) {
      if (c >= chart.series[s].values.size()) continue;
      const ChartValue& v = chart.series[s].values[c];
      if (!scale.Shows(v.value)) continue;
      const double y = y0 + kBar * static_cast<double>(s);
      const double x0 = scale.At(scale.Base()), x1 = scale.At(v.value);
      double end = std::max(x0, x1);
      body += fmt::format(
          R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="f{}"><title>{}</title></rect>)"
          "\n",
          std::min(x0, x1), y + 1, std::max(std::fabs(x1 - x0), 0.5), kBar - 2, s % kColors,
          Xml(fmt::format("{}, {}: {}", chart.categories[c], chart.series[s].name,
                          Number(v.value, 6))));
      if (v.low && v.high && scale.Shows(*v.low) && scale.Shows(*v.high)) {
        const double a = scale.At(*v.low), b = scale.At(*v.high), m = y + kBar / 2;
        body += fmt::format(
            R"(<path d="M{0:.1f} {2:.1f}v6M{0:.1f} {3:.1f}H{1:.1f}M{1:.1f} {2:.1f}v6" class="interval"/>)"
            "\n",
            a, b, m - 3, m);
        end = std::max({end, a, b});
      }
      body += Text(end + 5, y + kBar / 2 + 4, "start", "tick", Number(v.value, chart.digits));
    }
  }
  for (const ChartMark& mark : chart.marks) {
    if (!scale.Shows(mark.value)) continue;
    const double x = scale.At(mark.value);
    body += Line(x, top, x, bottom, "markline");
    body += Text(x, top - 4, "middle", "mark", mark.label);
  }
  body += Line(left, top, left, bottom, "axis");
  body += Line(left, bottom, kWidth - kMargin - 64, bottom, "axis");
  body += Text((left + kWidth - kMargin - 64) / 2, bottom + 36, "middle", "", chart.axis.label);
  panels_.push_back({std::move(body), chart.title, bottom + 50});
}

void SvgPicture::Add(const LineChart& chart) {
  std::vector<std::string> names;
  std::vector<double> xs, ys;
  for (const auto& series : chart.series) {
    names.push_back(series.name);
    for (const auto& point : series.points) {
      xs.push_back(point.x);
      Collect(point.y, &ys);
    }
  }
  for (const ChartMark& mark : chart.marks) ys.push_back(mark.value);
  std::string body;
  const double top = AddHead(chart.title, chart.note, names, &body) + 18;
  const double left = kMargin + 72, right = kWidth - kMargin, bottom = top + kPlotHeight;
  Scale x_scale(chart.x, std::move(xs), false), y_scale(chart.y, std::move(ys), false);
  x_scale.Place(left, right);
  y_scale.Place(bottom, top);

  for (const double tick : y_scale.Ticks(5)) {
    const double y = y_scale.At(tick);
    body += Line(left, y, right, y, "grid");
    body += Text(left - 6, y + 4, "end", "tick", Number(tick, 6));
  }
  for (const double tick : x_scale.Ticks(7)) {
    const double x = x_scale.At(tick);
    body += Line(x, bottom, x, bottom + 4, "axis");
    body += Text(x, bottom + 18, "middle", "tick", Number(tick, 6));
  }
  for (const ChartMark& mark : chart.marks) {
    if (!y_scale.Shows(mark.value)) continue;
    const double y = y_scale.At(mark.value);
    body += Line(left, y, right, y, "markline");
    body += Text(right, y - 4, "end", "mark", mark.label);
  }
  for (size_t s = 0; s < chart.series.size(); ++s) {
    std::string path, upper, lower;
    for (const auto& point : chart.series[s].points) {
      if (!x_scale.Shows(point.x) || !y_scale.Shows(point.y.value)) continue;
      const double x = x_scale.At(point.x);
      path +=
          fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y_scale.At(point.y.value));
      if (!point.y.low || !point.y.high || !y_scale.Shows(*point.y.low) ||
          !y_scale.Shows(*point.y.high)) {
        continue;
      }
      upper +=
          fmt::format("{}{:.1f} {:.1f}", upper.empty() ? "M" : "L", x, y_scale.At(*point.y.high));
      lower = fmt::format("L{:.1f} {:.1f}", x, y_scale.At(*point.y.low)) + lower;
    }
    if (!upper.empty()) {
      body += fmt::format(R"(<path d="{}{}Z" class="band f{}"/>)"
                          "\n",
                          upper, lower, s % kColors);
    }
    if (!path.empty()) {
      body += fmt::format(R"(<path d="{}" class="line s{}"/>)"
                          "\n",
                          path, s % kColors);
    }
    for (const auto& point : chart.series[s].points) {
      if (chart.series[s].points.size() > 200) break;  // a cloud of dots says nothing
      if (!x_scale.Shows(point.x) || !y_scale.Shows(point.y.value)) continue;
      body += fmt::format(
          R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" class="f{}"><title>{}</title></circle>)"
          "\n",
          x_scale.At(point.x), y_scale.At(point.y.value), s % kColors,
          Xml(fmt::format("{}: {} at {}", chart.series[s].name, Number(point.y.value, 6),
                          Number(point.x, 6))));
    }
  }
  body += Line(left, top, left, bottom, "axis");
  body += Line(left, bottom, right, bottom, "axis");
  body += Text((left + right) / 2, bottom + 38, "middle", "", chart.x.label);
  body += Text(left - 66, top - 8, "start", "", chart.y.label);
  panels_.push_back({std::move(body), chart.title, bottom + 52});
}

std::string SvgPicture::ToSvg() const {
  double height = 0;
  std::string body, title;
  for (const Panel& panel : panels_) {
    body += fmt::format("<g transform=\"translate(0 {:.1f})\">\n{}</g>\n", height, panel.body);
    height += panel.height;
    title += (title.empty() ? "" : "; ") + panel.title;
  }
  height = std::max(height, 1.0);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n{3}\n"
      "<rect width=\"100%\" height=\"100%\" class=\"back\"/>\n{4}</svg>\n",
      kWidth, height, Xml(title), kStyle, body);
}

}  // namespace tern
