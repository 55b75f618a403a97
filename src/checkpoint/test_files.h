// Writers of small checkpoint files, for tests only: plain and independent of the readers.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tern::test {

template <typename T>
std::string Raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  return Raw<uint64_t>(header.size()) + header + data;
}

inline std::string GgufString(std::string_view text) {
  return Raw<uint64_t>(text.size()) + std::string(text);
}

// A GGUF file under construction. Types by their numbers in the format's specification.
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  // `value`: the encoded value.
  GgufWriter& Key(std::string_view key, uint32_t type, const std::string& value) {
    keys_ += GgufString(key) + Raw<uint32_t>(type) + value;
    ++key_count_;
    return *this;
  }
  GgufWriter& U32(std::string_view key, uint32_t v) { return Key(key, 4, Raw(v)); }
  GgufWriter& F32(std::string_view key, float v) { return Key(key, 6, Raw(v)); }
  GgufWriter& Bool(std::string_view key, bool v) { return Key(key, 7, Raw<uint8_t>(v)); }
  GgufWriter& String(std::string_view key, std::string_view v) {
    return Key(key, 8, GgufString(v));
  }
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& v) {
    std::string value = Raw<uint32_t>(8) + Raw<uint64_t>(v.size());
    for (const std::string& text : v) value += GgufString(text);
    return Key(key, 9, value);
  }
  GgufWriter& I32s(std::string_view key, const std::vector<int32_t>& v) {
    std::string value = Raw<uint32_t>(5) + Raw<uint64_t>(v.size());
    for (const int32_t x : v) value += Raw(x);
    return Key(key, 9, value);
  }
  // `dims` in GGUF's order: the contiguous one first. Places `data` at the next aligned offset.
  GgufWriter& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                     const std::string& data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    TensorAt(name, dims, type, data_.size());
    data_ += data;
    return *this;
  }
  // Only the table entry.
  GgufWriter& TensorAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                       uint64_t offset) {
    infos_ += GgufString(name) + Raw<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos_ += Raw(dim);
    infos_ += Raw(type) + Raw(offset);
    ++tensor_count_;
    return *this;
  }
  std::string Bytes() const {
    std::string file =
        "GGUF" + Raw(version_) + Raw(tensor_count_) + Raw(key_count_) + keys_ + infos_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  uint32_t version_;
  uint64_t tensor_count_ = 0, key_count_ = 0;
  std::string keys_, infos_, data_;
};

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace tern::test
