// The cases of kernel_bench.h.
#include "bench/kernel_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/rng.h"
#include "bench/kernel_bench.h"
#include "kernels/kv_layout.h"
#include "kernels/weight_info.h"

namespace tern {
namespace {

constexpr int64_t kPageTokens = 64;

// Uniform in [-1, 1).
std::vector<float> Numbers(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(2 * rng.Uniform() - 1);
  return values;
}

Arithmetic AttentionArithmetic(const Ops& ops) {
  return HasBf16Products(ops) ? Arithmetic::kBf16 : Arithmetic::kF32;
}

std::optional<DType> DTypeNamed(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kQ6_K); ++i) {
    if (InfoOf(static_cast<DType>(i)).name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// The positive integers of `text`, which `separator` divides; `count` of them, or nothing.
std::optional<std::vector<int64_t>> Sizes(std::string_view text, char separator, size_t count) {
  std::vector<int64_t> sizes;
  const char *at = text.data(), *const end = at + text.size();
  while (sizes.size() < count) {
    if (!sizes.empty() && (at == end || *at++ != separator)) return std::nullopt;
    int64_t size = 0;
    const auto [rest, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size <= 0) return std::nullopt;
    sizes.push_back(size);
    at = rest;
  }
  return at == end ? std::optional(sizes) : std::nullopt;
}

// A made-up weight [n, k] as a checkpoint stores it: bits are random, scales are 1/128.
struct StoredWeight {
  std::vector<uint32_t> data;
  std::vector<uint32_t> scales;
  WeightView view;
};

Status MakeStored(const std::string& format, int64_t n, int64_t k, StoredWeight* stored) {
  Rng rng(static_cast<uint64_t>(n * k));
  const auto fill = [&](int64_t bytes, uint32_t mask) {
    stored->data.resize(static_cast<size_t>((bytes + 3) / 4));
    for (uint32_t& word : stored->data) word = static_cast<uint32_t>(rng.Next()) & mask;
    return std::as_bytes(std::span(stored->data)).subspan(0, static_cast<size_t>(bytes));
  };
  WeightView& view = stored->view;
  view.rows = n;
  view.columns = k;
  constexpr std::string_view kFp8 = "FP8 ", kInt4 = "INT4 g";
  const std::string_view name = format;
  const auto fp8 = name.starts_with(kFp8) ? Sizes(name.substr(kFp8.size()), 'x', 2) : std::nullopt;
  const auto int4 =
      name.starts_with(kInt4) ? Sizes(name.substr(kInt4.size()), ' ', 1) : std::nullopt;
  if (fp8) {
    view.block_rows = (*fp8)[0];
    view.block_columns = (*fp8)[1];
    const Shape blocks{(n - 1) / view.block_rows + 1, (k - 1) / view.block_columns + 1};
    stored->scales.assign(static_cast<size_t>(*blocks.elements()), 0x3C000000);  // 2^-7
    view.scheme = WeightView::Scheme::kFp8Block;
    view.data = {DType::kF8E4M3, Shape{n, k}, fill(n * k, 0xF7F7F7F7)};  // no NaN
    view.scales = {DType::kF32, blocks, std::as_bytes(std::span(stored->scales))};
  } else if (int4) {
    view.group = int4->front();
    if (k % view.group != 0) {
      return InvalidArgument(fmt::format("{} columns are no multiple of {}'s", k, format));
    }
    const int64_t groups = n * (k / view.group);
    stored->scales.assign(static_cast<size_t>((groups + 1) / 2), 0x3C003C00);
    view.scheme = WeightView::Scheme::kInt4Group;
    view.data = {DType::kI32, Shape{n, k / 8}, fill(n * k / 2, ~0u)};
    view.scales = {DType::kBF16, Shape{n, k / view.group},
                   std::as_bytes(std::span(stored->scales)).first(static_cast<size_t>(2 * groups))};
  } else {
    const auto dtype = DTypeNamed(format);
    const auto bytes = dtype ? StorageBytes(*dtype, static_cast<uint64_t>(n * k)) : std::nullopt;
    if (!bytes) return InvalidArgument(fmt::format("no made-up weights of {}", format));
    // The top bits of every second byte are cleared: no infinities, whatever the type.
    view.data = {*dtype, Shape{n, k}, fill(static_cast<int64_t>(*bytes), 0x3FFF3FFF)};
  }
  return OkStatus();
}

// Calls of `experts` products of `rows` rows each, over weights that no cache holds.
struct MatMulState {
  ColdWeights weights;
  std::vector<float> x, out;
  std::vector<MatMulGroup> groups;
  size_t next = 0;
};

}  // namespace

Result<ColdWeights> MakeWeights(Ops& ops, const std::string& format, int64_t n, int64_t k,
                                int64_t experts, int64_t least_bytes) {
  StoredWeight stored;
  TERN_RETURN_IF_ERROR(MakeStored(format, n, k, &stored));
  const auto weights = std::make_shared<std::vector<PackedMatrix>>();
  uint64_t bytes = 0;
  while (bytes < static_cast<uint64_t>(least_bytes) ||
         weights->size() < static_cast<size_t>(experts)) {
    TERN_ASSIGN_OR_RETURN(weights->emplace_back(), ops.Pack(stored.view, Precision::kProduction));
    bytes += weights->back().size_bytes();
  }
  return ColdWeights(weights);
}

KernelRun MakeMatMul(Ops& ops, const ColdWeights& weights, int64_t experts, int64_t rows) {
  auto state = std::make_shared<MatMulState>();
  state->weights = weights;
  const PackedMatrix& first = weights->front();
  const int64_t n = first.rows(), k = first.columns();
  state->x = Numbers(experts * rows * k, 1);
  state->out.resize(static_cast<size_t>(experts * rows * n));
  KernelRun run;
  run.work.bytes = static_cast<double>(experts) * static_cast<double>(first.size_bytes());
  run.work.AddOperations(ArithmeticOf(ops, first),
                         2.0 * static_cast<double>(experts * rows) * static_cast<double>(n * k));
  run.run = [&ops, state, n, k, experts, rows] {
    state->groups.clear();
    for (int64_t i = 0; i < experts; ++i) {
      state->groups.push_back({&(*state->weights)[state->next], state->x.data() + i * rows * k, k,
                               rows, state->out.data() + i * rows * n, n});
      state->next = (state->next + 1) % state->weights->size();
    }
    ops.MatMul(state->groups);
  };
  return run;
}

namespace {

Result<KernelRun> MakeColdMatMul(Ops& ops, const std::string& format, int64_t n, int64_t k,
                                 int64_t experts, int64_t rows) {
  TERN_ASSIGN_OR_RETURN(const ColdWeights weights,
                        MakeWeights(ops, format, n, k, experts, kColdBytes));
  return MakeMatMul(ops, weights, experts, rows);
}

Result<KernelRun> MakePack(Ops& ops, const std::string& format, int64_t n, int64_t k) {
  const auto stored = std::make_shared<StoredWeight>();
  TERN_RETURN_IF_ERROR(MakeStored(format, n, k, stored.get()));
  TERN_RETURN_IF_ERROR(ops.Pack(stored->view, Precision::kProduction).status());
  KernelRun run;
  run.work.bytes = static_cast<double>(stored->view.data.bytes.size());
  run.run = [&ops, stored] { (void)ops.Pack(stored->view, Precision::kProduction).ok(); };
  return run;
}

// Pages of `sequences` sequences of `positions` rows each, written by `write`.
struct CacheState {
  KvSlab slab;
  Buffer memory;
  std::vector<std::vector<std::byte*>> pages;
  std::vector<KvRun> runs;
  std::vector<float> q, out;
};

// Layers of a cache, by turns.
struct Layers {
  std::vector<std::shared_ptr<CacheState>> states;
  size_t next = 0;
  CacheState& Next() { return *states[next++ % states.size()]; }
};

// Calls make() until its states have `least_bytes`.
template <typename Make>
Result<std::shared_ptr<Layers>> MakeLayers(int64_t least_bytes, const Make& make) {
  auto layers = std::make_shared<Layers>();
  for (uint64_t bytes = 0; layers->states.empty() || bytes < static_cast<uint64_t>(least_bytes);) {
    TERN_ASSIGN_OR_RETURN(layers->states.emplace_back(), make());
    bytes += layers->states.back()->memory.size_bytes();
  }
  return layers;
}

Result<std::shared_ptr<CacheState>> MakeCache(KvFormat format, int64_t token_bytes,
                                              int64_t sequences, int64_t positions) {
  auto state = std::make_shared<CacheState>();
  state->slab = {.format = format, .page_tokens = kPageTokens, .offset_bytes = 64};
  const int64_t page_bytes = 64 + kPageTokens * (token_bytes + 63) / 64 * 64;
  const int64_t pages = (positions + kPageTokens - 1) / kPageTokens;
  state->memory = Buffer(static_cast<size_t>(sequences * pages * page_bytes));
  if (state->memory.data() == nullptr) return ResourceExhausted("no memory for the KV pages");
  state->pages.resize(static_cast<size_t>(sequences));
  std::byte* next = state->memory.data();
  for (auto& bases : state->pages) {
    for (int64_t i = 0; i < pages; ++i, next += page_bytes) bases.push_back(next);
  }
  return state;
}

// Writes positions [0, positions) of all sequences, then makes runs of the last `rows` of them.
template <typename Write>
void FillCache(CacheState& state, int64_t positions, int64_t rows, const Write& write) {
  int64_t row = 0;
  for (const auto& bases : state.pages) {
    for (int64_t at = 0; at < positions; at += kPageTokens) {
      write(KvRun{bases.data(), at, 0, std::min(kPageTokens, positions - at)});
    }
    state.runs.push_back({bases.data(), positions - rows, row, rows});
    row += rows;
  }
}

// Positions that the rows of a run see.
double Seen(int64_t positions, int64_t rows) {
  return static_cast<double>(rows) *
         (static_cast<double>(positions) - static_cast<double>(rows - 1) / 2);
}

}  // namespace

Result<KernelRun> MakeGqa(Ops& ops, const GqaShape& shape, KvFormat format, int64_t sequences,
                          int64_t positions, int64_t rows, int64_t least_bytes) {
  const KvRowLayout layout = GqaRowLayout(format, kPageTokens, shape.kv_heads, shape.head_dim);
  const std::vector<float> k = Numbers(kPageTokens * shape.kv_heads * shape.head_dim, 2);
  const auto make = [&]() -> Result<std::shared_ptr<CacheState>> {
    TERN_ASSIGN_OR_RETURN(auto state, MakeCache(format, layout.token_bytes, sequences, positions));
    FillCache(*state, positions, rows, [&](const KvRun& run) {
      ops.GqaWrite(shape, state->slab, {&run, 1}, k.data(), k.data());
    });
    state->q = Numbers(sequences * rows * shape.heads * shape.head_dim, 3);
    state->out.resize(state->q.size());
    return state;
  };
  TERN_ASSIGN_OR_RETURN(const auto layers, MakeLayers(least_bytes, make));
  KernelRun run;
  run.work.bytes = static_cast<double>(sequences * positions * layout.token_bytes);
  run.work.AddOperations(AttentionArithmetic(ops),
                         4.0 * static_cast<double>(sequences) * Seen(positions, rows) *
                             static_cast<double>(shape.heads * shape.head_dim));
  run.run = [&ops, layers, shape] {
    CacheState& state = layers->Next();
    ops.GqaAttention(shape, state.slab, state.runs, state.q.data(), state.out.data());
  };
  return run;
}

namespace {

Result<std::shared_ptr<CacheState>> MakeMlaCache(Ops& ops, const MlaShape& shape, KvFormat format,
                                                 int64_t sequences, int64_t positions,
                                                 int64_t rows) {
  const KvRowLayout layout = MlaRowLayout(format, kPageTokens, shape.latent, shape.rope);
  TERN_ASSIGN_OR_RETURN(auto state, MakeCache(format, layout.token_bytes, sequences, positions));
  const std::vector<float> latent = Numbers(kPageTokens * shape.latent, 2);
  FillCache(*state, positions, rows, [&](const KvRun& run) {
    ops.MlaWrite(shape, state->slab, {&run, 1}, latent.data(), latent.data());
  });
  return state;
}

}  // namespace

Result<KernelRun> MakeMlaDecode(Ops& ops, const MlaShape& shape, KvFormat format, int64_t sequences,
                                int64_t positions, int64_t selected, int64_t least_bytes) {
  const auto make = [&]() -> Result<std::shared_ptr<CacheState>> {
    TERN_ASSIGN_OR_RETURN(auto state, MakeMlaCache(ops, shape, format, sequences, positions, 1));
    state->q = Numbers(sequences * shape.heads * (shape.latent + shape.rope), 3);
    state->out.resize(static_cast<size_t>(sequences * shape.heads * shape.latent));
    return state;
  };
  TERN_ASSIGN_OR_RETURN(const auto layers, MakeLayers(least_bytes, make));
  KernelRun run;
  const int64_t row = MlaRowLayout(format, kPageTokens, shape.latent, shape.rope).token_bytes;
  const int64_t seen = sequences * (selected > 0 ? selected : positions);
  run.work.bytes = static_cast<double>(seen * row);
  run.work.AddOperations(AttentionArithmetic(ops),
                         2.0 * static_cast<double>(seen * shape.heads) *
                             static_cast<double>(2 * shape.latent + shape.rope));
  const auto chosen = std::make_shared<std::vector<int32_t>>();
  for (int64_t i = 0; i < selected; ++i) {
    chosen->push_back(static_cast<int32_t>(i * positions / selected));
  }
  const std::vector<RowSelection> selections(static_cast<size_t>(selected > 0 ? sequences : 0),
                                             RowSelection{chosen->data(), selected});
  run.run = [&ops, layers, shape, chosen, selections] {
    CacheState& state = layers->Next();
    ops.MlaDecodeAttention(shape, state.slab, state.runs, state.q.data(), selections,
                           state.out.data());
  };
  return run;
}

Result<KernelRun> MakeRestOfLayer(Ops& ops, const PlannedLayer& layer, int64_t rows,
                                  int64_t least_bytes) {
  // Each sequence writes one row in the middle of its page.
  constexpr int64_t kPosition = kPageTokens / 2;
  const GqaShape& gqa = layer.gqa;
  const MlaShape& mla = layer.mla;
  const int64_t token_bytes =
      layer.latent
          ? MlaRowLayout(layer.format, kPageTokens, mla.latent, mla.rope).token_bytes
          : GqaRowLayout(layer.format, kPageTokens, gqa.kv_heads, gqa.head_dim).token_bytes;
  const auto make = [&]() -> Result<std::shared_ptr<CacheState>> {
    TERN_ASSIGN_OR_RETURN(auto state, MakeCache(layer.format, token_bytes, rows, kPageTokens));
    for (const auto& bases : state->pages) {
      const auto row = static_cast<int64_t>(state->runs.size());
      state->runs.push_back({bases.data(), kPosition, row, 1});
    }
    return state;
  };
  TERN_ASSIGN_OR_RETURN(const auto layers, MakeLayers(least_bytes, make));
  const int64_t heads = layer.latent ? mla.heads : gqa.heads;
  const int64_t dim = layer.latent ? mla.rope : gqa.head_dim;
  const int64_t key_heads = layer.latent ? 1 : gqa.kv_heads;
  struct Buffers {
    std::vector<float> hidden, other, weight, q, k, v, gate, gated, cos, sin;
  };
  const int64_t widest = std::max({layer.hidden, layer.q_latent, mla.latent});
  const auto b = std::make_shared<Buffers>(
      Buffers{.hidden = Numbers(rows * widest, 1),
              .other = Numbers(rows * widest, 2),
              .weight = Numbers(widest, 3),
              .q = Numbers(rows * heads * dim, 4),
              .k = Numbers(rows * key_heads * dim, 5),
              .v = Numbers(rows * std::max(key_heads * dim, mla.latent), 6),
              .gate = Numbers(rows * layer.intermediate, 7),
              .gated = Numbers(rows * layer.intermediate, 8),
              .cos = std::vector<float>(static_cast<size_t>(rows * dim / 2), 1.0f),
              .sin = std::vector<float>(static_cast<size_t>(rows * dim / 2))});
  KernelRun run;
  run.run = [&ops, layers, layer, b, rows, heads, dim, key_heads] {
    CacheState& state = layers->Next();
    const auto norm = [&](int64_t columns) {
      ops.RmsNorm(b->hidden.data(), rows, columns, b->weight.data(), 1e-5f, b->other.data());
    };
    const auto rope = [&](std::vector<float>& x, int64_t of_heads) {
      ops.Rope(x.data(), rows, of_heads, dim, dim, RopeStyle::kHalfSplit, b->cos.data(),
               b->sin.data());
    };
    norm(layer.hidden);
    rope(b->q, heads);
    rope(b->k, key_heads);
    if (layer.latent) {
      if (layer.q_latent > 0) norm(layer.q_latent);
      norm(layer.mla.latent);
      ops.MlaWrite(layer.mla, state.slab, state.runs, b->v.data(), b->k.data());
    } else {
      ops.GqaWrite(layer.gqa, state.slab, state.runs, b->k.data(), b->v.data());
    }
    norm(layer.hidden);
    ops.SiluMul(b->gate.data(), b->gate.data(), rows * layer.intermediate, b->gated.data());
    ops.Add(b->hidden.data(), b->other.data(), rows * layer.hidden);
    ops.Add(b->hidden.data(), b->other.data(), rows * layer.hidden);
  };
  return run;
}

namespace {

Result<KernelRun> MakeMlaPrefill(Ops& ops, const MlaShape& shape, KvFormat format,
                                 int64_t positions, int64_t rows) {
  TERN_ASSIGN_OR_RETURN(auto state, MakeMlaCache(ops, shape, format, 1, positions, rows));
  StoredWeight stored;
  const int64_t width = shape.heads * (shape.nope + shape.value);
  TERN_RETURN_IF_ERROR(MakeStored("BF16", width, shape.latent, &stored));
  TERN_ASSIGN_OR_RETURN(PackedMatrix packed, ops.Pack(stored.view, Precision::kProduction));
  const auto kv_b = std::make_shared<PackedMatrix>(std::move(packed));
  state->q = Numbers(rows * shape.heads * (shape.nope + shape.rope), 3);
  state->out.resize(static_cast<size_t>(rows * shape.heads * shape.value));
  KernelRun run;
  run.work.bytes = static_cast<double>(kv_b->size_bytes());
  run.work.AddOperations(
      AttentionArithmetic(ops),
      2.0 * Seen(positions, rows) *
              static_cast<double>(shape.heads * (shape.nope + shape.rope + shape.value)) +
          2.0 * static_cast<double>(positions) * static_cast<double>(width * shape.latent));
  run.run = [&ops, state, kv_b, shape] {
    ops.MlaPrefillAttention(shape, state->slab, state->runs, *kv_b, state->q.data(),
                            state->out.data());
  };
  return run;
}

Result<KernelRun> MakeIndexer(Ops& ops, const IndexerShape& shape, KvFormat format,
                              int64_t positions) {
  const int64_t token_bytes = shape.dim * KvNumberBytes(format) + (IsFp8(format) ? 4 : 0);
  TERN_ASSIGN_OR_RETURN(auto state, MakeCache(format, token_bytes, 1, positions));
  const std::vector<float> k = Numbers(kPageTokens * shape.dim, 2);
  FillCache(*state, positions, 1, [&](const KvRun& run) {
    ops.IndexerWrite(shape, state->slab, {&run, 1}, k.data());
  });
  state->q = Numbers(shape.heads * shape.dim, 3);
  state->out = Numbers(shape.heads, 4);  // the heads' weights
  const auto chosen = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(shape.top_k));
  KernelRun run;
  run.work.bytes = static_cast<double>(positions * token_bytes);
  run.work.AddOperations(
      AttentionArithmetic(ops),
      2.0 * static_cast<double>(positions) * static_cast<double>(shape.heads * shape.dim));
  run.run = [&ops, state, chosen, shape] {
    RowSelection selection;
    ops.IndexerSelect(shape, state->slab, state->runs, state->q.data(), state->out.data(),
                      chosen->data(), &selection);
  };
  return run;
}

// A row of one sparse layer of GLM-5.2: the indexer over all positions, then attention over those
// that it chose. `dense`: attention over all, without an indexer.
Result<KernelRun> MakeSparseLayer(Ops& ops, KvFormat format, int64_t positions, bool dense) {
  constexpr int64_t kTopK = 2048;
  const MlaShape shape{
      .heads = 64, .latent = 512, .rope = 64, .nope = 192, .value = 256, .scale = 0.0625f};
  const IndexerShape index{.heads = 32, .dim = 128, .top_k = kTopK, .scale = 0.088f};
  if (dense) return MakeMlaDecode(ops, shape, format, 1, positions, 0, 1);
  TERN_ASSIGN_OR_RETURN(KernelRun select, MakeIndexer(ops, index, format, positions));
  TERN_ASSIGN_OR_RETURN(KernelRun attend,
                        MakeMlaDecode(ops, shape, format, 1, positions, kTopK, 1));
  KernelRun run;
  run.work = select.work;
  run.work += attend.work;
  run.run = [select = std::move(select.run), attend = std::move(attend.run)] {
    select();
    attend();
  };
  return run;
}

void AddSparseLayers(std::vector<KernelCase>& cases) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8Tiled}) {
    for (const int64_t positions : {4096, 32768}) {
      for (const bool dense : {false, true}) {
        cases.push_back({fmt::format("dsa_layer/{}/{} of {} positions", KvFormatName(format),
                                     dense ? "all" : "2048", positions),
                         [=](Ops& ops) { return MakeSparseLayer(ops, format, positions, dense); }});
      }
    }
  }
}

