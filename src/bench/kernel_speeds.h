// MeasuredKernels: how fast this machine's kernels are on operands that no cache holds: what
// `tern plan` needs to know besides memory's speed, which few kernels reach. Each figure is
// measured when it is first asked for, on made-up operands of the model's shapes; the model is not
// run. It keeps weights of each format and size that was asked for, at least kColdBytes of each.
// Owner: the command. Thread: the caller's, and the pool's of `ops`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/speed_plan.h"
#include "kernels/ops.h"

namespace tern {

// What the measurements need to know of a model's layers.
struct PlannedLayer {
  bool latent = false;
  GqaShape gqa;  // not latent
  MlaShape mla;  // latent
  KvFormat format = KvFormat::kBf16;
  int64_t hidden = 0;
  int64_t q_latent = 0;      // MLA with one: its norm
  int64_t intermediate = 0;  // activations of a row, of all its experts together
};

class MeasuredKernels final : public KernelSpeeds {
 public:
  // `ops` outlives it.
  MeasuredKernels(Ops& ops, const PlannedLayer& layer);

  double MatMul(const WeightGroup& weights, double rows) override;
  double Attention(int64_t batch, int64_t positions) override;
  double RestOfLayer(int64_t rows) override;
  double RegionSeconds() override;

 private:
  // Of one call, the median of many.
  double Seconds(const std::function<void()>& call) const;

  Ops& ops_;
  const PlannedLayer layer_;
  double region_s_ = 0;
  std::map<int64_t, double> rest_of_;  // by rows
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, double>
      products_;  // format, n, k, rows
  // What `products_` multiplies, format, n, k; null: there are no such.
  std::map<std::tuple<std::string, int64_t, int64_t>,
           std::shared_ptr<const std::vector<PackedMatrix>>>
      weights_;
  std::map<std::pair<int64_t, int64_t>, double> attention_of_;  // batch, positions
};

}  // namespace tern
