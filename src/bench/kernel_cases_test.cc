#include "bench/kernel_cases.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

class KernelCasesTest : public testing::Test {
 protected:
  Result<ColdWeights> Make(const std::string& format) {
    return MakeWeights(*ops_, format, 128, 256, 1, 1);
  }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = std::move(Ops::Create("", pool_)).value();
};

TEST_F(KernelCasesTest, BlocksAndGroupsAreThoseOfTheName) {
  uint64_t last = ~uint64_t{0};
  for (const char* format : {"INT4 g32", "INT4 g64", "INT4 g128"}) {
    const Result<ColdWeights> made = Make(format);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_LT((**made)[0].size_bytes(), last) << format;  // fewer scales
    last = (**made)[0].size_bytes();
    MakeMatMul(*ops_, *made, 1, 2).run();
  }
  for (const char* format : {"FP8 128x128", "FP8 64x128"}) {
    const Result<ColdWeights> made = Make(format);
    ASSERT_TRUE(made.ok()) << made.status().message();
    MakeMatMul(*ops_, *made, 1, 2).run();
  }
}

TEST_F(KernelCasesTest, WhatKernelsDoNotAllowIsRefused) {
  for (const char* format :
       {"INT4 g48", "INT4 g16", "INT4 g", "INT4 g0", "INT4 g-32", "INT4 g32x", "INT4", "FP8",
        "FP8 128", "FP8 128x", "FP8 128x64", "FP8 0x128", "FP8 128x128x128", "FP8 99999999999x128",
        "FP8 99999999999999999999x128", "INT5"}) {
    EXPECT_EQ(Make(format).status().code(), StatusCode::kInvalidArgument) << format;
  }
}

TEST_F(KernelCasesTest, ASpeedThatCanNotBeMeasuredIsNotKnown) {
  MeasuredKernels kernels(*ops_, {});
  WeightGroup group{.format = "INT4 g48", .rows = 64, .columns = 96, .bytes = 1, .products = 1};
  EXPECT_EQ(kernels.MatMul(group, 1), 0);
  group.format = "INT4 g32";
  EXPECT_GT(kernels.MatMul(group, 1), 0);
  EXPECT_GT(kernels.MatMul(group, 2), 0);
}

}  // namespace
}  // namespace tern
