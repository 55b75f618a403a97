// ModelId: SHA-256 of what makes two checkpoints one model whatever formats they are stored in
// (docs/formats/pd_wire.md, model_id). cmd gathers the parts; this is where their order and framing
// are fixed. Equal for FP8 and INT4 versions of one model. Thread: one builder, one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace tern {

using ModelId = Sha256Digest;

class ModelIdBuilder {
 public:
  // The architecture's fields, in the order of their declaration in checkpoint/model_config.h. No
  // format, dtype, version, path or token-id keys.
  void Field(std::string_view name, int64_t value);
  void Field(std::string_view name, double value);
  void Field(std::string_view name, bool value);
  void Field(std::string_view name, std::string_view value);
  void Field(std::string_view name, const std::vector<bool>& values);
  // A literal would otherwise be taken for a flag.
  void Field(std::string_view name, const char* value) { Field(name, std::string_view(value)); }
  void Field(std::string_view name, int value) { Field(name, int64_t{value}); }

  // Bytes of the vocabulary's entry of each id, in order; merges in order; added tokens with ids.
  void Token(std::string_view bytes) { Piece(bytes, &vocabulary_); }
  void Merge(std::string_view left, std::string_view right);
  void AddedToken(std::string_view bytes, int64_t id);

  // `*norm.weight` tensors, rounded to BF16; `e_score_correction_bias`, as float32. In any order.
  void NormWeight(std::string_view name, std::span<const float> values);
  void ScoreBias(std::string_view name, std::span<const float> values);

  // Once.
  ModelId Finish();

 private:
  struct Tensor {
    std::string name;
    std::vector<std::byte> bytes;
  };
  static void Piece(std::string_view bytes, Sha256* hash);
  static void Piece(std::span<const std::byte> bytes, Sha256* hash);

  Sha256 fields_, vocabulary_, merges_, added_;
  std::vector<Tensor> tensors_;
};

}  // namespace tern
