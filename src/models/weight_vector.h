// WeightVector: a norm, a bias or the like as float32 values, which models that have it alike hold
// once. Owner: the models. Thread: immutable.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tern {

class WeightVector {
 public:
  WeightVector() = default;
  explicit WeightVector(std::vector<float> values)
      : values_(std::make_shared<const std::vector<float>>(std::move(values))) {}

  size_t size() const { return values_ == nullptr ? 0 : values_->size(); }
  bool empty() const { return size() == 0; }
  const float* data() const { return values_ == nullptr ? nullptr : values_->data(); }
  float operator[](size_t i) const { return data()[i]; }
  const float* begin() const { return data(); }
  const float* end() const { return data() + size(); }
  size_t size_bytes() const { return size() * sizeof(float); }

 private:
  std::shared_ptr<const std::vector<float>> values_;
};

}  // namespace tern
