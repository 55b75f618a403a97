// Reference files of tests/data/golden and a way to run them, for tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "kernels/ops.h"
#include "models/registry.h"
#include "models/single_sequence.h"

namespace tern::test {

struct Golden {
  std::vector<int32_t> prompt, greedy;
  std::vector<float> logits, margin;
};

template <typename T>
std::vector<T> TensorOf(const std::vector<SafetensorsTensor>& tensors, const std::string& name) {
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.name != name) continue;
    std::vector<T> values(tensor.view.bytes.size() / sizeof(T));
    std::memcpy(values.data(), tensor.view.bytes.data(), tensor.view.bytes.size());
    return values;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

inline Golden LoadGoldenFile(const std::string& path) {
  const auto file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  const auto tensors = ParseSafetensors((*file)->bytes(), path);
  EXPECT_TRUE(tensors.ok()) << tensors.status().message();
  return {TensorOf<int32_t>(*tensors, "prompt"), TensorOf<int32_t>(*tensors, "greedy"),
          TensorOf<float>(*tensors, "logits"), TensorOf<float>(*tensors, "margin")};
}

inline Golden LoadGolden(const std::string& folder) {
  return LoadGoldenFile(folder + "/golden.safetensors");
}

inline std::unique_ptr<Ops> MakeOps(const std::string& isa, ThreadPool& pool) {
  auto ops = Ops::Create(isa, pool);
  EXPECT_TRUE(ops.ok()) << ops.status().message();
  return ops.ok() ? std::move(*ops) : nullptr;
}

inline std::unique_ptr<Model> MakeModel(const std::string& path, Ops& ops, Precision precision) {
  LoadOptions options;
  options.precision = precision;
  auto model = LoadModel(path, ops, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(*model) : nullptr;
}

inline SingleSequence MakeSequence(Model& model, KvFormat format, int64_t page_tokens,
                                   int64_t positions) {
  auto sequence = SingleSequence::Make(model, format, page_tokens, positions);
  EXPECT_TRUE(sequence.ok()) << sequence.status().message();
  return std::move(*sequence);
}

// Logits of every token: the first `prefill` in chunks of `chunk`, the others one by one.
inline std::vector<float> RunAll(Model& model, SingleSequence& sequence,
                                 const std::vector<int32_t>& tokens, int64_t chunk,
                                 int64_t prefill) {
  const int64_t vocab = model.info().vocab_size;
  std::vector<float> logits(tokens.size() * static_cast<size_t>(vocab), std::nanf(""));
  for (int64_t at = 0; at < static_cast<int64_t>(tokens.size());) {
    const bool decode = at >= prefill;
    const int64_t rows = decode ? 1 : std::min(chunk, prefill - at);
    const Status status = sequence.Append(
        std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(rows)),
        decode ? RowForm::kDecode : RowForm::kPrefill, logits.data() + at * vocab);
    EXPECT_TRUE(status.ok()) << status.message();
    at += rows;
  }
  return logits;
}

inline float MaxAbsDiff(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // also when it is NaN
  }
  return worst;
}

// Tokens that greedy generation shares with `expected`, fed back as generated.
inline size_t GreedyAgreement(Ops& ops, Model& model, SingleSequence& sequence,
                              std::vector<float> last, const std::vector<int32_t>& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    const auto token = static_cast<int32_t>(ops.ArgMax(last.data(), model.info().vocab_size));
    if (token != expected[step]) return step;
    if (step + 1 == expected.size()) break;
    const Status status = sequence.AppendForLast({&token, 1}, RowForm::kDecode, last.data());
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return expected.size();
}

// Reference precision: logits within 2e-3, and greedy tokens equal up to a margin under 0.005.
inline void ExpectMatchesGolden(Ops& ops, Model& model, const Golden& golden, int64_t page_tokens,
                                int64_t chunk, int64_t prefill) {
  const auto positions = static_cast<int64_t>(golden.prompt.size() + golden.greedy.size());
  auto sequence = MakeSequence(model, KvFormat::kF32, page_tokens, positions);
  const auto logits = RunAll(model, sequence, golden.prompt, chunk, prefill);
  EXPECT_LE(MaxAbsDiff(logits, golden.logits), 2e-3f)
      << "page " << page_tokens << " chunk " << chunk << " prefill " << prefill;
  const std::vector<float> last(logits.end() - model.info().vocab_size, logits.end());
  const size_t equal = GreedyAgreement(ops, model, sequence, last, golden.greedy);
  if (equal < golden.greedy.size()) {
    EXPECT_LT(golden.margin[equal], 0.005f) << equal;
  }
}

}  // namespace tern::test
