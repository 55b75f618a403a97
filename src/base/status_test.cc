#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/result.h"

namespace tern {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  TERN_ASSIGN_OR_RETURN(const int half, Half(x));
  TERN_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status Both(Status a, Status b) {
  TERN_RETURN_IF_ERROR(a);
  TERN_RETURN_IF_ERROR(b);
  return OkStatus();
}

TEST(Status, CarriesCodeAndMessage) {
  const Status status = NotFound("no such file");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.ToString(), "not found: no such file");
  EXPECT_EQ(status.WithContext("a.json").message(), "a.json: no such file");
  EXPECT_TRUE(OkStatus().WithContext("a.json").ok());
}

TEST(Status, MacrosReturnTheFirstError) {
  EXPECT_EQ(Both(OkStatus(), Internal("b")), Internal("b"));
  EXPECT_EQ(Both(Internal("a"), Internal("b")), Internal("a"));
  EXPECT_TRUE(Both(OkStatus(), OkStatus()).ok());
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status(), InvalidArgument("odd"));
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(ResultDeathTest, ReadingAnErrorIsAProgrammersBug) {
  Result<int> result = Half(1);
  EXPECT_DEATH((void)result.value(), "check failed");
}

}  // namespace
}  // namespace tern
