#include "bench/model_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/statistics.h"

namespace tern {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 24;
constexpr int64_t kCountedSteps = 8;  // of decode: their mean stands for all

double SecondsSince(int64_t start_us) {
  return static_cast<double>(std::max<int64_t>(SystemClock().NowUs() - start_us, 1)) * 1e-6;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// A count of [least, kMaxCount].
bool ParseCount(std::string_view text, int64_t least, int64_t* count) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *count);
  return error == std::errc() && end == text.data() + text.size() && *count >= least &&
         *count <= kMaxCount;
}

std::vector<int32_t> RandomTokens(int64_t n, int64_t vocab_size, Rng& rng) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

class WorkRunner {
 public:
  WorkRunner(BenchModel& model, Ops& ops, const ModelBenchOptions& options)
      : model_(model), ops_(ops), options_(options), rng_(options.seed) {}

  Result<ModelResult> Run(const ModelWork& work) {
    ModelResult result{.work = work,
                       .model = model_.facts(),
                       .activation_format = ActivationNameOf(ops_),
                       .isa = ops_.isa(),
                       .threads = ops_.pool().threads()};
    const bool prefill = work.kind == ModelWork::Kind::kPrefill;
    TERN_RETURN_IF_ERROR(prefill ? RunPrefill(work, &result) : RunDecode(work, &result));
    result.step_s = MedianOf(std::move(step_s_));
    step_s_.clear();
    return result;
  }

 private:
  // Feeds `tokens` to sequence 0 in chunks, timing each; `counter` counts instead when given.
  Status Feed(std::span<const int32_t> tokens, WorkCounter* counter) {
    for (size_t at = 0; at < tokens.size();) {
      const size_t rows = std::min(static_cast<size_t>(options_.chunk), tokens.size() - at);
      const int64_t start = SystemClock().NowUs();
      TERN_RETURN_IF_ERROR(model_.Prefill(0, tokens.subspan(at, rows)));
      if (counter != nullptr) {
        counter->EndPass();
      } else {
        step_s_.push_back(SecondsSince(start));
      }
      at += rows;
    }
    return OkStatus();
  }

  Status RunPrefill(const ModelWork& work, ModelResult* result) {
    const int64_t n = work.tokens;
    TERN_RETURN_IF_ERROR(model_.Reserve(1, n));
    {
      WorkCounter counter(ops_);
      TERN_RETURN_IF_ERROR(Feed(RandomTokens(n, result->model.vocab_size, rng_), &counter));
      AddWork(counter.Mean(), static_cast<double>((n + options_.chunk - 1) / options_.chunk),
              result);
    }
    double attention = 0;
    for (int64_t at = 0; at < n; at += options_.chunk) {
      attention += model_.PrefillAttentionOps(at, std::min(options_.chunk, n - at));
    }
    AddAttention(attention, result);
    result->bytes += static_cast<double>(n * result->model.kv_bytes_per_token);
    for (int64_t i = 0; i < options_.repetitions; ++i) {
      const std::vector<int32_t> tokens = RandomTokens(n, result->model.vocab_size, rng_);
      model_.Rewind(0);
      const int64_t start = SystemClock().NowUs();
      TERN_RETURN_IF_ERROR(Feed(tokens, nullptr));
      result->tokens_per_s.push_back(static_cast<double>(n) / SecondsSince(start));
    }
    return OkStatus();
  }

  // Sequences that hold `context` positions: the first real_context ones computed, the pages of
  // those repeated.
  Status FillContext(int64_t context, int64_t vocab_size) {
    if (context == 0) return OkStatus();
    const bool all = options_.real_context == 0 || context <= options_.real_context;
    const int64_t real = all ? context : options_.real_context;
    TERN_RETURN_IF_ERROR(Feed(RandomTokens(real, vocab_size, rng_), nullptr));
    step_s_.clear();
    model_.Spread(context);
    return OkStatus();
  }

  Status RunDecode(const ModelWork& work, ModelResult* result) {
    const int64_t vocab = result->model.vocab_size;
    TERN_RETURN_IF_ERROR(model_.Reserve(work.batch, work.context + work.tokens));
    TERN_RETURN_IF_ERROR(FillContext(work.context, vocab));
    const auto step = [&] { return model_.Decode(RandomTokens(work.batch, vocab, rng_)); };
    {
      WorkCounter counter(ops_);
      for (int64_t i = 0; i < std::min(kCountedSteps, work.tokens); ++i) {
        TERN_RETURN_IF_ERROR(step());
        counter.EndPass();
      }
      AddWork(counter.Mean(), static_cast<double>(work.tokens), result);
    }
    double attention = 0;
    for (int64_t i = 1; i <= work.tokens; ++i) {
      attention += static_cast<double>(work.batch) * model_.DecodeAttentionOps(work.context + i);
      result->bytes +=
          static_cast<double>(work.batch) * model_.DecodeAttentionBytes(work.context + i);
    }
    AddAttention(attention, result);
    for (int64_t i = 0; i < options_.repetitions; ++i) {
      model_.Rewind(work.context);
      const int64_t start = SystemClock().NowUs();
      for (int64_t t = 0; t < work.tokens; ++t) {
        const int64_t step_start = SystemClock().NowUs();
        TERN_RETURN_IF_ERROR(step());
        step_s_.push_back(SecondsSince(step_start));
      }
      result->tokens_per_s.push_back(static_cast<double>(work.tokens * work.batch) /
                                     SecondsSince(start));
    }
    return OkStatus();
  }

