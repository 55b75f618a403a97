#include "models/shared_weights.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace tern {
namespace {

bool SameLayout(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.bytes.size() == b.bytes.size();
}

// `a` was packed before: its pages are needed for the comparison alone.
bool SameTensor(const CheckpointTensor* a, const CheckpointTensor* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr || !SameLayout(a->view, b->view)) return false;
  const std::span<const std::byte> x = a->view.bytes, y = b->view.bytes;
  if (x.data() == y.data()) return true;
  const bool same = std::memcmp(x.data(), y.data(), x.size()) == 0;
  Checkpoint::Release(*a);
  return same;
}

// The config decides on blocks and groups, so equal bytes are not enough.
bool SameWeight(const StoredWeight& a, const StoredWeight& b) {
  const WeightView &x = a.view, &y = b.view;
  if (x.scheme != y.scheme || x.rows != y.rows || x.columns != y.columns) return false;
  if (x.scheme == WeightView::Scheme::kFp8Block &&
      (x.block_rows != y.block_rows || x.block_columns != y.block_columns)) {
    return false;
  }
  if (x.scheme == WeightView::Scheme::kInt4Group && x.group != y.group) return false;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (!SameTensor(a.tensors[i], b.tensors[i])) return false;
  }
  return true;
}

StoredWeight VectorOf(const CheckpointTensor& tensor) {
  return {.tensors = {&tensor, nullptr, nullptr}};
}

}  // namespace

std::shared_ptr<const Checkpoint> SharedWeights::FindCheckpoint(const std::string& key) const {
  const auto found = checkpoints_.find(key);
  return found == checkpoints_.end() ? nullptr : found->second;
}

void SharedWeights::AddCheckpoint(const std::string& key,
                                  std::shared_ptr<const Checkpoint> checkpoint) {
  checkpoints_.emplace(key, std::move(checkpoint));
}

bool SharedWeights::MayBeShared(const Checkpoint& checkpoint,
                                const CheckpointTensor& tensor) const {
  return std::any_of(checkpoints_.begin(), checkpoints_.end(), [&](const auto& entry) {
    const CheckpointTensor* const other =
        entry.second.get() == &checkpoint ? nullptr : entry.second->Find(tensor.name);
    return other != nullptr && SameLayout(other->view, tensor.view);
  });
}

uint64_t SharedWeights::OwnBytes(const Checkpoint& checkpoint) const {
  uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (!MayBeShared(checkpoint, tensor)) bytes += tensor.view.bytes.size();
  }
  return bytes;
}

const SharedWeights::Weight* SharedWeights::Find(const std::string& as,
                                                 const StoredWeight& stored) const {
  const auto found = stored_.find(as);
  if (found == stored_.end()) return nullptr;
  for (const Weight& weight : found->second) {
    if (SameWeight(weight.stored, stored)) return &weight;
  }
  return nullptr;
}

PackedMatrix SharedWeights::FindMatrix(const std::string& as, const StoredWeight& stored) const {
  const Weight* const weight = Find(as, stored);
  return weight == nullptr ? PackedMatrix() : weight->matrix.Share();
}

void SharedWeights::AddMatrix(const std::string& as, const StoredWeight& stored,
                              const PackedMatrix& matrix) {
  stored_[as].push_back({.stored = stored, .matrix = matrix.Share(), .vector = {}});
}

WeightVector SharedWeights::FindVector(const std::string& as,
                                       const CheckpointTensor& stored) const {
  const Weight* const weight = Find(as, VectorOf(stored));
  return weight == nullptr ? WeightVector() : weight->vector;
}

void SharedWeights::AddVector(const std::string& as, const CheckpointTensor& stored,
                              WeightVector vector) {
  stored_[as].push_back({.stored = VectorOf(stored), .matrix = {}, .vector = std::move(vector)});
}

LookupTable SharedWeights::OneTable(const CheckpointTensor& table,
                                    const std::shared_ptr<const Checkpoint>& files) {
  std::vector<Table>& tables = tables_[table.name];
  for (const Table& first : tables) {
    if (!SameTensor(first.tensor, &table)) continue;
    Checkpoint::Release(table);
    return {first.tensor->view, first.files};
  }
  tables.push_back({&table, files});
  return {table.view, files};
}

bool SharedWeights::OneOfComputed(const std::string& as, PackedMatrix* matrix) {
  auto& matrices = computed_[as];
  for (const PackedMatrix& first : matrices) {
    if (!first.SameAs(*matrix)) continue;
    *matrix = first.Share();
    return true;
  }
  matrices.push_back(matrix->Share());
  return false;
}

}  // namespace tern
