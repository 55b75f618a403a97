#include "bench/machine_limits.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>

#include "base/clock.h"
#include "bench/bench_machine.h"
#include "bench/statistics.h"
#include "kernels/dispatch.h"
#include "report/text_table.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace tern {
namespace {

constexpr int64_t kReadChunk = int64_t{1} << 20;
constexpr int64_t kChunksPerThread = 8;

double Seconds(int64_t us) { return static_cast<double>(std::max<int64_t>(us, 1)) * 1e-6; }

LimitFigure FigureOf(const std::vector<double>& rates) {
  return {*std::max_element(rates.begin(), rates.end()), MedianOf(rates)};
}

using PeakLoop = double (*)(int64_t rounds);

LimitFigure MeasureLoop(PeakLoop loop, ThreadPool& pool, const LimitOptions& options) {
  if (loop == nullptr) return {};
  const Clock& clock = SystemClock();
  const int64_t chunks = pool.threads() * kChunksPerThread;
  // Rounds of a chunk, so that a slice takes about slice_us.
  int64_t rounds = 100;
  for (;; rounds *= 2) {
    const int64_t start = clock.NowUs();
    loop(rounds);
    if (clock.NowUs() - start >= options.slice_us / kChunksPerThread) break;
  }
  std::vector<double> rates;
  for (int64_t slice = 0; slice < options.slices; ++slice) {
    std::atomic<double> operations{0};
    const int64_t start = clock.NowUs();
    pool.ParallelFor(chunks, [&](int64_t, int) { operations += loop(rounds); });
    rates.push_back(operations.load() / Seconds(clock.NowUs() - start));
  }
  return FigureOf(rates);
}

Result<LimitFigure> MeasureRead(int64_t (*read)(const std::byte*, int64_t), ThreadPool& pool,
                                const LimitOptions& options) {
  const int64_t chunks = std::max<int64_t>(options.read_bytes / kReadChunk, 1);
  Buffer buffer(static_cast<size_t>(chunks * kReadChunk));
  if (buffer.data() == nullptr) {
    return ResourceExhausted(fmt::format("no memory for the {} MiB that reading is measured on",
                                         chunks * kReadChunk >> 20));
  }
  // Pages that were never written are all one.
  pool.ParallelFor(chunks, [&](int64_t chunk, int) {
    std::byte* at = buffer.data() + chunk * kReadChunk;
    std::fill(at, at + kReadChunk, static_cast<std::byte>(chunk));
  });
  // Small pages are read a quarter slower. Where memory is too scattered, it stays as it is.
  (void)::madvise(buffer.data(), buffer.size_bytes(), MADV_COLLAPSE);
  const Clock& clock = SystemClock();
  std::vector<double> rates;
  std::atomic<int64_t> sum{0};
  const int64_t slice_chunks =
      std::clamp<int64_t>(options.read_slice_bytes / kReadChunk, 1, chunks);
  int64_t next = 0;
  for (int64_t slice = 0; slice < options.slices; ++slice) {
    const int64_t start = clock.NowUs();
    pool.ParallelFor(slice_chunks, [&](int64_t chunk, int) {
      sum += read(buffer.data() + (next + chunk) % chunks * kReadChunk, kReadChunk);
    });
    next += slice_chunks;
    rates.push_back(static_cast<double>(slice_chunks * kReadChunk) /
                    Seconds(clock.NowUs() - start));
  }
  return FigureOf(rates);
}

Json FigureJson(const LimitFigure& figure) {
  if (figure.best == 0) return nullptr;
  return {{"best", figure.best}, {"median", figure.median}};
}

// Seconds of `operations` at a limit; the float32 one where the level has no such products.
double TimeAt(double operations, const LimitFigure& limit, const LimitFigure& f32) {
  const double rate = limit.best > 0 ? limit.best : f32.best;
  return rate > 0 ? operations / rate : 0;
}

LimitFigure Larger(const LimitFigure& a, const LimitFigure& b) { return a.best > b.best ? a : b; }

}  // namespace

void Work::AddOperations(Arithmetic arithmetic, double operations) {
  switch (arithmetic) {
    case Arithmetic::kF32:
      f32_ops += operations;
      break;
    case Arithmetic::kBf16:
      bf16_ops += operations;
      break;
    case Arithmetic::kInt8:
      int8_ops += operations;
      break;
  }
}