  void AddWork(const PassWork& pass, double passes, ModelResult* result) {
    result->weight_format = pass.FormatText();
    result->bytes += pass.weight_bytes * passes;
    result->f32_ops += pass.f32_ops * passes;
    result->bf16_ops += pass.bf16_ops * passes;
    result->int8_ops += pass.int8_ops * passes;
  }
  void AddAttention(double operations, ModelResult* result) {
    (HasBf16Products(ops_) ? result->bf16_ops : result->f32_ops) += operations;
  }

  BenchModel& model_;
  Ops& ops_;
  const ModelBenchOptions& options_;
  Rng rng_;
  std::vector<double> step_s_;
};

// Seconds of `operations` at a limit; the float32 one where the level has no such products.
double TimeAt(double operations, const LimitFigure& limit, const LimitFigure& f32) {
  const double rate = limit.best > 0 ? limit.best : f32.best;
  return rate > 0 ? operations / rate : 0;
}

}  // namespace

std::string ModelWork::Name() const {
  if (kind == Kind::kPrefill) return fmt::format("prefill {}", tokens);
  return fmt::format("decode {} at {}", batch, context);
}

Result<std::vector<ModelWork>> PrefillWorks(const std::string& lengths) {
  std::vector<ModelWork> works;
  if (lengths.empty()) return works;
  for (const std::string_view part : Split(lengths, ',')) {
    int64_t tokens = 0;
    if (!ParseCount(part, 1, &tokens)) {
      return InvalidArgument(fmt::format("'{}' is no list of prompt lengths (512,2048)", lengths));
    }
    works.push_back({.kind = ModelWork::Kind::kPrefill, .tokens = tokens});
  }
  return works;
}

Result<std::vector<ModelWork>> DecodeWorks(const std::string& points, int64_t steps) {
  std::vector<ModelWork> works;
  if (points.empty()) return works;
  for (const std::string_view part : Split(points, ',')) {
    const auto pair = Split(part, '@');
    ModelWork work{.kind = ModelWork::Kind::kDecode, .tokens = steps};
    if (pair.size() != 2 || !ParseCount(pair[0], 1, &work.batch) ||
        !ParseCount(pair[1], 0, &work.context)) {
      return InvalidArgument(
          fmt::format("'{}' is no list of BATCH@CONTEXT (1@0,1@4096,8@512)", points));
    }
    works.push_back(work);
  }
  return works;
}

double ModelResult::median_tokens_per_s() const { return MedianOf(tokens_per_s); }
double ModelResult::tokens() const { return static_cast<double>(work.tokens * work.batch); }
double ModelResult::seconds() const { return tokens() / median_tokens_per_s(); }
double ModelResult::share() const { return std::max(memory_s, arithmetic_s) / seconds(); }
const char* ModelResult::bound() const {
  return memory_s >= arithmetic_s ? "memory" : "arithmetic";
}

Result<std::vector<ModelResult>> RunModelBench(BenchModel& model, Ops& ops,
                                               const ModelBenchOptions& options,
                                               const BenchProgress& progress) {
  std::vector<ModelResult> results;
  WorkRunner runner(model, ops, options);
  for (const ModelWork& work : options.works) {
    progress(work.Name(), static_cast<int64_t>(results.size()),
             static_cast<int64_t>(options.works.size()));
    Result<ModelResult> result = runner.Run(work);
    if (!result.ok()) return result.status().WithContext(work.Name());
    results.push_back(std::move(result).value());
  }
  return results;
}

void ApplyLimits(const MachineLimits& limits, std::vector<ModelResult>& results) {
  for (ModelResult& r : results) {
    r.memory_s = limits.read.best > 0 ? r.bytes / limits.read.best : 0;
    r.arithmetic_s = TimeAt(r.f32_ops, limits.f32, limits.f32) +
                     TimeAt(r.bf16_ops, limits.bf16, limits.f32) +
                     TimeAt(r.int8_ops, limits.int8, limits.f32);
  }
}

}  // namespace tern
