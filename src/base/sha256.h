// SHA-256, HMAC-SHA256 and random bytes, behind one wrapper (OpenSSL). Thread: pure functions; a
// Sha256 belongs to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

namespace tern {

using Sha256Digest = std::array<std::byte, 32>;

// A hash of pieces, one after the other.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text.data(), text.size()))); }
  // The digest of all pieces. Once.
  Sha256Digest Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// HMAC (RFC 2104) of the pieces joined.
Sha256Digest HmacSha256(std::span<const std::byte> key,
                        std::initializer_list<std::span<const std::byte>> pieces);
// Takes as long whatever the digests hold.
bool EqualDigests(std::span<const std::byte, 32> a, std::span<const std::byte, 32> b);
// Takes time by the texts' sizes alone, whatever they hold.
bool EqualSecrets(std::string_view given, std::string_view secret);

// Bytes that nobody can guess, from the operating system.
std::array<std::byte, 32> RandomBytes32();

}  // namespace tern
