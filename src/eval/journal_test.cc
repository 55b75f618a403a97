#include "eval/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/file.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

class JournalTest : public testing::Test {
 protected:
  void TearDown() override { std::remove(path_.c_str()); }
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  const std::string path_ = testing::TempDir() + "journal_" + std::to_string(getpid());
  const Json run_ = {{"model", "m"}, {"max_new_tokens", 64}};
};

TEST_F(JournalTest, AnswersOfABrokenRunAreFoundAgain) {
  const uint64_t big = 0xfedcba9876543210u;
  {
    auto journal = Journal::Open(path_, run_, false);
    ASSERT_TRUE(journal.ok()) << journal.status().message();
    ASSERT_TRUE((*journal)->Add(big, {.text = "a\n\"b\"", .completion_tokens = 3}).ok());
    ASSERT_TRUE(
        (*journal)->Add(2, {.text = "", .call = AnsweredCall{"f", "{}"}, .cut = true}).ok());
  }
  Append("{\"item\":\"00000000000000");  // killed while it wrote
  auto journal = Journal::Open(path_, run_, true);
  ASSERT_TRUE(journal.ok()) << journal.status().message();
  EXPECT_EQ((*journal)->size(), 2u);
  EXPECT_EQ((*journal)->Find(big)->text, "a\n\"b\"");
  EXPECT_EQ((*journal)->Find(big)->completion_tokens, 3);
  EXPECT_EQ((*journal)->Find(2)->call->name, "f");
  EXPECT_TRUE((*journal)->Find(2)->cut);
  EXPECT_EQ((*journal)->Find(3), nullptr);
  ASSERT_TRUE((*journal)->Add(3, {.text = "c"}).ok());
  journal->reset();
  EXPECT_EQ((*Journal::Open(path_, run_, true))->size(), 3u) << "the cut line is gone";
  (*Journal::Open(path_, run_, true))->Remove();
  EXPECT_FALSE(FileExists(path_));
}

TEST_F(JournalTest, IsNeitherOverwrittenNorMixed) {
  ASSERT_TRUE((*Journal::Open(path_, run_, false))->Add(1, {.text = "a"}).ok());
  EXPECT_THAT(Journal::Open(path_, run_, false).status().message(), HasSubstr("--resume"));
  const Json other = {{"model", "m"}, {"max_new_tokens", 65}};
  EXPECT_THAT(Journal::Open(path_, other, true).status().message(), HasSubstr("another run"));
  Append("[]\n");
  EXPECT_THAT(Journal::Open(path_, run_, true).status().message(), HasSubstr("line 3"));
}

TEST_F(JournalTest, ForeignFilesAndUnwritablePathsAreErrors) {
  Append("{\"x\":1}\n");
  EXPECT_EQ(Journal::Open(path_, run_, true).status().code(), StatusCode::kDataLoss);
  const auto none = Journal::Open("/none/x.partial", run_, false);
  EXPECT_THAT(none.status().message(), HasSubstr("/none/x.partial: No such file"));
}

}  // namespace
}  // namespace tern
