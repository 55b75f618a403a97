#include "base/env.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"

namespace tern {
namespace {

TEST(Env, IsaIsAbsentWhenUnsetOrEmpty) {
  const std::optional<std::string> before = EnvIsa();
  ::unsetenv("TERN_ISA");
  EXPECT_EQ(EnvIsa(), std::nullopt);
  ::setenv("TERN_ISA", "", 1);
  EXPECT_EQ(EnvIsa(), std::nullopt);
  ::setenv("TERN_ISA", "generic", 1);
  EXPECT_EQ(EnvIsa(), "generic");
  if (before) {
    ::setenv("TERN_ISA", before->c_str(), 1);
  } else {
    ::unsetenv("TERN_ISA");
  }
}

TEST(Env, EveryVariableIsDocumented) {
  const Result<std::string> doc = ReadFile(TERN_SOURCE_DIR "/docs/ENV.md");
  ASSERT_TRUE(doc.ok()) << doc.status().ToString();
  for (const EnvVariable& variable : EnvVariables()) {
    EXPECT_NE(doc->find(std::string("| `") + variable.name + "` | " + variable.help + " |"),
              std::string::npos)
        << variable.name;
  }
}

}  // namespace
}  // namespace tern
