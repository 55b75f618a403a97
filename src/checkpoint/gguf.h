// GGUF: the metadata and tensor table of a llama.cpp model file, versions 2 and 3, little-endian.
// Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
// Thread: immutable after parsing; everything points into the caller's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace tern {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// A checked but undecoded array: `payload` holds `count` elements as stored.
struct GgufArray {
  GgufType element = GgufType::kU8;
  uint64_t count = 0;
  std::span<const std::byte> payload;
};

// One metadata value. Integers of every width are held as int64 (uint64 above its range: uint64).
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  std::string name;
  TensorView view;  // shape row-major: GGUF's dimensions reversed
};

class Gguf {
 public:
  // `file` is the whole file and must outlive the result; `path` names it in errors.
  // Errors: kInvalidArgument or kUnimplemented (version, big-endian, tensor type, split files), one
  // sentence naming the file and the key or tensor.
  static Result<Gguf> Parse(std::span<const std::byte> file, const std::string& path);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }

  // Typed reads of metadata. nullopt when the key is absent; kInvalidArgument "<file>: <key> must
  // be <type>" when its value has another type.
  Result<std::optional<int64_t>> Int(std::string_view key) const;
  Result<std::optional<double>> Float(std::string_view key) const;  // integers count as numbers
  Result<std::optional<bool>> Bool(std::string_view key) const;
  Result<std::optional<std::string_view>> String(std::string_view key) const;
  Result<std::optional<std::vector<std::string_view>>> Strings(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> Ints(std::string_view key) const;

 private:
  friend class GgufParser;
  const GgufValue* Find(std::string_view key) const;
  Status WrongType(std::string_view key, const char* type) const;

  std::string path_;
  uint32_t version_ = 0;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace tern
