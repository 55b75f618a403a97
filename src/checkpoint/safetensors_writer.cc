#include "checkpoint/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/json.h"

namespace tern {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kAlignment = 8;

std::string ShapeJson(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.dims().begin(), shape.dims().end(), ","));
}

}  // namespace

Result<uint64_t> SafetensorsEntry::bytes() const {
  const auto elements = shape.elements();
  const auto size = elements ? StorageBytes(dtype, static_cast<uint64_t>(*elements)) : std::nullopt;
  if (size) return *size;
  return InvalidArgument(fmt::format("the size of tensor '{}' overflows", name));
}

Result<SafetensorsLayout> LayOutSafetensors(std::span<const SafetensorsEntry> entries) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int64_t size_a = InfoOf(entries[a].dtype).block_bytes;
    const int64_t size_b = InfoOf(entries[b].dtype).block_bytes;
    return size_a != size_b ? size_a > size_b : entries[a].name < entries[b].name;
  });
  SafetensorsLayout layout;
  layout.offsets.resize(entries.size());
  // nlohmann's objects of tens of thousands of keys are slow, so this is built by hand.
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::vector<std::string_view> names;
  uint64_t end = 0;
  for (const size_t i : order) {
    const SafetensorsEntry& entry = entries[i];
    TERN_ASSIGN_OR_RETURN(const uint64_t bytes, entry.bytes());
    const uint64_t begin = end;
    if (__builtin_add_overflow(begin, bytes, &end)) {
      return InvalidArgument(fmt::format("the sizes up to tensor '{}' overflow", entry.name));
    }
    layout.offsets[i] = begin;
    names.push_back(entry.name);
    json += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                        JsonQuote(entry.name), InfoOf(entry.dtype).name, ShapeJson(entry.shape),
                        begin, end);
  }
  json += '}';
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    return InvalidArgument(fmt::format("tensor '{}' would be written twice", *twice));
  }
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return InvalidArgument(fmt::format("{} tensors need a header of {} bytes, the limit is {}",
                                       entries.size(), json.size(), kMaxHeaderBytes));
  }
  const uint64_t header_bytes = json.size();
  layout.header.resize(sizeof(header_bytes));
  std::memcpy(layout.header.data(), &header_bytes, sizeof(header_bytes));
  layout.header += json;
  for (uint64_t& offset : layout.offsets) offset += layout.header.size();
  layout.file_bytes = layout.header.size() + end;
  return layout;
}

std::string SafetensorsIndexJson(std::vector<std::pair<std::string, std::string>> weight_map,
                                 uint64_t total_bytes) {
  std::sort(weight_map.begin(), weight_map.end());
  std::string json =
      fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n", total_bytes);
  json += "  \"weight_map\": {";
  const char* separator = "\n";
  for (const auto& [tensor, file] : weight_map) {
    json += fmt::format("{}    {}: {}", separator, JsonQuote(tensor), JsonQuote(file));
    separator = ",\n";
  }
  json += "\n  }\n}\n";
  return json;
}

}  // namespace tern
