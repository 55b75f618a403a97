// Conversions between float and the 16- and 8-bit formats, as plain C++ (the spec; kernels have
// fast forms that must agree bit for bit). Thread: pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace tern {

// BF16: the upper half of a float. Round to nearest, ties to even; NaN stays NaN.
inline uint16_t Bf16FromFloat(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}
inline float FloatFromBf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }
inline float RoundToBf16(float x) { return FloatFromBf16(Bf16FromFloat(x)); }

// IEEE 754 binary16.
float FloatFromF16(uint16_t x);
uint16_t F16FromFloat(float x);

// e4m3fn (OCP 8-bit floating point, revision 1.0). Round to nearest even, saturating at +-448:
// finite and infinite inputs never give NaN; NaN gives 0x7F.
uint8_t E4m3FromFloat(float x);
float FloatFromE4m3(uint8_t x);

}  // namespace tern