void AddMatMuls(std::vector<KernelCase>& cases) {
  const struct {
    int64_t n, k;
  } shapes[] = {{576, 576}, {1536, 576}, {576, 1536}, {2048, 2048}, {11264, 2048}};
  const struct {
    const char *name, *format;
  } formats[] = {{"bf16", "BF16"},
                 {"q8_0", "Q8_0"},
                 {"q4_1", "Q4_1"},
                 {"int4", "INT4 g32"},
                 {"fp8", "FP8 128x128"}};
  for (const auto& [name, format] : formats) {
    for (const auto& shape : shapes) {
      if (shape.k % 128 != 0 && std::string(name) == "fp8") continue;
      for (const int64_t rows : {1, 4, 8, 16, 32, 64, 256, 512}) {
        cases.push_back({fmt::format("matmul/{}/{}x{}/rows:{}", name, shape.n, shape.k, rows),
                         [=, format = format](Ops& ops) {
                           return MakeColdMatMul(ops, format, shape.n, shape.k, 1, rows);
                         }});
      }
    }
  }
  for (const auto& [name, format] : std::span(formats).last(2)) {
    cases.push_back({fmt::format("pack/{}/2048x2048", name),
                     [format = format](Ops& ops) { return MakePack(ops, format, 2048, 2048); }});
    for (const int64_t rows : {1, 2, 4, 16, 64}) {
      cases.push_back({fmt::format("experts/{}/8 of 1408x2048/rows:{}", name, rows),
                       [=, format = format](Ops& ops) {
                         return MakeColdMatMul(ops, format, 1408, 2048, 8, rows);
                       }});
    }
  }
}

