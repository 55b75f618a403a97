#include "kernels/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/ops.h"

namespace tern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bits from Intel's manual, volume 2A, CPUID; a machine with everything.
constexpr CpuState kEverything = {
    .leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29,
    .leaf7_ebx = 1u << 5 | 1u << 8 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31,
    .leaf7_ecx = 1u << 1 | 1u << 11,
    .leaf7_1_eax = 1u << 5,
    .xcr0 = 0xE7};

TEST(DispatchTest, LevelsAreOfferedBestFirst) {
  EXPECT_THAT(IsasOf(kEverything), ElementsAre("avx512", "avx2", "generic", "ref"));
  EXPECT_THAT(IsasOf({}), ElementsAre("generic", "ref"));
}

TEST(DispatchTest, EveryCpuBitCounts) {
  for (uint32_t CpuState::*word :
       {&CpuState::leaf1_ecx, &CpuState::leaf7_ebx, &CpuState::leaf7_ecx, &CpuState::leaf7_1_eax}) {
    for (int bit = 0; bit < 32; ++bit) {
      CpuState state = kEverything;
      if ((state.*word >> bit & 1) == 0) continue;
      state.*word &= ~(1u << bit);
      EXPECT_NE(IsasOf(state)[0], "avx512") << bit;
    }
  }
}

// The CPU has the instructions, but the operating system does not save the registers.
TEST(DispatchTest, OperatingSystemStateCounts) {
  CpuState state = kEverything;
  for (const uint64_t lost : {0x20, 0x40, 0x80}) {
    state.xcr0 = 0xE7 & ~lost;
    EXPECT_THAT(IsasOf(state), ElementsAre("avx2", "generic", "ref")) << lost;
  }
  for (const uint64_t lost : {0x2, 0x4}) {
    state.xcr0 = 0xE7 & ~lost;
    EXPECT_THAT(IsasOf(state), ElementsAre("generic", "ref")) << lost;
  }
}

TEST(DispatchTest, ForcedLevelIsTheActiveOneAndOthersAreRefused) {
  ThreadPool pool(1);
  for (const std::string& name : Ops::SupportedIsas()) {
    const auto ops = Ops::Create(name, pool);
    ASSERT_TRUE(ops.ok());
    EXPECT_EQ((*ops)->isa(), name);
    EXPECT_EQ((*FindIsa(name))->name, name);
  }
  EXPECT_EQ((*Ops::Create("", pool))->isa(), Ops::SupportedIsas()[0]);
  for (const char* wrong : {"avx9000", "AVX2", "ref ", "auto"}) {
    const auto ops = Ops::Create(wrong, pool);
    ASSERT_FALSE(ops.ok()) << wrong;
    EXPECT_EQ(ops.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(ops.status().message(), HasSubstr(wrong));
    EXPECT_THAT(ops.status().message(), HasSubstr("generic, ref"));
  }
}

}  // namespace
}  // namespace tern
