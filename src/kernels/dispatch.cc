#include "kernels/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tern {
namespace {

constexpr uint32_t Bit(int i) { return uint32_t{1} << i; }

bool HasAvx2(const CpuState& s) {
  constexpr uint32_t kLeaf1 = Bit(12) | Bit(27) | Bit(28) | Bit(29);  // FMA OSXSAVE AVX F16C
  constexpr uint32_t kLeaf7 = Bit(5) | Bit(8);                        // AVX2 BMI2
  constexpr uint64_t kXmmYmm = 0x6;
  return (s.leaf1_ecx & kLeaf1) == kLeaf1 && (s.leaf7_ebx & kLeaf7) == kLeaf7 &&
         (s.xcr0 & kXmmYmm) == kXmmYmm;
}

bool HasAvx512(const CpuState& s) {
  constexpr uint32_t kLeaf7Ebx = Bit(16) | Bit(17) | Bit(30) | Bit(31);  // F DQ BW VL
  constexpr uint32_t kLeaf7Ecx = Bit(1) | Bit(11);                       // VBMI VNNI
  constexpr uint32_t kLeaf71Eax = Bit(5);                                // BF16
  constexpr uint64_t kMaskAndZmm = 0xE0;
  return HasAvx2(s) && (s.leaf7_ebx & kLeaf7Ebx) == kLeaf7Ebx &&
         (s.leaf7_ecx & kLeaf7Ecx) == kLeaf7Ecx && (s.leaf7_1_eax & kLeaf71Eax) == kLeaf71Eax &&
         (s.xcr0 & kMaskAndZmm) == kMaskAndZmm;
}

struct Level {
  const char* name;
  bool (*runs)(const CpuState&);
  void (*fill)(IsaTable*);
};

// Lowest first: a table starts as a copy of the one before it.
constexpr std::array kLevels = {
    Level{"ref", [](const CpuState&) { return true; }, FillRefTable},
    Level{"generic", [](const CpuState&) { return true; }, FillGenericTable},
#if defined(__x86_64__)
    Level{"avx2", HasAvx2, FillAvx2Table},
    Level{"avx512", HasAvx512, FillAvx512Table},
#endif
};

struct Tables {
  std::array<IsaTable, kLevels.size()> tables{};
  size_t count = 0;

  Tables() {
    const CpuState state = ReadCpuState();
    for (const Level& level : kLevels) {
      if (!level.runs(state)) break;
      if (count > 0) tables[count] = tables[count - 1];
      level.fill(&tables[count]);
      tables[count].name = level.name;
      ++count;
    }
  }
};

}  // namespace

CpuState ReadCpuState() {
  CpuState state;
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) state.leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    state.leaf7_ebx = b;
    state.leaf7_ecx = c;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) state.leaf7_1_eax = a;
  }
  if (state.leaf1_ecx & Bit(27)) {  // OSXSAVE: XGETBV may be used
    uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    state.xcr0 = uint64_t{high} << 32 | low;
  }
#endif
  return state;
}

std::vector<std::string> IsasOf(const CpuState& state) {
  std::vector<std::string> names;
  for (const Level& level : kLevels) {
    if (!level.runs(state)) break;
    names.insert(names.begin(), level.name);
  }
  return names;
}

Result<const IsaTable*> FindIsa(const std::string& name) {
  static const Tables kTables;
  if (name.empty()) return &kTables.tables[kTables.count - 1];
  for (size_t i = 0; i < kTables.count; ++i) {
    if (name == kTables.tables[i].name) return &kTables.tables[i];
  }
  const bool known = std::any_of(kLevels.begin(), kLevels.end(),
                                 [&](const Level& level) { return name == level.name; });
  return InvalidArgument(fmt::format("{} instruction-set level '{}': this machine runs {}",
                                     known ? "this machine can't run" : "unknown", name,
                                     fmt::join(IsasOf(ReadCpuState()), ", ")));
}

}  // namespace tern
