// OperationProfile: the time that passes spend in each kind of operation, and the work of those
// that bring bytes from memory or multiply: matrix products, by weight format and number of rows M,
// and attention. Reading the clock costs time, so passes that are profiled are timed for nothing
// else. Owner: a benchmark. Thread: the one that calls the model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bench/machine_limits.h"
#include "kernels/matmul_observer.h"
#include "kernels/ops.h"

namespace tern {

// One kind of operation in a mean pass.
struct OperationTime {
  std::string name;  // "INT4 g32 product, M 512", "attention"
  double calls = 0, seconds = 0;
  Work work;                              // none: nothing is counted
  double memory_s = 0, arithmetic_s = 0;  // the least that limits allow

  bool counted() const { return work.bytes > 0 || work.operations() > 0; }
  bool timed() const { return seconds > 0; }  // else it was shorter than the clock can tell
  double share() const;                       // of the nearer limit. REQUIRES: timed
  const char* bound() const;
};

// What all of them take together.
double PassSeconds(const std::vector<OperationTime>& operations);

class OperationProfile final : public MatMulObserver {
 public:
  // Nanoseconds since an arbitrary start; never goes back. Operations are short: not base/clock.h.
  using NowNs = std::function<int64_t()>;
  static int64_t SteadyNs();

  // Watches from now on; `ops` outlive this. `expands`: as WorkCounter's. An operation lasts until
  // the next begins. Products with none between them share their time by what `limits` allow each:
  // those of one parallel region can't be told apart.
  OperationProfile(Ops& ops, const MachineLimits& limits, bool expands, NowNs now_ns = SteadyNs);
  ~OperationProfile() override;
  OperationProfile(const OperationProfile&) = delete;
  OperationProfile& operator=(const OperationProfile&) = delete;

  void OnInput(const PackedMatrix& weight, const float* x, int64_t x_stride, int64_t rows) override;
  void OnAttentionInput(const PackedMatrix& weight, const float* x, int64_t x_stride,
                        int64_t rows) override;
  void OnOperation(Operation operation) override;
  // A pass begins: "embedding", until the first operation. Then it has ended.
  void BeginPass();
  void EndPass();
  // Work of attention in all passes, indexers included, which only the model knows.
  void AddAttention(const Work& work);

  // A mean pass; most time first. Least times are for ApplyLimits to set.
  std::vector<OperationTime> Operations() const;

 private:
  struct Entry {
    int64_t calls = 0, least_rows = 0, most_rows = 0;
    double seconds = 0;
    Work work;
  };
  // A name, and of products the power of two that M does not exceed.
  using Key = std::pair<std::string, int>;
  struct Product {
    Entry* entry;
    double least_s;
  };

  struct Known {
    int power = -1;
    Entry* entry = nullptr;
  };

  // Looked up before, unless M has changed: products of single rows are short.
  Entry& EntryOf(const PackedMatrix& weight, int64_t rows);
  // Bytes count once in a pass.
  Work NewWork(const PackedMatrix& weight, int64_t rows);
  // What has been going on ends now.
  void End();
  void Start(Entry& entry);

  Ops& ops_;
  const MachineLimits limits_;
  const bool expands_;
  const NowNs now_ns_;
  std::map<Key, Entry> entries_;
  std::unordered_map<const PackedMatrix*, Known> known_;
  std::vector<Product> running_;  // one operation, or products
  bool products_ = false;
  int64_t start_ns_ = 0, passes_ = 0;
  std::unordered_set<const PackedMatrix*> seen_;  // in this pass
};

void ApplyLimits(const MachineLimits& limits, std::vector<OperationTime>& operations);

}  // namespace tern
