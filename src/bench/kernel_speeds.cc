#include "bench/kernel_speeds.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "bench/kernel_cases.h"
#include "bench/statistics.h"

namespace tern {
namespace {

constexpr double kMeasureS = 0.05;
constexpr int64_t kMostPositions = int64_t{1} << 16;  // of all sequences

int64_t RoundUp(double n, int64_t to) {
  return std::max<int64_t>(static_cast<int64_t>(std::ceil(n / static_cast<double>(to))), 1) * to;
}

}  // namespace

MeasuredKernels::MeasuredKernels(Ops& ops, const PlannedLayer& layer) : ops_(ops), layer_(layer) {}

double MeasuredKernels::Seconds(const std::function<void()>& call) const {
  using Time = std::chrono::steady_clock;
  const auto seconds = [](Time::duration d) { return std::chrono::duration<double>(d).count(); };
  call();
  const Time::time_point start = Time::now();
  std::vector<double> times;
  while (times.size() < 9 || seconds(Time::now() - start) < kMeasureS) {
    const Time::time_point begin = Time::now();
    call();
    times.push_back(seconds(Time::now() - begin));
  }
  return MedianOf(std::move(times));
}

double MeasuredKernels::RegionSeconds() {
  if (region_s_ == 0) {
    const int64_t chunks = 2 * ops_.pool().threads();
    region_s_ = Seconds([&] { ops_.pool().ParallelFor(chunks, [](int64_t, int) {}); });
  }
  return region_s_;
}

double MeasuredKernels::MatMul(const WeightGroup& weights, double rows) {
  if (weights.products <= 0 || weights.bytes <= 0) return 0;
  const auto whole = static_cast<int64_t>(std::ceil(std::max(rows, 1.0)));
  const int64_t n = RoundUp(weights.rows, 16), k = RoundUp(weights.columns, 32);
  const auto [known, is_new] = products_.try_emplace({weights.format, n, k, whole}, 0);
  if (!is_new) return known->second;
  const auto [packed, unpacked] = weights_.try_emplace({weights.format, n, k});
  if (unpacked) {
    Result<ColdWeights> made = MakeWeights(ops_, weights.format, n, k, 1, kColdBytes);
    if (made.ok()) packed->second = *std::move(made);
  }
  if (packed->second == nullptr) return 0;
  const double seconds = Seconds(MakeMatMul(ops_, packed->second, 1, whole).run) - RegionSeconds();
  return known->second = 2.0 * static_cast<double>(whole * n * k) / std::max(seconds, 1e-9);
}

double MeasuredKernels::RestOfLayer(int64_t rows) {
  const auto [known, is_new] = rest_of_.try_emplace(rows, 0);
  if (!is_new) return known->second;
  const Result<KernelRun> made = MakeRestOfLayer(ops_, layer_, rows, kColdBytes);
  return known->second = made.ok() ? Seconds(made->run) : 0;
}

double MeasuredKernels::Attention(int64_t batch, int64_t positions) {
  positions = std::min(positions, kMostPositions);
  batch = std::min(batch, std::max<int64_t>(kMostPositions / positions, 1));
  const auto [known, is_new] = attention_of_.try_emplace({batch, positions}, 0);
  if (!is_new) return known->second;
  const PlannedLayer& a = layer_;
  const Result<KernelRun> made =
      a.latent ? MakeMlaDecode(ops_, a.mla, a.format, batch, positions, 0, kColdBytes)
               : MakeGqa(ops_, a.gqa, a.format, batch, positions, 1, kColdBytes);
  if (!made.ok()) return 0;
  const double operations = made->work.operations();
  const double seconds = Seconds(made->run) - RegionSeconds();
  return known->second = operations / std::max(seconds, 1e-9);
}

}  // namespace tern
