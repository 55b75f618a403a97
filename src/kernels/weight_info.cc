#include "kernels/weight_info.h"

#include <fmt/format.h>

#include "kernels/cpu/layout.h"
#include "kernels/dispatch.h"
#include "kernels/packed_access.h"

namespace tern {

bool HasBf16Products(const Ops& ops) {
  const Result<const IsaTable*> table = FindIsa(ops.isa());
  return table.ok() && (*table)->bf16_activations;
}

std::string FormatNameOf(const PackedMatrix& weight) {
  const int format = PackedAccess::ArgsOf(weight).format;
  if (IsInt4(format)) {
    const Int4Format f = Int4FormatOf(format);
    return fmt::format("INT4 g{}{}", f.group, f.zeros ? " asymmetric" : "");
  }
  switch (format) {
    case kPackF32:
      return "FP32";
    case kPackBf16:
      return "BF16";
    case kPackQ4_0:
      return "Q4_0";
    case kPackQ4_1:
      return "Q4_1";
    case kPackQ8_0:
      return "Q8_0";
    case kPackQ4_K:
      return "Q4_K";
    case kPackQ6_K:
      return "Q6_K";
    case kPackFp8:
      return "FP8 128x128";
  }
  return fmt::format("format {}", format);
}

Arithmetic ArithmeticOf(const Ops& ops, const PackedMatrix& weight) {
  const int format = PackedAccess::ArgsOf(weight).format;
  if (ops.activations() == Activations::kInt8 && Is4Bit(format)) return Arithmetic::kInt8;
  return HasBf16Products(ops) && format != kPackF32 ? Arithmetic::kBf16 : Arithmetic::kF32;
}

const char* ActivationNameOf(const Ops& ops) {
  if (ops.activations() == Activations::kInt8) return "INT8 g32";
  return HasBf16Products(ops) ? "BF16" : "FP32";
}

}  // namespace tern
