#include "bench/operation_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "bench/work_counter.h"
#include "kernels/weight_info.h"

namespace tern {
namespace {

const char* NameOf(Operation operation) {
  switch (operation) {
    case Operation::kNorm:
      return "norm";
    case Operation::kRope:
      return "rope";
    case Operation::kActivation:
      return "activation";
    case Operation::kAdd:
      return "residual";
    case Operation::kKvWrite:
      return "KV write";
    case Operation::kAttention:
    case Operation::kIndexer:  // whose work is counted with attention's
      return "attention";
    case Operation::kRouting:
      return "expert routing";
    case Operation::kCopy:
      return "copy";
  }
  return "";
}

}  // namespace

double OperationTime::share() const { return std::max(memory_s, arithmetic_s) / seconds; }
const char* OperationTime::bound() const {
  return memory_s >= arithmetic_s ? "memory" : "arithmetic";
}

double PassSeconds(const std::vector<OperationTime>& operations) {
  double seconds = 0;
  for (const OperationTime& operation : operations) seconds += operation.seconds;
  return seconds;
}

int64_t OperationProfile::SteadyNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

OperationProfile::OperationProfile(Ops& ops, const MachineLimits& limits, bool expands,
                                   NowNs now_ns)
    : ops_(ops), limits_(limits), expands_(expands), now_ns_(std::move(now_ns)) {
  ops_.SetObserver(this);
}
OperationProfile::~OperationProfile() { ops_.SetObserver(nullptr); }

OperationProfile::Entry& OperationProfile::EntryOf(const PackedMatrix& weight, int64_t rows) {
  const auto power = static_cast<int>(std::bit_width(static_cast<uint64_t>(rows - 1)));
  Known& known = known_[&weight];
  if (known.power != power) known = {power, &entries_[{FormatNameOf(weight), power}]};
  return *known.entry;
}

Work OperationProfile::NewWork(const PackedMatrix& weight, int64_t rows) {
  Work work = ProductWork(ops_, weight, rows);
  if (!seen_.insert(&weight).second) work.bytes = 0;
  return work;
}

void OperationProfile::OnInput(const PackedMatrix& weight, const float* /*x*/, int64_t /*x_stride*/,
                               int64_t rows) {
  if (!products_) {
    End();
    products_ = true;
  }
  Entry& entry = EntryOf(weight, rows);
  entry.least_rows = entry.calls == 0 ? rows : std::min(entry.least_rows, rows);
  entry.most_rows = std::max(entry.most_rows, rows);
  const Work work = NewWork(weight, rows);
  entry.work += work;
  running_.push_back(
      {&entry, std::max(limits_.MemorySeconds(work), limits_.ArithmeticSeconds(work))});
  ++entry.calls;
}

void OperationProfile::OnAttentionInput(const PackedMatrix& weight, const float* /*x*/,
                                        int64_t /*x_stride*/, int64_t rows) {
  if (expands_) AddAttention(NewWork(weight, rows));
}

void OperationProfile::OnOperation(Operation operation) {
  Start(entries_[{NameOf(operation), -1}]);
}

void OperationProfile::BeginPass() {
  start_ns_ = now_ns_();
  Start(entries_[{"embedding", -1}]);
}

void OperationProfile::EndPass() {
  End();
  ++passes_;
  seen_.clear();
}

void OperationProfile::AddAttention(const Work& work) {
  entries_[{NameOf(Operation::kAttention), -1}].work += work;
}

void OperationProfile::Start(Entry& entry) {
  End();
  running_.push_back({&entry, 0});
  ++entry.calls;
}

void OperationProfile::End() {
  const int64_t now_ns = now_ns_();
  const double seconds = static_cast<double>(now_ns - start_ns_) * 1e-9;
  double least_s = 0;
  for (const Product& product : running_) least_s += product.least_s;
  for (const Product& product : running_) {
    product.entry->seconds += least_s > 0 ? seconds * product.least_s / least_s
                                          : seconds / static_cast<double>(running_.size());
  }
  running_.clear();
  products_ = false;
  start_ns_ = now_ns;
}

std::vector<OperationTime> OperationProfile::Operations() const {
  std::vector<OperationTime> operations;
  const double passes = static_cast<double>(std::max<int64_t>(passes_, 1));
  for (const auto& [key, entry] : entries_) {
    OperationTime operation{.name = key.first,
                            .calls = static_cast<double>(entry.calls) / passes,
                            .seconds = entry.seconds / passes,
                            .work = entry.work};
    operation.work *= 1 / passes;
    if (key.second >= 0) {
      operation.name += fmt::format(" product, M {}", entry.least_rows);
      if (entry.most_rows > entry.least_rows) operation.name += fmt::format("-{}", entry.most_rows);
    }
    operations.push_back(std::move(operation));
  }
  std::stable_sort(operations.begin(), operations.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return operations;
}

void ApplyLimits(const MachineLimits& limits, std::vector<OperationTime>& operations) {
  for (OperationTime& operation : operations) {
    operation.memory_s = limits.MemorySeconds(operation.work);
    operation.arithmetic_s = limits.ArithmeticSeconds(operation.work);
  }
}

}  // namespace tern
