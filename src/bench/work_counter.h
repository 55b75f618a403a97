// WorkCounter: the bytes of weights that passes read and the products that they make, seen by
// watching every matrix product. Attach it for passes that are not timed.
// Owner: a benchmark. Thread: the one that calls the model.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>

#include "bench/machine_limits.h"
#include "kernels/matmul_observer.h"
#include "kernels/ops.h"
#include "kernels/weight_info.h"

namespace tern {

// Of a pass, or the mean of several.
struct PassWork {
  Work work;                                   // bytes: each distinct weight once
  std::map<std::string, double> format_bytes;  // by format

  // "INT4 g32", or the formats by their share: "Q4_1 74 %, Q8_0 26 %".
  std::string FormatText() const;
};

// Operations and bytes of one product.
Work ProductWork(const Ops& ops, const PackedMatrix& weight, int64_t rows);

class WorkCounter final : public MatMulObserver {
 public:
  // Watches from now on; `ops` outlives this. `expands`: whether latent attention expands rows by
  // its weights in these passes, as the prefill form does.
  WorkCounter(Ops& ops, bool expands);
  ~WorkCounter() override;
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  void OnInput(const PackedMatrix& weight, const float* x, int64_t x_stride, int64_t rows) override;
  void OnAttentionInput(const PackedMatrix& weight, const float* x, int64_t x_stride,
                        int64_t rows) override;
  // A pass has ended.
  void EndPass();
  // The mean of the passes so far.
  PassWork Mean() const;

 private:
  Ops& ops_;
  bool expands_;
  PassWork sum_;
  int64_t passes_ = 0;
  std::unordered_set<const PackedMatrix*> seen_;  // in this pass
};

}  // namespace tern
