// Where a panel's regions lie, and the scales of the 4-bit formats:
//   w[k] = Scale(group of k) * (q[k] - kZero) + Minimum(group of k)
// for the 16 rows of a panel. One struct per format, shared by the kernels of BF16 and of INT8
// activations. See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes
// first.
#pragma once

#include "kernels/cpu/matmul_f32.h"

namespace tern {
namespace {

struct Panel {
  const std::byte *super, *scales, *quants;
};
[[maybe_unused]] inline Panel PanelAt(const MatMulArgs& args, const PanelLayout& layout,
                                      int64_t n) {
  const std::byte* base = args.weight + n * layout.stride;
  return {base + layout.super, base + layout.scales, base + layout.quants};
}

// Asks for kBytes of weights that lie 2 KiB behind `quants`, in this panel or the next: the CPU's
// own prefetching falls behind on one or two panels (on four this costs more than it gives).
template <int kBytes>
inline void PrefetchQuants(const std::byte* quants) {
  for (int at = 0; at < kBytes; at += 64) __builtin_prefetch(quants + 2048 + at, 0, 2);
}

// GroupColumns: columns that share a scale. HasMinimum: whether Minimum is ever other than zero.
struct Q4_0Scales {
  static constexpr int kZero = 8;
  static constexpr bool HasMinimum() { return false; }
  static constexpr int64_t GroupColumns() { return 32; }
  static Vec Scale(const Panel& panel, int64_t group) { return LoadF16(panel.scales + group * 32); }
  static Vec Minimum(const Panel&, int64_t) { return Zero(); }
};

struct Q4_1Scales {
  static constexpr int kZero = 0;
  static constexpr bool HasMinimum() { return true; }
  static constexpr int64_t GroupColumns() { return 32; }
  static Vec Scale(const Panel& panel, int64_t group) { return LoadF16(panel.scales + group * 64); }
  static Vec Minimum(const Panel& panel, int64_t group) {
    return LoadF16(panel.scales + group * 64 + 32);
  }
};

struct Q4_KScales {
  static constexpr int kZero = 0;
  static constexpr bool HasMinimum() { return true; }
  static constexpr int64_t GroupColumns() { return 32; }
  static Vec Scale(const Panel& panel, int64_t group) {
    return Mul(LoadF16(panel.super + group / 8 * 64), ToFloat(LoadU8(panel.scales + group * 32)));
  }
  static Vec Minimum(const Panel& panel, int64_t group) {
    const Vec m = Mul(LoadF16(panel.super + group / 8 * 64 + 32),
                      ToFloat(LoadU8(panel.scales + group * 32 + 16)));
    return Sub(Zero(), m);
  }
};

// kPackInt4: z as the minimum d * z. The type of scales is looked at once a group: a copy of the
// kernels for each type was at most 3 % faster.
struct Int4Scales {
  static constexpr int kZero = 8;
  explicit Int4Scales(int format)
      : group_columns(Int4FormatOf(format).group),
        scale(Int4FormatOf(format).scale),
        zeros(Int4FormatOf(format).zeros) {}
  bool HasMinimum() const { return zeros; }
  int64_t GroupColumns() const { return group_columns; }
  Vec Scale(const Panel& panel, int64_t group) const {
    return LoadInt4Scale(scale, panel.scales, group);
  }
  Vec Minimum(const Panel& panel, int64_t group) const {
    return Mul(ToFloat(LoadI8(panel.super + group * 16)), Scale(panel, group));
  }
  int64_t group_columns;
  Int4Scale scale;
  bool zeros;
};

}  // namespace
}  // namespace tern
