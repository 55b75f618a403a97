// Speed of single operations: kernels_bench [--benchmark_filter=...]. TERN_ISA and TERN_THREADS
// choose the level and the threads. bytes_per_second counts packed weights (or KV rows) read once,
// flops 2 * rows * n * k.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "base/topology.h"
#include "kernels/ops.h"

namespace tern {
namespace {

const char* EnvOr(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : fallback;
}

ThreadPool& Pool() {
  static ThreadPool pool(std::max(1, std::atoi(EnvOr("TERN_THREADS", "1"))));
  return pool;
}

Ops& TheOps() {
  static const std::unique_ptr<Ops> ops =
      std::move(Ops::Create(EnvOr("TERN_ISA", ""), Pool())).value();
  return *ops;
}

std::vector<float> Normal(int64_t n) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(generator);
  return values;
}

// Weights of several layers, so that one row's pass reads memory and not a cache.
void MatMul(benchmark::State& state, DType dtype, Precision precision, int64_t n, int64_t k,
            int64_t rows) {
  const int64_t bytes = static_cast<int64_t>(*StorageBytes(dtype, static_cast<uint64_t>(n * k)));
  const int64_t layers = std::max<int64_t>(1, (int64_t{128} << 20) / bytes);
  std::vector<std::byte> raw(static_cast<size_t>(bytes));
  std::mt19937 generator(2);
  for (size_t i = 0; i < raw.size(); ++i) {
    // The top bits of every second byte are cleared: no infinities, whatever the type.
    raw[i] = static_cast<std::byte>(generator() & (i % 2 == 1 ? 0x3F : 0xFF));
  }
  std::vector<PackedMatrix> weights;
  for (int64_t i = 0; i < layers; ++i) {
    weights.push_back(std::move(TheOps().Pack({dtype, Shape{n, k}, raw}, precision)).value());
  }
  const std::vector<float> x = Normal(rows * k);
  std::vector<float> out(static_cast<size_t>(rows * n));
  size_t layer = 0;
  for (auto _ : state) {
    const MatMulTarget target{&weights[layer], out.data()};
    TheOps().MatMul(x.data(), rows, {&target, 1});
    layer = (layer + 1) % weights.size();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(weights[0].size_bytes()));
  state.counters["flops"] = benchmark::Counter(2.0 * static_cast<double>(rows * n * k),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void Attention(benchmark::State& state, KvFormat format, int64_t history, int64_t rows) {
  const GqaShape shape{.heads = 32, .kv_heads = 8, .head_dim = 128, .scale = 0.088f};
  const KvSlab slab{.format = format, .page_tokens = 64, .offset_bytes = 64};
  const int64_t positions = history + rows, width = shape.kv_heads * shape.head_dim;
  const int64_t page_bytes = 64 + 2 * 64 * width * 4;
  Buffer pool(static_cast<size_t>((positions + 63) / 64 * page_bytes));
  std::vector<std::byte*> bases;
  for (int64_t i = 0; i * 64 < positions; ++i) bases.push_back(pool.data() + i * page_bytes);
  const std::vector<float> kv = Normal(positions * width);
  const KvRun write{bases.data(), 0, 0, positions};
  TheOps().GqaWrite(shape, slab, {&write, 1}, kv.data(), kv.data());
  const std::vector<float> q = Normal(rows * shape.heads * shape.head_dim);
  std::vector<float> out(q.size());
  const KvRun run{bases.data(), history, 0, rows};
  for (auto _ : state) TheOps().GqaAttention(shape, slab, {&run, 1}, q.data(), out.data());
  const int64_t row_bytes = 2 * width * (format == KvFormat::kF32 ? 4 : 2);
  state.SetBytesProcessed(state.iterations() * positions * row_bytes);
  const double seen = static_cast<double>(rows) *
                      (static_cast<double>(history) + static_cast<double>(rows + 1) / 2);
  state.counters["flops"] =
      benchmark::Counter(4.0 * seen * static_cast<double>(shape.heads * shape.head_dim),
                         benchmark::Counter::kIsIterationInvariantRate);
}

// Streaming read of memory: what one row's pass is measured against.
void MemoryRead(benchmark::State& state) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  Buffer buffer(kBytes);
  for (int64_t i = 0; i < kBytes; i += 8) buffer.as<uint64_t>()[i / 8] = static_cast<uint64_t>(i);
  for (auto _ : state) {
    std::atomic<uint64_t> total{0};
    Pool().ParallelFor(64, [&](int64_t chunk, int) {
      const uint64_t* p = buffer.as<uint64_t>() + chunk * (kBytes / 64 / 8);
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < kBytes / 64 / 8; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      for (const uint64_t s : sum) total += s;
    });
    benchmark::DoNotOptimize(total.load());
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void RegisterAll() {
  benchmark::RegisterBenchmark("memory_read", MemoryRead);
  for (const DType dtype : {DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ4_K,
                            DType::kQ6_K, DType::kF32}) {
    const Precision precision =
        dtype == DType::kF32 ? Precision::kReference : Precision::kProduction;
    for (const int64_t rows : {1, 4, 16, 64, 256}) {
      benchmark::RegisterBenchmark(
          fmt::format("matmul/{}/rows:{}", InfoOf(dtype).name, rows).c_str(),
          [=](benchmark::State& state) { MatMul(state, dtype, precision, 2048, 2048, rows); });
    }
  }
  for (const auto& [history, rows] :
       {std::pair{int64_t{1023}, int64_t{1}}, {8191, 1}, {0, 256}, {2048, 256}}) {
    benchmark::RegisterBenchmark(
        fmt::format("attention/bf16/history:{}/rows:{}", history, rows).c_str(),
        [history = history, rows = rows](benchmark::State& state) {
          Attention(state, KvFormat::kBf16, history, rows);
        });
  }
  benchmark::RegisterBenchmark("silu_mul", [](benchmark::State& state) {
    const std::vector<float> x = Normal(8192);
    std::vector<float> out(8192);
    for (auto _ : state) TheOps().SiluMul(x.data(), x.data(), 8192, out.data());
    state.SetItemsProcessed(state.iterations() * 8192);
  });
  benchmark::RegisterBenchmark("rms_norm", [](benchmark::State& state) {
    const std::vector<float> x = Normal(2048);
    std::vector<float> out(2048);
    for (auto _ : state) TheOps().RmsNorm(x.data(), 1, 2048, x.data(), 1e-5f, out.data());
    state.SetItemsProcessed(state.iterations() * 2048);
  });
  benchmark::RegisterBenchmark("rope", [](benchmark::State& state) {
    std::vector<float> x = Normal(2048);
    const std::vector<float> cos(64, 0.8f), sin(64, 0.6f);
    for (auto _ : state) {
      TheOps().Rope(x.data(), 1, 16, 128, 128, RopeStyle::kHalfSplit, cos.data(), sin.data());
    }
    state.SetItemsProcessed(state.iterations() * 2048);
  });
  benchmark::RegisterBenchmark("log_sum_exp", [](benchmark::State& state) {
    const std::vector<float> x = Normal(49152);
    for (auto _ : state) benchmark::DoNotOptimize(TheOps().LogSumExp(x.data(), 49152));
    state.SetItemsProcessed(state.iterations() * 49152);
  });
}

}  // namespace
}  // namespace tern

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  tern::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
