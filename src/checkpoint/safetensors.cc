#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <unordered_set>

#include "checkpoint/field_reader.h"

namespace tern {
namespace {

using simdjson::dom::element;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxJsonLevels = 64;
constexpr size_t kMaxNameBytes = 1024;

Status Bad(const std::string& path, const std::string& what) {
  return InvalidArgument(fmt::format("{}: {}", path, what));
}

Status BadTensor(const std::string& path, std::string_view tensor, const std::string& what) {
  return InvalidArgument(fmt::format("{}: tensor '{}': {}", path, tensor, what));
}

std::optional<DType> DTypeFromName(std::string_view name) {
  constexpr std::array kPlain = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                                 DType::kI64, DType::kI32, DType::kI16,  DType::kI8,
                                 DType::kU8,  DType::kBool};
  for (const DType dtype : kPlain) {
    if (InfoOf(dtype).name == name) return dtype;
  }
  return std::nullopt;
}

// Parses `text` as an object, which points into `parser`.
Status ParseObject(std::string_view text, const std::string& path, const char* what,
                   simdjson::dom::parser* parser, simdjson::dom::object* object) {
  element root;
  simdjson::error_code error = parser->allocate(text.size(), kMaxJsonLevels);
  if (error == simdjson::SUCCESS) {
    error = parser->parse(simdjson::padded_string(text)).get(root);
  }
  if (error == simdjson::DEPTH_ERROR) {
    return Bad(path, fmt::format("the {} is nested deeper than {} levels", what, kMaxJsonLevels));
  }
  if (error != simdjson::SUCCESS) {
    return Bad(path, fmt::format("the {} is not valid JSON: {}", what, error_message(error)));
  }
  if (root.get(*object) != simdjson::SUCCESS) {
    return Bad(path, fmt::format("the {} is not a JSON object", what));
  }
  return OkStatus();
}

Result<Shape> ParseShape(const element& json, const std::string& path, std::string_view tensor) {
  simdjson::dom::array dims;
  if (json.get(dims) != simdjson::SUCCESS) return BadTensor(path, tensor, "shape is no list");
  if (dims.size() > kMaxRank) {
    return BadTensor(
        path, tensor,
        fmt::format("has {} dimensions, at most {} are supported", dims.size(), kMaxRank));
  }
  std::array<int64_t, kMaxRank> values{};
  size_t rank = 0;
  for (const element dim : dims) {
    int64_t value = 0;
    if (dim.get(value) != simdjson::SUCCESS || value < 0) {
      return BadTensor(path, tensor, "shape holds something that is no dimension");
    }
    values[rank++] = value;
  }
  return Shape(std::span<const int64_t>(values.data(), rank));
}

// One entry of the header: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}.
Result<SafetensorsTensor> ParseEntry(std::string_view name, const element& json,
                                     std::span<const std::byte> data, const std::string& path) {
  simdjson::dom::object entry;
  if (json.get(entry) != simdjson::SUCCESS) return BadTensor(path, name, "entry is no object");

  std::string_view dtype_name;
  if (entry["dtype"].get(dtype_name) != simdjson::SUCCESS) {
    return BadTensor(path, name, "dtype is missing or no string");
  }
  const std::optional<DType> dtype = DTypeFromName(dtype_name);
  if (!dtype && !config::IsPlainText(dtype_name)) {
    return BadTensor(path, name, "its dtype is no plain text");
  }
  if (!dtype) return BadTensor(path, name, fmt::format("unsupported dtype '{}'", dtype_name));

  element shape_json;
  if (entry["shape"].get(shape_json) != simdjson::SUCCESS) {
    return BadTensor(path, name, "shape is missing");
  }
  TERN_ASSIGN_OR_RETURN(const Shape shape, ParseShape(shape_json, path, name));

  simdjson::dom::array offsets;
  uint64_t begin = 0, end = 0;
  if (entry["data_offsets"].get(offsets) != simdjson::SUCCESS || offsets.size() != 2 ||
      offsets.at(0).get(begin) != simdjson::SUCCESS ||
      offsets.at(1).get(end) != simdjson::SUCCESS) {
    return BadTensor(path, name, "data_offsets is not a pair of offsets");
  }
  if (begin > end || end > data.size()) {
    return BadTensor(path, name,
                     fmt::format("data_offsets [{}, {}] lie outside the file's {} data bytes",
                                 begin, end, data.size()));
  }
  const std::optional<int64_t> elements = shape.elements();
  const std::optional<uint64_t> bytes =
      elements ? StorageBytes(*dtype, static_cast<uint64_t>(*elements)) : std::nullopt;
  if (!bytes || *bytes != end - begin) {
    return BadTensor(path, name,
                     fmt::format("shape {} of {} does not fit its {} bytes", shape.ToString(),
                                 dtype_name, end - begin));
  }
  return SafetensorsTensor{std::string(name),
                           TensorView{*dtype, shape, data.subspan(begin, end - begin)}};
}

}  // namespace

