// ByteWriter and ByteReader: little-endian numbers in a run of bytes. Private to pd/. A reader
// never reads outside its bytes: once something is missing, ok() is false and all it gives is zero.
// Thread: values.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tern {

static_assert(std::endian::native == std::endian::little);

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>* out) : out_(out) {}

  template <typename T>
  requires std::integral<T> || std::floating_point<T>
  void Put(T value) { Bytes(std::as_bytes(std::span(&value, 1))); }
  void Bytes(std::span<const std::byte> bytes) {
    out_->insert(out_->end(), bytes.begin(), bytes.end());
  }
  // A u16 length and the bytes, at most `most` of them.
  void Text(std::string_view text, size_t most) {
    text = text.substr(0, most);
    Put(static_cast<uint16_t>(text.size()));
    Bytes(std::as_bytes(std::span(text.data(), text.size())));
  }

 private:
  std::vector<std::byte>* out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::integral<T> || std::floating_point<T> T Get() {
    T value{};
    const auto from = Bytes(sizeof(T));
    if (ok_) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> Bytes(size_t count) {
    ok_ = ok_ && count <= bytes_.size();
    if (!ok_) return {};
    const auto result = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return result;
  }
  std::string Text(size_t most) {
    const auto size = Get<uint16_t>();
    if (size > most) ok_ = false;
    const auto bytes = Bytes(size);
    return ok_ ? std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) : "";
  }
  size_t left() const { return bytes_.size(); }
  bool ok() const { return ok_; }
  // All has been read, and nothing was missing.
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace tern
