// Speed of single operations: kernels_bench [--benchmark_filter=...]. TERN_ISA, TERN_THREADS and
// TERN_ACTIVATIONS=int8 choose the level, the threads and the activations of 4-bit weights.
// bytes_per_second counts packed weights (or KV rows) read once, flops 2 * rows * n * k.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>
#include <tuple>
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
  static const std::unique_ptr<Ops> ops = [] {
    std::unique_ptr<Ops> made = std::move(Ops::Create(EnvOr("TERN_ISA", ""), Pool())).value();
    if (std::string(EnvOr("TERN_ACTIVATIONS", "float")) == "int8") {
      made->set_activations(Activations::kInt8);
    }
    return made;
  }();
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

// A random weight as a checkpoint stores it, for the formats with scales.
struct StoredWeight {
  WeightView view;
  std::vector<uint32_t> data;
  std::vector<uint16_t> scales;
};
void MakeStored(const std::string& name, int64_t n, int64_t k, StoredWeight* stored) {
  std::mt19937 generator(3);
  const bool fp8 = name == "fp8";
  const int64_t group = fp8 ? 128 : 32;
  const int64_t scales = fp8 ? (n + 127) / 128 * ((k + 127) / 128) : n * (k / group);
  stored->data.resize(static_cast<size_t>(fp8 ? (n * k + 3) / 4 : n * k / 8));
  // No NaN among e4m3 numbers.
  for (uint32_t& word : stored->data) word = generator() & (fp8 ? 0xF7F7F7F7u : ~0u);
  stored->scales.assign(static_cast<size_t>(fp8 ? 2 * scales : scales), 0x3C00);
  const auto data = std::as_bytes(std::span(stored->data));
  const auto scale_bytes = std::as_bytes(std::span(stored->scales));
  if (fp8) {
    stored->view = {.scheme = WeightView::Scheme::kFp8Block,
                    .data = {DType::kF8E4M3, Shape{n, k}, data},
                    .scales = {DType::kF32, Shape{(n + 127) / 128, (k + 127) / 128}, scale_bytes}};
  } else {
    stored->view = {.scheme = WeightView::Scheme::kInt4Group,
                    .data = {DType::kI32, Shape{n, k / 8}, data},
                    .scales = {DType::kBF16, Shape{n, k / group}, scale_bytes}};
  }
  stored->view.rows = n;
  stored->view.columns = k;
}

void Pack(benchmark::State& state, const std::string& name, int64_t n, int64_t k) {
  StoredWeight stored;
  MakeStored(name, n, k, &stored);
  for (auto _ : state) {
    const auto packed = TheOps().Pack(stored.view, Precision::kProduction);
    benchmark::DoNotOptimize(packed->size_bytes());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(stored.view.data.bytes.size()));
}

