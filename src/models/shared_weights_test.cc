#include "models/shared_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "models/test_golden.h"

namespace tern {
namespace {

namespace fs = std::filesystem;

std::string FolderOf(const std::string& name) {
  return std::string(TERN_SOURCE_DIR) + "/tests/data/golden/" + name;
}

class SharedWeightsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Model> Load(const std::string& path, SharedWeights* shared) {
    LoadOptions options;
    options.shared = shared;
    auto model = LoadModel(path, *ops_, options);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.ok() ? std::move(*model) : nullptr;
  }

  std::vector<float> Logits(Model& model, const std::string& name) {
    const test::Golden golden = test::LoadGolden(FolderOf(name));
    const auto length = static_cast<int64_t>(golden.prompt.size());
    auto sequence = test::MakeSequence(model, KvFormat::kBf16, 64, length);
    return test::RunAll(model, sequence, golden.prompt, length, length);
  }

  void ExpectSameLogits(Model& model, Model& alone, const std::string& name) {
    const std::vector<float> got = Logits(model, name), want = Logits(alone, name);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0) << name;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = test::MakeOps("", pool_);
};

TEST_F(SharedWeightsTest, OnePathIsOneWeightSet) {
  for (const char* name :
       {"llama-rope3-tied", "qwen3", "kimi-k2-int4", "glm5-dsa-fp8", "glm4-moe"}) {
    SharedWeights shared;
    auto first = Load(FolderOf(name), &shared);
    auto second = Load(FolderOf(name), &shared);
    const auto alone = Load(FolderOf(name), nullptr);
    EXPECT_EQ(alone->info().shared_weight_bytes, 0u);
    EXPECT_EQ(first->info().shared_weight_bytes, 0u);
    EXPECT_EQ(second->info().weight_bytes, alone->info().weight_bytes);
    EXPECT_EQ(second->info().shared_weight_bytes, second->info().weight_bytes) << name;
    first.reset();  // what is left of it is the other's
    ExpectSameLogits(*second, *alone, name);
  }
}

TEST_F(SharedWeightsTest, ACopyOfTheFilesIsOneWeightSetToo) {
  const std::string copy = ::testing::TempDir() + "tern_shared_copy";
  fs::remove_all(copy);
  fs::copy(FolderOf("kimi-k2-int4"), copy);
  SharedWeights shared;
  auto first = Load(FolderOf("kimi-k2-int4"), &shared);
  const auto second = Load(copy, &shared);
  fs::remove_all(copy);
  EXPECT_EQ(second->info().shared_weight_bytes, second->info().weight_bytes);
  first.reset();
  ExpectSameLogits(*second, *Load(FolderOf("kimi-k2-int4"), nullptr), "kimi-k2-int4");
}

// Bytes that tensors stored alike in both checkpoints take: packed one by one for matrices, float32
// for vectors.
uint64_t BytesAlike(const Checkpoint& a, const Checkpoint& b, const Ops& ops) {
  uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : a.tensors()) {
    const CheckpointTensor* const other = b.Find(tensor.name);
    if (other == nullptr || other->view.dtype != tensor.view.dtype ||
        other->view.bytes.size() != tensor.view.bytes.size() ||
        std::memcmp(other->view.bytes.data(), tensor.view.bytes.data(),
                    tensor.view.bytes.size()) != 0 ||
        tensor.name == "model.embed_tokens.weight") {  // looked up in the file
      continue;
    }
    if (tensor.view.shape.rank() == 1) {
      bytes += static_cast<uint64_t>(tensor.view.shape[0]) * sizeof(float);
      continue;
    }
    const bool router = tensor.name.ends_with(".mlp.gate.weight");
    bytes += ops.Pack(tensor.view, router ? Precision::kReference : Precision::kProduction)
                 ->size_bytes();
    if (!tensor.name.ends_with("kv_b_proj.weight")) continue;
    // Its absorbed halves, of each head.
    const MlaConfig& mla = *a.config().mla;
    const auto half = [&](int64_t rows, int64_t columns) {
      const std::vector<float> values(static_cast<size_t>(rows * columns));
      const TensorView view = {.dtype = DType::kF32,
                               .shape = Shape{rows, columns},
                               .bytes = std::as_bytes(std::span(values))};
      return ops.Pack(view, Precision::kProduction)->size_bytes();
    };
    bytes +=
        static_cast<uint64_t>(a.config().num_attention_heads) *
        (half(mla.kv_lora_rank, mla.qk_nope_head_dim) + half(mla.v_head_dim, mla.kv_lora_rank));
  }
  return bytes;
}

TEST_F(SharedWeightsTest, TwoFormatsShareWhatIsAlike) {
  for (const auto& [a, b] : {std::pair("kimi-k2", "kimi-k2-int4"), {"odd-kimi", "odd-kimi-int4"}}) {
    const auto one = Checkpoint::Open(FolderOf(a)), other = Checkpoint::Open(FolderOf(b));
    const uint64_t alike = BytesAlike(**one, **other, *ops_);
    SharedWeights shared;
    auto first = Load(FolderOf(a), &shared);
    const auto second = Load(FolderOf(b), &shared);
    const auto alone = Load(FolderOf(b), nullptr);
    EXPECT_GT(alike, 0u);
    EXPECT_EQ(second->info().weight_bytes, alone->info().weight_bytes);
    EXPECT_EQ(second->info().shared_weight_bytes, alike) << b;
    EXPECT_LT(second->info().shared_weight_bytes, second->info().weight_bytes);
    first.reset();
    ExpectSameLogits(*second, *alone, b);
  }
}

