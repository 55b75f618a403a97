#include "bench/model_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "bench/random_tokens.h"
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
  using Pass = std::function<Status()>;
  // Runs a pass, whatever else is done around it.
  using Around = std::function<Status(const Pass& pass)>;

  // Feeds `n` random tokens to sequence 0 in chunks.
  Status Feed(int64_t n, const Around& around) {
    const std::vector<int32_t> tokens = RandomTokens(n, model_.facts().vocab_size, rng_);
    for (int64_t at = 0; at < n; at += options_.chunk) {
      const auto rows = static_cast<size_t>(std::min(options_.chunk, n - at));
      const auto piece = std::span(tokens).subspan(static_cast<size_t>(at), rows);
      TERN_RETURN_IF_ERROR(around([&] { return model_.Prefill(0, piece); }));
    }
    return OkStatus();
  }
  // One step of all sequences.
  Status Step(int64_t batch, const Around& around) {
    const std::vector<int32_t> tokens = RandomTokens(batch, model_.facts().vocab_size, rng_);
    return around([&] { return model_.Decode(tokens); });
  }
  Around Counted(WorkCounter& counter) {
    return [&counter](const Pass& pass) {
      TERN_RETURN_IF_ERROR(pass());
      counter.EndPass();
      return OkStatus();
    };
  }
  Around Timed() {
    return [this](const Pass& pass) {
      const int64_t start = SystemClock().NowUs();
      TERN_RETURN_IF_ERROR(pass());
      step_s_.push_back(SecondsSince(start));
      return OkStatus();
    };
  }

  // Repeats `work`, which starts at `position`: timed, then profiled if that is wanted.
  Status Repeat(int64_t position, const std::function<Status(const Around&)>& work,
                const Work& attention, bool expands, ModelResult* result) {
    for (int64_t i = 0; i < options_.repetitions; ++i) {
      model_.Rewind(position);
      const int64_t start = SystemClock().NowUs();
      TERN_RETURN_IF_ERROR(work(Timed()));
      result->tokens_per_s.push_back(result->tokens() / SecondsSince(start));
    }
    if (!options_.profile) return OkStatus();
    std::vector<std::vector<OperationTime>> profiles;
    for (int64_t i = 0; i < options_.repetitions; ++i) {
      model_.Rewind(position);
      OperationProfile profile(ops_, *options_.profile, expands);
      TERN_RETURN_IF_ERROR(work([&profile](const Pass& pass) {
        profile.BeginPass();
        TERN_RETURN_IF_ERROR(pass());
        profile.EndPass();
        return OkStatus();
      }));
      profile.AddAttention(attention);
      profiles.push_back(profile.Operations());
    }
    std::sort(profiles.begin(), profiles.end(),
              [](const auto& a, const auto& b) { return PassSeconds(a) < PassSeconds(b); });
    result->operations = std::move(profiles[(profiles.size() - 1) / 2]);
    return OkStatus();
  }

  Status RunPrefill(const ModelWork& work, ModelResult* result) {
    const int64_t n = work.tokens;
    TERN_RETURN_IF_ERROR(model_.Reserve(1, n));
    {
      WorkCounter counter(ops_, /*expands=*/true);
      TERN_RETURN_IF_ERROR(Feed(n, Counted(counter)));
      AddWork(counter.Mean(), (n + options_.chunk - 1) / options_.chunk, result);
    }
    Work attention{.bytes = static_cast<double>(n * result->model.kv_bytes_per_token)};
    for (int64_t at = 0; at < n; at += options_.chunk) {
      attention.AddOperations(AttentionArithmetic(),
                              model_.PrefillAttentionOps(at, std::min(options_.chunk, n - at)));
    }
    result->total += attention;
    return Repeat(
        0, [&](const Around& around) { return Feed(n, around); }, attention, true, result);
  }

  Status RunDecode(const ModelWork& work, ModelResult* result) {
    TERN_RETURN_IF_ERROR(model_.Reserve(work.batch, work.context + work.tokens));
    TERN_RETURN_IF_ERROR(FillContexts(model_, work.batch, work.context, options_.real_context,
                                      options_.chunk, rng_));
    {
      WorkCounter counter(ops_, /*expands=*/false);
      for (int64_t i = 0; i < std::min(kCountedSteps, work.tokens); ++i) {
        TERN_RETURN_IF_ERROR(Step(work.batch, Counted(counter)));
      }
      AddWork(counter.Mean(), work.tokens, result);
    }
    const auto batch = static_cast<double>(work.batch);
    Work attention;
    for (int64_t i = 1; i <= work.tokens; ++i) {
      attention.AddOperations(AttentionArithmetic(),
                              batch * model_.DecodeAttentionOps(work.context + i));
      attention.bytes += batch * model_.DecodeAttentionBytes(work.context + i);
    }
    result->total += attention;
    const auto steps = [&](const Around& around) {
      for (int64_t t = 0; t < work.tokens; ++t) {
        TERN_RETURN_IF_ERROR(Step(work.batch, around));
      }
      return OkStatus();
    };
    return Repeat(work.context, steps, attention, false, result);
  }

  static void AddWork(const PassWork& pass, int64_t passes, ModelResult* result) {
    result->weight_format = pass.FormatText();
    Work all = pass.work;
    all *= static_cast<double>(passes);
    result->total += all;
  }
  Arithmetic AttentionArithmetic() const {
    return HasBf16Products(ops_) ? Arithmetic::kBf16 : Arithmetic::kF32;
  }

  BenchModel& model_;
  Ops& ops_;
  const ModelBenchOptions& options_;
  Rng rng_;
  std::vector<double> step_s_;
};

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
    r.memory_s = limits.MemorySeconds(r.total);
    r.arithmetic_s = limits.ArithmeticSeconds(r.total);
    ApplyLimits(limits, r.operations);
  }
}

}  // namespace tern
