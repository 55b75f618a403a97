#include "bench/work_counter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tern {

std::string PassWork::FormatText() const {
  std::vector<std::pair<double, std::string>> formats;
  for (const auto& [name, bytes] : format_bytes) formats.push_back({bytes, name});
  std::sort(formats.rbegin(), formats.rend());
  std::string text;
  for (const auto& [bytes, name] : formats) {
    const double percent = 100 * bytes / work.bytes;
    if (percent < 1 && !text.empty()) continue;
    text += text.empty() ? "" : ", ";
    text += percent > 99 ? name : fmt::format("{} {:.0f} %", name, percent);
  }
  return text;
}

Work ProductWork(const Ops& ops, const PackedMatrix& weight, int64_t rows) {
  Work work{.bytes = static_cast<double>(weight.size_bytes())};
  work.AddOperations(ArithmeticOf(ops, weight), 2.0 * static_cast<double>(rows) *
                                                    static_cast<double>(weight.rows()) *
                                                    static_cast<double>(weight.columns()));
  return work;
}

WorkCounter::WorkCounter(Ops& ops, bool expands) : ops_(ops), expands_(expands) {
  ops_.SetObserver(this);
}
WorkCounter::~WorkCounter() { ops_.SetObserver(nullptr); }

void WorkCounter::OnInput(const PackedMatrix& weight, const float* /*x*/, int64_t /*x_stride*/,
                          int64_t rows) {
  Work work = ProductWork(ops_, weight, rows);
  if (seen_.insert(&weight).second) {
    sum_.format_bytes[FormatNameOf(weight)] += work.bytes;
  } else {
    work.bytes = 0;
  }
  sum_.work += work;
}

void WorkCounter::OnAttentionInput(const PackedMatrix& weight, const float* x, int64_t x_stride,
                                   int64_t rows) {
  if (expands_) OnInput(weight, x, x_stride, rows);
}

void WorkCounter::EndPass() {
  ++passes_;
  seen_.clear();
}

PassWork WorkCounter::Mean() const {
  PassWork mean = sum_;
  const double n = static_cast<double>(std::max<int64_t>(passes_, 1));
  mean.work *= 1 / n;
  for (auto& [name, bytes] : mean.format_bytes) bytes /= n;
  return mean;
}

}  // namespace tern
