// WorkCounter: the bytes of weights that passes read and the products that they make, seen by
// watching every matrix product. Attach it for passes that are not timed.
// Owner: a benchmark. Thread: the one that calls the model.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "kernels/matmul_observer.h"
#include "kernels/ops.h"
#include "kernels/weight_info.h"

namespace tern {

// Of a pass, or the mean of several.
struct PassWork {
  double weight_bytes = 0;                         // each distinct weight once
  double f32_ops = 0, bf16_ops = 0, int8_ops = 0;  // two for each product
  std::map<std::string, double> format_bytes;      // weight_bytes by format

  // "INT4 g32", or the formats by their share: "Q4_1 74 %, Q8_0 26 %".
  std::string FormatText() const;
};

class WorkCounter final : public MatMulObserver {
 public:
  // Watches from now on; `ops` outlives this.
  explicit WorkCounter(Ops& ops);
  ~WorkCounter() override;
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  void OnInput(const PackedMatrix& weight, const float* x, int64_t x_stride, int64_t rows) override;
  // A pass has ended.
  void EndPass();
  // The mean of the passes so far.
  PassWork Mean() const;

 private:
  Ops& ops_;
  PassWork sum_;
  int64_t passes_ = 0;
  std::unordered_map<const PackedMatrix*, bool> seen_;  // in this pass
};

}  // namespace tern