Work& Work::operator+=(const Work& other) {
  bytes += other.bytes;
  f32_ops += other.f32_ops;
  bf16_ops += other.bf16_ops;
  int8_ops += other.int8_ops;
  return *this;
}

Work& Work::operator*=(double factor) {
  for (double* value : {&bytes, &f32_ops, &bf16_ops, &int8_ops}) *value *= factor;
  return *this;
}

double MachineLimits::MemorySeconds(const Work& work) const {
  return read.best > 0 ? work.bytes / read.best : 0;
}

double MachineLimits::ArithmeticSeconds(const Work& work) const {
  return TimeAt(work.f32_ops, f32, f32) + TimeAt(work.bf16_ops, bf16, f32) +
         TimeAt(work.int8_ops, int8, f32);
}

Json MachineLimits::ToJson() const {
  return {{"isa", isa},
          {"threads", threads},
          {"read_bytes_per_s", FigureJson(read)},
          {"f32_ops_per_s", FigureJson(f32)},
          {"bf16_ops_per_s", FigureJson(bf16)},
          {"int8_ops_per_s", FigureJson(int8)}};
}

MachineLimits MachineLimits::Best(const MachineLimits& a, const MachineLimits& b) {
  return {a.isa,
          a.threads,
          Larger(a.read, b.read),
          Larger(a.f32, b.f32),
          Larger(a.bf16, b.bf16),
          Larger(a.int8, b.int8)};
}

Result<MachineLimits> MeasureLimits(const std::string& isa, ThreadPool& pool,
                                    const LimitOptions& options) {
  TERN_ASSIGN_OR_RETURN(const IsaTable* table, FindIsa(isa));
  MachineLimits limits{.isa = table->name, .threads = pool.threads()};
  limits.f32 = MeasureLoop(table->peak.f32, pool, options);
  limits.bf16 = MeasureLoop(table->peak.bf16, pool, options);
  limits.int8 = MeasureLoop(table->peak.int8, pool, options);
  // Memory does not know of levels; the best one's loop reads it.
  TERN_ASSIGN_OR_RETURN(const IsaTable* best, FindIsa(""));
  TERN_ASSIGN_OR_RETURN(limits.read, MeasureRead(best->peak.read, pool, options));
  return limits;
}

std::string LimitsTable(const std::vector<MachineLimits>& limits) {
  using Align = TextTable::Align;
  TextTable table({{"level"},
                   {"threads", Align::kRight},
                   {"read, GB/s", Align::kRight},
                   {"FP32, GFLOP/s", Align::kRight},
                   {"BF16, GFLOP/s", Align::kRight},
                   {"INT8, GOP/s", Align::kRight}});
  const auto giga = [](const LimitFigure& figure) {
    return figure.best == 0 ? std::string("-") : fmt::format("{:.1f}", figure.best * 1e-9);
  };
  for (const MachineLimits& l : limits) {
    table.AddRow({l.isa, fmt::format("{}", l.threads), giga(l.read), giga(l.f32), giga(l.bf16),
                  giga(l.int8)});
  }
  return table.ToText();
}

SvgPicture LimitsPicture(const std::vector<MachineLimits>& limits, const std::string& note) {
  BarChart read, arithmetic;
  read.title = "Memory read";
  read.axis.label = "GB/s";
  read.series = {{}};
  arithmetic.title = "Peak arithmetic";
  arithmetic.axis.label = "G operations/s";
  arithmetic.series = {{"FP32", {}}, {"BF16", {}}, {"INT8", {}}};
  read.note = arithmetic.note = note;
  for (const MachineLimits& l : limits) {
    const std::string name =
        fmt::format("{}, {} thread{}", l.isa, l.threads, l.threads == 1 ? "" : "s");
    read.categories.push_back(name);
    arithmetic.categories.push_back(name);
    read.series[0].values.push_back({l.read.best * 1e-9});
    int series = 0;
    for (const LimitFigure* figure : {&l.f32, &l.bf16, &l.int8}) {
      const double value = figure->best == 0 ? std::nan("") : figure->best * 1e-9;
      arithmetic.series[static_cast<size_t>(series++)].values.push_back({value});
    }
  }
  SvgPicture picture;
  picture.Add(read);
  picture.Add(arithmetic);
  return picture;
}

}  // namespace tern