Result<std::vector<SafetensorsTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                        const std::string& path) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return Bad(path, fmt::format("{} bytes are too few for a safetensors file", file.size()));
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    return Bad(path, fmt::format("header length {} exceeds the limit of {}: not a safetensors file",
                                 header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > file.size() - sizeof(header_bytes)) {
    return Bad(path, fmt::format("header length {} runs past the end of the file's {} bytes",
                                 header_bytes, file.size()));
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes),
                                header_bytes);
  const std::span<const std::byte> data = file.subspan(sizeof(header_bytes) + header_bytes);

  simdjson::dom::parser parser;
  simdjson::dom::object entries;
  TERN_RETURN_IF_ERROR(ParseObject(header, path, "safetensors header", &parser, &entries));
  std::vector<SafetensorsTensor> tensors;
  std::unordered_set<std::string_view> names;
  for (const auto [name, json] : entries) {
    if (!config::IsPlainText(name, kMaxNameBytes)) {
      return Bad(
          path, fmt::format("a tensor's name is no plain text of at most {} bytes", kMaxNameBytes));
    }
    if (!names.insert(name).second) return BadTensor(path, name, "occurs twice in the header");
    if (name == "__metadata__") continue;
    TERN_ASSIGN_OR_RETURN(SafetensorsTensor tensor, ParseEntry(name, json, data, path));
    tensors.push_back(std::move(tensor));
  }

  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.view.bytes.data() != b.view.bytes.data() ? a.view.bytes.data() < b.view.bytes.data()
                                                      : a.view.bytes.size() < b.view.bytes.size();
  });
  const std::byte* expected = data.data();
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.view.bytes.data() < expected) {
      return BadTensor(path, tensor.name, "overlaps the tensor before it");
    }
    if (tensor.view.bytes.data() > expected) {
      return BadTensor(path, tensor.name, "leaves a hole after the tensor before it");
    }
    expected += tensor.view.bytes.size();
  }
  if (expected != data.data() + data.size()) {
    return Bad(path, fmt::format("{} bytes after the last tensor belong to none",
                                 data.data() + data.size() - expected));
  }
  return tensors;
}

Result<std::vector<std::pair<std::string, std::string>>> ParseSafetensorsIndex(
    std::string_view json, const std::string& path) {
  simdjson::dom::parser parser;
  simdjson::dom::object root, map;
  TERN_RETURN_IF_ERROR(ParseObject(json, path, "index", &parser, &root));
  if (root["weight_map"].get(map) != simdjson::SUCCESS) {
    return Bad(path, "weight_map is missing or no object");
  }
  std::vector<std::pair<std::string, std::string>> entries;
  std::unordered_set<std::string_view> names;
  for (const auto [name, value] : map) {
    if (!config::IsPlainText(name, kMaxNameBytes)) {
      return Bad(
          path, fmt::format("a tensor's name is no plain text of at most {} bytes", kMaxNameBytes));
    }
    std::string_view shard;
    if (value.get(shard) != simdjson::SUCCESS) {
      return BadTensor(path, name, "its shard is no string");
    }
    if (shard.empty() || shard.find('/') != std::string_view::npos || shard[0] == '.' ||
        !config::IsPlainText(shard)) {
      return BadTensor(path, name, "its shard is no plain file name");
    }
    if (!names.insert(name).second) return BadTensor(path, name, "occurs twice in weight_map");
    entries.emplace_back(name, shard);
  }
  if (entries.empty()) return Bad(path, "weight_map is empty");
  return entries;
}

}  // namespace tern
