// The scales of the 4-bit formats:
//   w[k] = Scale(group of k) * (q[k] - kZero) + Minimum(group of k)
// for the 16 rows of a panel. One struct per format, shared by the kernels of BF16 and of INT8
// activations. See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes
// first.
#pragma once

#include "kernels/cpu/matmul_f32.h"

namespace tern {
namespace {

// GroupColumns: columns that share a scale. HasMinimum: whether Minimum is ever other than zero.
// `column`: the first of a group.
struct Q4_0Scales {
  static constexpr int kZero = 8;
  static constexpr PanelBlock block = PanelBlockOf(kPackQ4_0);
  static constexpr bool HasMinimum() { return false; }
  static constexpr int64_t GroupColumns() { return 32; }
  static Vec Scale(const std::byte* panel, int64_t column) {
    return LoadF16(panel + ScalesAt(block, column, 32, 32));
  }
  static Vec Minimum(const std::byte*, int64_t) { return Zero(); }
};

struct Q4_1Scales {
  static constexpr int kZero = 0;
  static constexpr PanelBlock block = PanelBlockOf(kPackQ4_1);
  static constexpr bool HasMinimum() { return true; }
  static constexpr int64_t GroupColumns() { return 32; }
  static Vec Scale(const std::byte* panel, int64_t column) {
    return LoadF16(panel + BlockAt(block, column));
  }
  static Vec Minimum(const std::byte* panel, int64_t column) {
    return LoadF16(panel + BlockAt(block, column) + 32);
  }
};

struct Q4_KScales {
  static constexpr int kZero = 0;
  static constexpr PanelBlock block = PanelBlockOf(kPackQ4_K);
  static constexpr bool HasMinimum() { return true; }
  static constexpr int64_t GroupColumns() { return 32; }
  static Vec Scale(const std::byte* panel, int64_t column) {
    return Mul(LoadF16(panel + BlockAt(block, column)),
               ToFloat(LoadU8(panel + ScalesAt(block, column, 32, 32))));
  }
  static Vec Minimum(const std::byte* panel, int64_t column) {
    const Vec m = Mul(LoadF16(panel + BlockAt(block, column) + 32),
                      ToFloat(LoadU8(panel + ScalesAt(block, column, 32, 32) + 16)));
    return Sub(Zero(), m);
  }
};

// kPackInt4: z as the minimum d * z. The type of scales is looked at once a group: a copy of the
// kernels for each type was at most 3 % faster.
struct Int4Scales {
  static constexpr int kZero = 8;
  explicit Int4Scales(int pack) : block(PanelBlockOf(pack)), format(Int4FormatOf(pack)) {}
  bool HasMinimum() const { return format.zeros; }
  int64_t GroupColumns() const { return format.group; }
  Vec Scale(const std::byte* panel, int64_t column) const {
    return LoadInt4Scale(format, block, panel, column);
  }
  Vec Minimum(const std::byte* panel, int64_t column) const {
    return Mul(ToFloat(LoadInt4Zero(format, block, panel, column)), Scale(panel, column));
  }
  PanelBlock block;
  Int4Format format;
};

}  // namespace
}  // namespace tern
