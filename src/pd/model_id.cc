#include "pd/model_id.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/number.h"

namespace tern {

void ModelIdBuilder::Piece(std::span<const std::byte> bytes, Sha256* hash) {
  const uint64_t size = bytes.size();
  hash->Update(std::as_bytes(std::span(&size, 1)));
  hash->Update(bytes);
}

void ModelIdBuilder::Piece(std::string_view bytes, Sha256* hash) {
  Piece(std::as_bytes(std::span(bytes.data(), bytes.size())), hash);
}

void ModelIdBuilder::Field(std::string_view name, int64_t value) {
  Piece(name, &fields_);
  Piece(std::as_bytes(std::span(&value, 1)), &fields_);
}

void ModelIdBuilder::Field(std::string_view name, double value) {
  Piece(name, &fields_);
  Piece(std::as_bytes(std::span(&value, 1)), &fields_);
}

void ModelIdBuilder::Field(std::string_view name, bool value) {
  Piece(name, &fields_);
  const auto flag = static_cast<uint8_t>(value ? 1 : 0);
  Piece(std::as_bytes(std::span(&flag, 1)), &fields_);
}

void ModelIdBuilder::Field(std::string_view name, std::string_view value) {
  Piece(name, &fields_);
  Piece(value, &fields_);
}

void ModelIdBuilder::Field(std::string_view name, const std::vector<bool>& values) {
  Piece(name, &fields_);
  std::string flags;
  for (const bool value : values) flags += value ? '\1' : '\0';
  Piece(flags, &fields_);
}

void ModelIdBuilder::Merge(std::string_view left, std::string_view right) {
  Piece(left, &merges_);
  Piece(right, &merges_);
}

void ModelIdBuilder::AddedToken(std::string_view bytes, int64_t id) {
  Piece(bytes, &added_);
  Piece(std::as_bytes(std::span(&id, 1)), &added_);
}

void ModelIdBuilder::NormWeight(std::string_view name, std::span<const float> values) {
  Tensor tensor{.name = std::string(name)};
  for (const float value : values) {
    const uint16_t bits = Bf16FromFloat(value);
    const auto bytes = std::as_bytes(std::span(&bits, 1));
    tensor.bytes.insert(tensor.bytes.end(), bytes.begin(), bytes.end());
  }
  tensors_.push_back(std::move(tensor));
}

void ModelIdBuilder::ScoreBias(std::string_view name, std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  tensors_.push_back({std::string(name), {bytes.begin(), bytes.end()}});
}

ModelId ModelIdBuilder::Finish() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  Sha256 tensors, all;
  for (const Tensor& tensor : tensors_) {
    Piece(tensor.name, &tensors);
    Piece(tensor.bytes, &tensors);
  }
  all.Update("tern model 1");
  for (Sha256* part : {&fields_, &vocabulary_, &merges_, &added_, &tensors}) {
    all.Update(part->Finish());
  }
  return all.Finish();
}

}  // namespace tern
