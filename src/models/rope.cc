#include "models/rope.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

namespace tern {
namespace {

// Long waves are slowed by `factor`, short ones kept, those between blended.
double ScaleLlama3(double frequency, const RopeConfig& config) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(config.original_max_position_embeddings);
  if (wavelength > original / config.low_freq_factor) return frequency / config.factor;
  if (wavelength < original / config.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - config.low_freq_factor) /
                        (config.high_freq_factor - config.low_freq_factor);
  return (1.0 - smooth) * frequency / config.factor + smooth * frequency;
}

}  // namespace

Result<RotaryEmbedding> RotaryEmbedding::Make(const RopeConfig& config, int64_t rotary_dims,
                                              std::span<const float> divisors,
                                              const std::string& source) {
  if (rotary_dims % 2 != 0) {
    return InvalidArgument(
        fmt::format("{}: {} rotary dimensions per head are not even", source, rotary_dims));
  }
  const bool llama3 = config.type == "llama3";
  if (llama3 && config.original_max_position_embeddings < 1) {
    return InvalidArgument(
        fmt::format("{}: rope type llama3 needs original_max_position_embeddings", source));
  }
  if (llama3 && config.high_freq_factor <= config.low_freq_factor) {
    return InvalidArgument(
        fmt::format("{}: rope high_freq_factor {} must exceed low_freq_factor {}", source,
                    config.high_freq_factor, config.low_freq_factor));
  }
  if (!llama3 && config.type != "default" && config.type != "linear") {
    return Unimplemented(
        fmt::format("{}: rope type '{}' is not supported (default, linear and "
                    "llama3 are)",
                    source, config.type));
  }
  RotaryEmbedding rotary;
  for (int64_t pair = 0; pair < rotary_dims / 2; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dims);
    double frequency = std::pow(config.theta, exponent);
    if (llama3) frequency = ScaleLlama3(frequency, config);
    if (config.type == "linear") frequency /= config.factor;
    if (!divisors.empty()) frequency /= static_cast<double>(divisors[static_cast<size_t>(pair)]);
    rotary.frequencies_.push_back(frequency);
  }
  return rotary;
}

void RotaryEmbedding::Fill(int64_t first_position, int64_t rows, float* cos, float* sin) const {
  for (int64_t row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(first_position + row);
    for (const double frequency : frequencies_) {
      *cos++ = static_cast<float>(std::cos(position * frequency));
      *sin++ = static_cast<float>(std::sin(position * frequency));
    }
  }
}

}  // namespace tern
