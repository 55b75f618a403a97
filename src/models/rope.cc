#include "models/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tensor/number.h"

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

// Frequencies that turn more than beta_fast times in the original context are kept, those that turn
// less than beta_slow times are divided by `factor`, and a ramp over the pairs lies between.
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& config, int64_t dims) : factor_(config.factor) {
    const double last = static_cast<double>(dims) - 1;
    const auto pair_of = [&](double rotations) {
      const auto original = static_cast<double>(config.original_max_position_embeddings);
      return static_cast<double>(dims) * std::log(original / (rotations * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(config.theta));
    };
    low_ = std::clamp(std::floor(pair_of(config.beta_fast)), 0.0, last);
    high_ = std::clamp(std::ceil(pair_of(config.beta_slow)), 0.0, last);
    if (low_ == high_) high_ += 0.001;
  }
  double Scale(double frequency, int64_t pair) const {
    const double ramp = std::clamp((static_cast<double>(pair) - low_) / (high_ - low_), 0.0, 1.0);
    return frequency * ((1.0 - ramp) + ramp / factor_);
  }

 private:
  double factor_, low_ = 0, high_ = 0;
};

double YarnAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  if (config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0) {
    return YarnMscale(config.factor, *config.mscale) /
           YarnMscale(config.factor, *config.mscale_all_dim);
  }
  return YarnMscale(config.factor, 1.0);
}

}  // namespace

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Result<RotaryEmbedding> RotaryEmbedding::Make(const RopeConfig& config, int64_t rotary_dims,
                                              std::span<const float> divisors,
                                              const std::string& source) {
  if (rotary_dims % 2 != 0) {
    return InvalidArgument(
        fmt::format("{}: {} rotary dimensions per head are not even", source, rotary_dims));
  }
  const bool llama3 = config.type == "llama3", yarn = config.type == "yarn";
  if ((llama3 || yarn) && config.original_max_position_embeddings < 1) {
    return InvalidArgument(fmt::format("{}: rope type {} needs original_max_position_embeddings",
                                       source, config.type));
  }
  if (llama3 && config.high_freq_factor <= config.low_freq_factor) {
    return InvalidArgument(
        fmt::format("{}: rope high_freq_factor {} must exceed low_freq_factor {}", source,
                    config.high_freq_factor, config.low_freq_factor));
  }
  if (yarn && (config.theta <= 1 || config.factor < 1)) {
    return InvalidArgument(
        fmt::format("{}: rope type yarn needs rope_theta {} above 1 and factor {} "
                    "of at least 1",
                    source, config.theta, config.factor));
  }
  if (!llama3 && !yarn && config.type != "default" && config.type != "linear") {
    return Unimplemented(
        fmt::format("{}: rope type '{}' is not supported (default, linear, "
                    "llama3 and yarn are)",
                    source, config.type));
  }
  RotaryEmbedding rotary;
  const YarnRamp ramp(config, rotary_dims);
  if (yarn) rotary.attention_factor_ = YarnAttentionFactor(config);
  if (!std::isfinite(rotary.attention_factor_)) {
    return InvalidArgument(fmt::format("{}: rope mscale is out of range", source));
  }
  for (int64_t pair = 0; pair < rotary_dims / 2; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dims);
    double frequency = std::pow(config.theta, exponent);
    if (llama3) frequency = ScaleLlama3(frequency, config);
    if (yarn) frequency = ramp.Scale(frequency, pair);
    if (config.type == "linear") frequency /= config.factor;
    if (!divisors.empty()) frequency /= static_cast<double>(divisors[static_cast<size_t>(pair)]);
    rotary.frequencies_.push_back(frequency);
  }
  return rotary;
}

void RotaryEmbedding::RoundFrequenciesToBf16() {
  for (double& frequency : frequencies_) frequency = RoundToBf16(static_cast<float>(frequency));
}

void RotaryEmbedding::Fill(int64_t first_position, int64_t rows, float* cos, float* sin) const {
  for (int64_t row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(first_position + row);
    for (const double frequency : frequencies_) {
      *cos++ = static_cast<float>(std::cos(position * frequency) * attention_factor_);
      *sin++ = static_cast<float>(std::sin(position * frequency) * attention_factor_);
    }
  }
}

}  // namespace tern
