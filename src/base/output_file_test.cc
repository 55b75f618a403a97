#include "base/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"

namespace tern {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "tern_output_file";
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  static std::span<const std::byte> Bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }
  std::string folder_;
};

TEST_F(OutputFileTest, TheNameAppearsWithTheWholeFile) {
  const std::string path = folder_ + "/a";
  {
    auto file = OutputFile::Create(path, 6);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->Write(3, Bytes("def")).ok());
    EXPECT_FALSE(FileExists(path));
    ASSERT_TRUE((*file)->Write(0, Bytes("abc")).ok());
    ASSERT_TRUE((*file)->Commit().ok());
  }
  EXPECT_EQ(*ReadFile(path), "abcdef");
  EXPECT_FALSE(FileExists(path + ".part"));
}

TEST_F(OutputFileTest, WithoutCommitNothingStaysAndTheOldFileIsAsItWas) {
  const std::string path = folder_ + "/a";
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  {
    auto file = OutputFile::Create(path, 100);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Write(0, Bytes("new")).ok());
  }
  EXPECT_EQ(*ReadFile(path), "old");
  EXPECT_FALSE(FileExists(path + ".part"));
}

TEST_F(OutputFileTest, ErrorsNameThePath) {
  const auto file = OutputFile::Create(folder_ + "/none/a", 1);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(file.status().message(), ::testing::HasSubstr("/none/a"));
  // More than any disk has.
  const auto huge = OutputFile::Create(folder_ + "/huge", uint64_t{1} << 60);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.status().code(), StatusCode::kResourceExhausted) << huge.status().message();
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace tern