// `experts` products of `rows` rows each in one call, over weights that no cache holds.
void Experts(benchmark::State& state, const std::string& name, int64_t n, int64_t k,
             int64_t experts, int64_t rows) {
  StoredWeight stored;
  MakeStored(name, n, k, &stored);
  std::vector<PackedMatrix> weights;
  uint64_t total = 0;
  while (weights.size() < static_cast<size_t>(2 * experts) || total < (uint64_t{128} << 20)) {
    weights.push_back(std::move(TheOps().Pack(stored.view, Precision::kProduction)).value());
    total += weights.back().size_bytes();
  }
  const std::vector<float> x = Normal(experts * rows * k);
  std::vector<float> out(static_cast<size_t>(experts * rows * n));
  size_t next = 0;
  for (auto _ : state) {
    std::vector<MatMulGroup> groups;
    for (int64_t i = 0; i < experts; ++i, next = (next + 1) % weights.size()) {
      groups.push_back(
          {&weights[next], x.data() + i * rows * k, k, rows, out.data() + i * rows * n, n});
    }
    TheOps().MatMul(groups);
  }
  state.SetBytesProcessed(state.iterations() * experts *
                          static_cast<int64_t>(weights[0].size_bytes()));
  state.counters["flops"] = benchmark::Counter(2.0 * static_cast<double>(experts * rows * n * k),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

// Kimi K2's shape: 64 heads, 512 + 64 numbers a row. bytes_per_second counts rows read once.
constexpr MlaShape kMla{
    .heads = 64, .latent = 512, .rope = 64, .nope = 128, .value = 128, .scale = 0.1f};

struct MlaCache {
  explicit MlaCache(int64_t positions) : pool(static_cast<size_t>((positions + 63) / 64 * kPage)) {
    for (int64_t i = 0; i * 64 < positions; ++i) bases.push_back(pool.data() + i * kPage);
    const std::vector<float> latent = Normal(positions * kMla.latent);
    const KvRun write{bases.data(), 0, 0, positions};
    TheOps().MlaWrite(kMla, slab, {&write, 1}, latent.data(), latent.data());
  }
  static constexpr int64_t kPage = 64 + 64 * 1152;
  const KvSlab slab{.format = KvFormat::kBf16, .page_tokens = 64, .offset_bytes = 64};
  Buffer pool;
  std::vector<std::byte*> bases;
};

// One new row of each of `sequences` sequences; `selected` > 0: it attends every second position.
void MlaDecode(benchmark::State& state, int64_t history, int64_t sequences, int64_t selected) {
  MlaCache cache(history + 1);
  const std::vector<float> q = Normal(sequences * kMla.heads * (kMla.latent + kMla.rope));
  std::vector<float> out(static_cast<size_t>(sequences * kMla.heads * kMla.latent));
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < selected; ++i) positions.push_back(2 * i);
  const std::vector<RowSelection> selections(selected > 0 ? static_cast<size_t>(sequences) : 0,
                                             RowSelection{positions.data(), selected});
  std::vector<KvRun> runs;
  for (int64_t i = 0; i < sequences; ++i) runs.push_back({cache.bases.data(), history, i, 1});
  for (auto _ : state) {
    TheOps().MlaDecodeAttention(kMla, cache.slab, runs, q.data(), selections, out.data());
  }
  const int64_t seen = sequences * (selected > 0 ? selected : history + 1);
  state.SetBytesProcessed(state.iterations() * seen * 1152);
  state.counters["flops"] =
      benchmark::Counter(2.0 * static_cast<double>(seen * kMla.heads * (512 + 64 + 512)),
                         benchmark::Counter::kIsIterationInvariantRate);
}

// flops counts attention and the expansion of each position once.
void MlaPrefill(benchmark::State& state, int64_t history, int64_t rows) {
  MlaCache cache(history + rows);
  const int64_t width = kMla.heads * (kMla.nope + kMla.value);
  const std::vector<uint16_t> kv_b(static_cast<size_t>(width * kMla.latent), 0x3C00);
  const PackedMatrix weight =
      std::move(TheOps().Pack(TensorView{DType::kBF16, Shape{width, kMla.latent},
                                         std::as_bytes(std::span(kv_b))},
                              Precision::kProduction))
          .value();
  const std::vector<float> q = Normal(rows * kMla.heads * (kMla.nope + kMla.rope));
  std::vector<float> out(static_cast<size_t>(rows * kMla.heads * kMla.value));
  const KvRun run{cache.bases.data(), history, 0, rows};
  for (auto _ : state) {
    TheOps().MlaPrefillAttention(kMla, cache.slab, {&run, 1}, weight, q.data(), out.data());
  }
  const double seen = static_cast<double>(rows) *
                      (static_cast<double>(history) + static_cast<double>(rows + 1) / 2);
  const double expand = static_cast<double>((history + rows) * width * kMla.latent);
  state.counters["flops"] =
      benchmark::Counter(2.0 * (seen * static_cast<double>(kMla.heads * (192 + 128)) + expand),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void IndexerSelect(benchmark::State& state, int64_t history) {
  const IndexerShape shape{.heads = 32, .dim = 128, .top_k = 2048, .scale = 0.088f};
  const int64_t positions = history + 1, page = 64 + 64 * 256;
  const KvSlab slab{.format = KvFormat::kBf16, .page_tokens = 64, .offset_bytes = 64};
  Buffer pool(static_cast<size_t>((positions + 63) / 64 * page));
  std::vector<std::byte*> bases;
  for (int64_t i = 0; i * 64 < positions; ++i) bases.push_back(pool.data() + i * page);
  const std::vector<float> k = Normal(positions * shape.dim), q = Normal(32 * 128), w = Normal(32);
  const KvRun write{bases.data(), 0, 0, positions}, run{bases.data(), history, 0, 1};
  TheOps().IndexerWrite(shape, slab, {&write, 1}, k.data());
  std::vector<int32_t> selected(2048);
  RowSelection selection;
  for (auto _ : state) {
    TheOps().IndexerSelect(shape, slab, {&run, 1}, q.data(), w.data(), selected.data(), &selection);
  }
  state.SetBytesProcessed(state.iterations() * positions * 256);
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
  for (const std::string name : {"int4", "fp8"}) {
    benchmark::RegisterBenchmark(("pack/" + name).c_str(),
                                 [=](benchmark::State& state) { Pack(state, name, 2048, 2048); });
    for (const int64_t rows : {1, 4, 16, 64, 256}) {
      benchmark::RegisterBenchmark(fmt::format("experts/{}/rows:{}", name, rows).c_str(),
                                   [=](benchmark::State& state) {
                                     Experts(state, name, 2048, 2048, rows > 16 ? 1 : 8, rows);
                                   });
    }
  }
  for (const auto& [history, sequences, selected] :
       {std::tuple{int64_t{4095}, int64_t{1}, int64_t{0}}, {4095, 8, 0}, {8191, 1, 2048}}) {
    benchmark::RegisterBenchmark(
        fmt::format("mla_decode/history:{}/sequences:{}/selected:{}", history, sequences, selected)
            .c_str(),
        [history = history, sequences = sequences, selected = selected](benchmark::State& state) {
          MlaDecode(state, history, sequences, selected);
        });
  }
  for (const auto& [history, rows] : {std::pair{int64_t{0}, int64_t{512}}, {2048, 512}}) {
    benchmark::RegisterBenchmark(
        fmt::format("mla_prefill/history:{}/rows:{}", history, rows).c_str(),
        [history = history, rows = rows](benchmark::State& state) {
          MlaPrefill(state, history, rows);
        });
  }
  benchmark::RegisterBenchmark("indexer_select/history:16383",
                               [](benchmark::State& state) { IndexerSelect(state, 16383); });
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
