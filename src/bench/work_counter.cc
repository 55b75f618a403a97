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
    const double percent = 100 * bytes / weight_bytes;
    if (percent < 1 && !text.empty()) continue;
    text += text.empty() ? "" : ", ";
    text += percent > 99 ? name : fmt::format("{} {:.0f} %", name, percent);
  }
  return text;
}

WorkCounter::WorkCounter(Ops& ops) : ops_(ops) { ops_.SetObserver(this); }
WorkCounter::~WorkCounter() { ops_.SetObserver(nullptr); }

void WorkCounter::OnInput(const PackedMatrix& weight, const float* /*x*/, int64_t /*x_stride*/,
                          int64_t rows) {
  const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(weight.rows()) *
                            static_cast<double>(weight.columns());
  switch (ArithmeticOf(ops_, weight)) {
    case Arithmetic::kF32:
      sum_.f32_ops += operations;
      break;
    case Arithmetic::kBf16:
      sum_.bf16_ops += operations;
      break;
    case Arithmetic::kInt8:
      sum_.int8_ops += operations;
      break;
  }
  if (!seen_.emplace(&weight, true).second) return;
  const auto bytes = static_cast<double>(weight.size_bytes());
  sum_.weight_bytes += bytes;
  sum_.format_bytes[FormatNameOf(weight)] += bytes;
}

void WorkCounter::EndPass() {
  ++passes_;
  seen_.clear();
}

PassWork WorkCounter::Mean() const {
  PassWork mean = sum_;
  const double n = static_cast<double>(std::max<int64_t>(passes_, 1));
  for (double* value : {&mean.weight_bytes, &mean.f32_ops, &mean.bf16_ops, &mean.int8_ops}) {
    *value /= n;
  }
  for (auto& [name, bytes] : mean.format_bytes) bytes /= n;
  return mean;
}

}  // namespace tern
