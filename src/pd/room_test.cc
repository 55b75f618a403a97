#include "pd/room.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

// HTTP statuses follow from the codes (server/errors.cc): a broken link is never a 4xx.
TEST(LostLinkTest, IsNeverTheClientsFault) {
  for (const StatusCode code : {StatusCode::kInvalidArgument, StatusCode::kFailedPrecondition,
                                StatusCode::kUnimplemented, StatusCode::kNotFound}) {
    const Status status = LostLink({code, "version 257"}, "the worker");
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "lost the worker: version 257");
  }
  for (const StatusCode code : {StatusCode::kUnavailable, StatusCode::kDataLoss,
                                StatusCode::kDeadlineExceeded, StatusCode::kInternal}) {
    EXPECT_EQ(LostLink({code, "x"}, "the worker").code(), code);
  }
}

}  // namespace
}  // namespace tern
