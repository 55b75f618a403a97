#include "quant/quantize_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/output_file.h"

namespace tern {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class QuantizeStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "tern_quantize_state";
    fs::remove_all(folder_);
    job_["options"]["group"] = 32;
    job_["input"] = "x";
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string StatePath() const { return folder_ + "/" + kQuantizeStateFile; }

  std::string folder_;
  Json job_;
};

TEST_F(QuantizeStateTest, NotesOutliveTheProcess) {
  {
    auto state = QuantizeState::Open(folder_, job_);
    ASSERT_TRUE(state.ok()) << state.status().message();
    EXPECT_TRUE((*state)->finished().empty());
    ASSERT_TRUE((*state)->Note("a", {1, 0.1, 1e-300}).ok());
    EXPECT_THAT(QuantizeState::Open(folder_, job_).status().message(),
                HasSubstr("another process"));
  }
  auto state = QuantizeState::Open(folder_, job_);
  ASSERT_TRUE(state.ok()) << state.status().message();
  EXPECT_EQ((*state)->finished().at("a"), Json({1, 0.1, 1e-300}));
  ASSERT_TRUE((*state)->Remove().ok());
  EXPECT_TRUE(fs::is_empty(folder_));
}

// A line cut anywhere is as if it had not been written, and the next one is whole.
TEST_F(QuantizeStateTest, AnyCutLosesAtMostTheLastNote) {
  {
    auto state = QuantizeState::Open(folder_, job_);
    ASSERT_TRUE(state.ok());
    ASSERT_TRUE((*state)->Note("a", 1).ok());
    ASSERT_TRUE((*state)->Note("b", 2).ok());
  }
  const std::string whole = *ReadFile(StatePath());
  for (size_t size = 0; size <= whole.size(); ++size) {
    ASSERT_TRUE(WriteFileAtomically(StatePath(), whole.substr(0, size)).ok());
    const auto lines = std::count(whole.begin(), whole.begin() + static_cast<int64_t>(size), '\n');
    auto state = QuantizeState::Open(folder_, job_);
    ASSERT_TRUE(state.ok()) << size << ": " << state.status().message();
    EXPECT_EQ((*state)->finished().size(), static_cast<size_t>(std::max<int64_t>(0, lines - 1)));
    ASSERT_TRUE((*state)->Note("c", 3).ok());
    state->reset();
    auto again = QuantizeState::Open(folder_, job_);
    ASSERT_TRUE(again.ok()) << size << ": " << again.status().message();
    EXPECT_TRUE((*again)->finished().contains("c"));
  }
}

TEST_F(QuantizeStateTest, AnotherJobIsRefusedByWhatDiffers) {
  { ASSERT_TRUE(QuantizeState::Open(folder_, job_).ok()); }
  job_["options"]["group"] = 64;
  const auto state = QuantizeState::Open(folder_, job_);
  ASSERT_FALSE(state.ok());
  EXPECT_THAT(state.status().message(), HasSubstr("group was 32, now 64"));
}

TEST_F(QuantizeStateTest, AForeignFolderIsLeftAlone) {
  fs::create_directory(folder_);
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/mine", "x").ok());
  EXPECT_THAT(QuantizeState::Open(folder_, job_).status().message(), HasSubstr("'mine'"));
  EXPECT_FALSE(fs::exists(StatePath()));
}

}  // namespace
}  // namespace tern
