// RotaryEmbedding: cosines and sines of rotary position embedding, per position.
// Formulas: RoFormer (arXiv 2104.09864); `linear` (position interpolation, arXiv 2306.15595);
// `llama3` (Llama 3.1's wavelength bands); `yarn` (arXiv 2309.00071, with the correction ranges of
// transformers' modeling_rope_utils). Thread: immutable after Make.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"

namespace tern {

class RotaryEmbedding {
 public:
  // `rotary_dims`: of each head, even. `divisors` (GGUF's rope_freqs: rotary_dims/2 numbers, or
  // empty) divide the frequencies. `source` names the file in errors.
  // Errors: kUnimplemented for another rope type, kInvalidArgument for bad parameters.
  static Result<RotaryEmbedding> Make(const RopeConfig& config, int64_t rotary_dims,
                                      std::span<const float> divisors, const std::string& source);

  // What casting a model to BF16 does to them (LoadOptions::bf16_rotary_frequencies).
  void RoundFrequenciesToBf16();

  // Writes rows positions first_position, first_position+1, ...: cos and sin are
  // [rows, rotary_dims/2], rounded to float32 from angles computed in double and multiplied by the
  // attention factor (yarn; else 1).
  void Fill(int64_t first_position, int64_t rows, float* cos, float* sin) const;

  double attention_factor() const { return attention_factor_; }
  int64_t rotary_dims() const { return static_cast<int64_t>(frequencies_.size()) * 2; }
  // Radians per position, [rotary_dims/2].
  std::span<const double> frequencies() const { return frequencies_; }

 private:
  std::vector<double> frequencies_;
  double attention_factor_ = 1.0;
};

// yarn's temperature: 0.1 * mscale * ln(factor) + 1 for factors above 1.
double YarnMscale(double factor, double mscale);

}  // namespace tern