void AddAttention(std::vector<KernelCase>& cases) {
  const struct {
    const char* name;
    GqaShape shape;
  } shapes[] = {{"9 of 3 heads of 64", {9, 3, 64, 0.125f}},
                {"32 of 8 heads of 128", {32, 8, 128, 0.088f}}};
  const struct {
    int64_t sequences, positions, rows;
  } works[] = {{1, 512, 1}, {1, 4096, 1}, {8, 512, 1}, {32, 512, 1}, {1, 512, 512}, {1, 4096, 512}};
  for (const auto& [name, shape] : shapes) {
    for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kFp8Tiled}) {
      for (const auto& w : works) {
        cases.push_back({fmt::format("attention/{}/{}/sequences:{}/positions:{}/rows:{}", name,
                                     KvFormatName(format), w.sequences, w.positions, w.rows),
                         [shape = shape, format, w](Ops& ops) {
                           return MakeGqa(ops, shape, format, w.sequences, w.positions, w.rows, 1);
                         }});
      }
    }
  }
}

void AddLatentAttention(std::vector<KernelCase>& cases) {
  for (const int64_t heads : {16, 64}) {
    const MlaShape shape{
        .heads = heads, .latent = 512, .rope = 64, .nope = 128, .value = 128, .scale = 0.1f};
    for (const KvFormat format :
         {KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kFp8Tiled, KvFormat::kFp8DsMla}) {
      for (const auto& [sequences, positions] : {std::pair<int64_t, int64_t>{1, 4096}, {16, 512}}) {
        cases.push_back({fmt::format("mla_decode/{} heads/{}/sequences:{}/positions:{}", heads,
                                     KvFormatName(format), sequences, positions),
                         [=, s = sequences, p = positions](Ops& ops) {
                           return MakeMlaDecode(ops, shape, format, s, p, 0, 1);
                         }});
      }
      cases.push_back(
          {fmt::format("mla_decode/{} heads/{}/2048 of 8192 positions", heads,
                       KvFormatName(format)),
           [=](Ops& ops) { return MakeMlaDecode(ops, shape, format, 1, 8192, 2048, 1); }});
      for (const int64_t positions : {512, 4096}) {
        cases.push_back(
            {fmt::format("mla_prefill/{} heads/{}/positions:{}/rows:512", heads,
                         KvFormatName(format), positions),
             [=](Ops& ops) { return MakeMlaPrefill(ops, shape, format, positions, 512); }});
      }
    }
  }
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8Tiled}) {
    for (const int64_t positions : {4096, 32768}) {
      const IndexerShape shape{.heads = 32, .dim = 128, .top_k = 2048, .scale = 0.088f};
      cases.push_back(
          {fmt::format("indexer_select/{}/positions:{}", KvFormatName(format), positions),
           [=](Ops& ops) { return MakeIndexer(ops, shape, format, positions); }});
    }
  }
}

}  // namespace

std::vector<KernelCase> KernelCases(const std::string& filter) {
  std::vector<KernelCase> cases;
  AddMatMuls(cases);
  AddAttention(cases);
  AddLatentAttention(cases);
  AddSparseLayers(cases);
  std::erase_if(cases,
                [&](const KernelCase& one) { return one.name.find(filter) == std::string::npos; });
  return cases;
}

}  // namespace tern