// Bytes of the tensors that the other file does not have under the same name, type and shape.
uint64_t BytesOfOther(const Checkpoint& checkpoint, const Checkpoint& other) {
  uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const CheckpointTensor* const same = other.Find(tensor.name);
    const bool alike = same != nullptr && same->view.dtype == tensor.view.dtype &&
                       same->view.bytes.size() == tensor.view.bytes.size();
    if (!alike) bytes += tensor.view.bytes.size();
  }
  return bytes;
}

// Of a second checkpoint only what is its own must fit.
TEST_F(SharedWeightsTest, WhatIsSharedNeedsNoMemory) {
  const std::string first = FolderOf("kimi-k2"), second = FolderOf("kimi-k2-int4");
  const auto one = Checkpoint::Open(first), other = Checkpoint::Open(second);
  const uint64_t own = BytesOfOther(**other, **one);
  ASSERT_GT(own, 0u);
  ASSERT_LT(own, (*other)->tensor_bytes());
  SharedWeights shared;
  LoadOptions options;
  options.shared = &shared;
  options.available_memory = [&] { return (*one)->tensor_bytes() - 1; };
  EXPECT_EQ(LoadModel(first, *ops_, options).status().code(), StatusCode::kResourceExhausted);
  options.available_memory = [&] { return (*one)->tensor_bytes(); };
  const auto loaded = LoadModel(first, *ops_, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  options.available_memory = [&] { return own - 1; };
  const Status refused = LoadModel(second, *ops_, options).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.message();
  options.available_memory = [&] { return own; };
  const auto fits = LoadModel(second, *ops_, options);
  EXPECT_TRUE(fits.ok()) << fits.status().message();
  options.available_memory = [] { return uint64_t{0}; };
  EXPECT_TRUE(LoadModel(second, *ops_, options).ok());  // it is there already
}

// Equal names and sizes promise nothing.
TEST_F(SharedWeightsTest, AWeightThatDiffersMustFit) {
  const std::string copy = ::testing::TempDir() + "tern_shared_other";
  fs::remove_all(copy);
  fs::copy(FolderOf("llama"), copy);
  std::string changed;
  {
    const auto checkpoint = Checkpoint::Open(copy);
    const CheckpointTensor* const tensor = (*checkpoint)->Find("model.layers.0.mlp.up_proj.weight");
    ASSERT_NE(tensor, nullptr);
    changed = tensor->path();
    const std::string bytes(reinterpret_cast<const char*>(tensor->view.bytes.data()),
                            tensor->view.bytes.size());
    std::fstream file(changed, std::ios::in | std::ios::out | std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(file)), {});
    file.clear();
    file.seekp(static_cast<std::streamoff>(all.find(bytes)));
    file.put(static_cast<char>(bytes[0] ^ 1));
  }
  SharedWeights shared;
  LoadOptions options;
  options.shared = &shared;
  const auto first = LoadModel(FolderOf("llama"), *ops_, options);
  ASSERT_TRUE(first.ok()) << first.status().message();
  options.available_memory = [] { return uint64_t{16}; };
  const Status status = LoadModel(copy, *ops_, options).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("model.layers.0.mlp.up_proj.weight"), std::string::npos)
      << status.message();
  fs::remove_all(copy);
}

// The same bytes under one name, of another kind.
TEST_F(SharedWeightsTest, BlocksAndGroupsCount) {
  const auto make = [](int64_t columns) {
    ModelConfig config;
    config.source = "test";
    const DummyTensor tensor = {.name = "m.weight", .shape = {16, columns}};
    return Checkpoint::Dummy(config, {&tensor, 1});
  };
  const auto a = make(64), b = make(64), c = make(128);
  const auto of = [](const auto& checkpoint) {
    const auto weight =
        FindWeight(**checkpoint, "m.weight", 16, (*checkpoint)->Find("m.weight")->view.shape[1]);
    EXPECT_TRUE(weight.ok());
    return *weight;
  };
  SharedWeights shared;
  shared.AddMatrix("m.weight", of(a), *ops_->Pack(of(a).view.data, Precision::kProduction));
  EXPECT_FALSE(shared.FindMatrix("m.weight", of(b)).empty());
  EXPECT_TRUE(shared.FindMatrix("m.weight", of(c)).empty());
  EXPECT_TRUE(shared.FindMatrix("m.weight in float32", of(b)).empty());
  StoredWeight blocks = of(b);
  blocks.view.scheme = WeightView::Scheme::kFp8Block;
  EXPECT_TRUE(shared.FindMatrix("m.weight", blocks).empty());
  shared.AddMatrix("blocks", blocks, *ops_->Pack(of(a).view.data, Precision::kProduction));
  EXPECT_FALSE(shared.FindMatrix("blocks", blocks).empty());
  blocks.view.block_rows = 64;
  EXPECT_TRUE(shared.FindMatrix("blocks", blocks).empty());
}

}  // namespace
}  // namespace tern
