#include "report/report_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

class ReportFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "report_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(ReportFile, IsWholeOrAbsent) {
  const std::string path = folder_ + "/a.json";
  ASSERT_TRUE(WriteReportJson(path, Json{{"a", 1}}).ok());
  EXPECT_EQ(*ReadFile(path), "{\n \"a\": 1\n}\n");
  ASSERT_TRUE(WriteReportFile(path, "second").ok());
  EXPECT_EQ(*ReadFile(path), "second");
  EXPECT_FALSE(FileExists(path + ".tmp"));
}

TEST_F(ReportFile, ErrorsNameThePath) {
  const Status missing = WriteReportFile(folder_ + "/none/a.json", "x");
  EXPECT_THAT(missing.message(), HasSubstr(folder_ + "/none/a.json: No such file or directory"));
  const Status full = WriteReportFile("/dev/full", "x");
  EXPECT_THAT(full.message(), HasSubstr("cannot write /dev/full: No space left on device"));
  const Status folder = WriteReportFile(folder_, "x");
  EXPECT_THAT(folder.message(), HasSubstr("Is a directory"));
  EXPECT_FALSE(FileExists(folder_ + ".tmp"));
}

}  // namespace
}  // namespace tern
