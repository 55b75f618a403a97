#include "tensor/number.h"

#include <cmath>

namespace tern {

float FloatFromF16(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = x >> 10 & 31;
  const uint32_t mantissa = x & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1.0p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t F16FromFloat(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00;  // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000u) {                       // subnormal: units of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1.0p24f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyintf(scaled)));
  }
  const uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}

uint8_t E4m3FromFloat(float x) {
  if (std::isnan(x)) return 0x7F;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= 448.0f) return sign | 0x7E;
  if (magnitude < 0x1.0p-6f) {  // subnormal: units of 2^-9
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyintf(magnitude * 512.0f)));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + 0x7FFFFu + (bits >> 20 & 1);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7E ? 0x7E : code));
}

float FloatFromE4m3(uint8_t x) {
  const uint32_t sign = uint32_t{x & 0x80u} << 24;
  const uint32_t exponent = x >> 3 & 15;
  const uint32_t mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1.0p-9f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | (exponent + 120) << 23 | mantissa << 20);
}

}  // namespace tern
