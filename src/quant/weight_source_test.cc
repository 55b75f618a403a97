// Rows of GGUF's spellings of a weight, against numbers that say where they belong.
#include "quant/weight_source.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/test_files.h"
#include "quant/input_files.h"

namespace tern {
namespace {

// A safetensors checkpoint whose tensors the test names; models don't matter.
class WeightSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "tern_weight_source";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    std::filesystem::copy("tests/data/golden/llama/config.json", folder_ + "/config.json");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::vector<std::pair<std::string, Shape>>& tensors,
             const std::vector<float>& values) {
    std::string header = "{", body(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    size_t at = 0;
    for (const auto& [name, shape] : tensors) {
      const size_t end = at + static_cast<size_t>(*shape.elements()) * 4;
      header += (at == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"F32","shape":)" +
                shape.ToString() + R"(,"data_offsets":[)" + std::to_string(at) + "," +
                std::to_string(end) + "]}";
      at = end;
    }
    header += "}";
    uint64_t size = header.size();
    test::WriteFile(folder_ + "/model.safetensors",
                    std::string(reinterpret_cast<const char*>(&size), 8) + header + body);
    auto opened = Checkpoint::Open(folder_);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    checkpoint_ = std::move(*opened);
  }

  // All rows, in blocks of `step`.
  std::vector<float> Rows(const WeightSource& source, int64_t step) {
    auto files = InputFiles::Open(*checkpoint_);
    EXPECT_TRUE(files.ok());
    std::vector<float> out(static_cast<size_t>(source.rows() * source.columns()));
    RowBlock block;
    for (int64_t first = 0; first < source.rows(); first += step) {
      const int64_t count = std::min(step, source.rows() - first);
      EXPECT_TRUE(source.Load(*files, first, count, &block).ok());
      for (int64_t i = 0; i < count; ++i) {
        source.Row(block, i, out.data() + (first + i) * source.columns());
      }
    }
    return out;
  }

  StoredWeight Find(const std::string& name, int64_t rows, int64_t columns) {
    auto found = FindWeight(*checkpoint_, name, rows, columns);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return *found;
  }

  std::string folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

// llama.cpp's converter: reshape(heads, 2, d / 2, columns).swapaxes(1, 2), so that row i of the
// first half is followed by row i of the second. 2 heads of 8 dimensions, 3 columns.
TEST_F(WeightSourceTest, RotaryRowsGoBackToHalves) {
  std::vector<float> stored;
  for (int head = 0; head < 2; ++head) {
    for (int pair = 0; pair < 4; ++pair) {
      for (int half = 0; half < 2; ++half) {
        for (int c = 0; c < 3; ++c) {
          stored.push_back(static_cast<float>((head * 8 + half * 4 + pair) * 10 + c));
        }
      }
    }
  }
  Write({{"w.weight", Shape{16, 3}}}, stored);
  const WeightSource source = WeightSource::Stored(Find("w.weight", 16, 3)).Deinterleaved(8);
  EXPECT_EQ(source.granularity(), 8);
  for (const int64_t step : {8, 16}) {
    const std::vector<float> rows = Rows(source, step);
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < 3; ++c) EXPECT_EQ(rows[static_cast<size_t>(r * 3 + c)], r * 10 + c);
    }
  }
  // A bias is one row, and one number a row afterwards.
  Write({{"b", Shape{8}}}, {0, 4, 1, 5, 2, 6, 3, 7});
  const WeightSource bias = WeightSource::Vector(*checkpoint_->Find("b")).Deinterleaved(8);
  EXPECT_EQ(Rows(bias, 8), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
}

// Two heads, nope 2, value 3, latent 4. k_b is transposed: [heads, latent, nope].
TEST_F(WeightSourceTest, HalvesOfKvBAreJoinedByHead) {
  const auto number = [](int head, int row, int column) {
    return static_cast<float>(100 * head + 10 * row + column);
  };
  std::vector<float> values;
  for (int head = 0; head < 2; ++head) {
    for (int latent = 0; latent < 4; ++latent) {
      for (int nope = 0; nope < 2; ++nope) values.push_back(number(head, nope, latent));
    }
  }
  for (int head = 0; head < 2; ++head) {
    for (int value = 0; value < 3; ++value) {
      for (int latent = 0; latent < 4; ++latent) values.push_back(number(head, 2 + value, latent));
    }
  }
  Write({{"k.weight", Shape{8, 2}}, {"v.weight", Shape{6, 4}}}, values);
  const WeightSource source =
      WeightSource::JoinedHalves(Find("k.weight", 8, 2), Find("v.weight", 6, 4), 2);
  ASSERT_EQ(source.rows(), 10);
  ASSERT_EQ(source.columns(), 4);
  for (const int64_t step : {5, 10}) {
    const std::vector<float> rows = Rows(source, step);
    for (int r = 0; r < 10; ++r) {
      for (int c = 0; c < 4; ++c) {
        EXPECT_EQ(rows[static_cast<size_t>(r * 4 + c)], number(r / 5, r % 5, c));
      }
    }
  }
}

TEST_F(WeightSourceTest, AFileThatShrinksIsAnErrorAndNoSignal) {
  Write({{"w.weight", Shape{4096, 4}}}, std::vector<float>(4096 * 4));
  auto files = InputFiles::Open(*checkpoint_);
  ASSERT_TRUE(files.ok());
  EXPECT_TRUE(files->CheckUnchanged().ok());
  std::filesystem::resize_file(folder_ + "/model.safetensors", 300);
  RowBlock block;
  const Status status =
      WeightSource::Stored({WeightView::Plain(checkpoint_->Find("w.weight")->view),
                            {checkpoint_->Find("w.weight"), nullptr, nullptr}})
          .Load(*files, 0, 4096, &block);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("'w.weight'"), std::string::npos) << status.message();
  EXPECT_EQ(files->CheckUnchanged().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tern
