#include "base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "base/check.h"

namespace tern {
namespace {

unsigned char* Raw(std::byte* p) { return reinterpret_cast<unsigned char*>(p); }
const unsigned char* Raw(const std::byte* p) { return reinterpret_cast<const unsigned char*>(p); }

// Fetching an algorithm by name is slow: once, for the whole process.
EVP_MAC* Hmac() {
  static EVP_MAC* const kMac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  TERN_CHECK(kMac != nullptr);
  return kMac;
}

}  // namespace

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  TERN_CHECK(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  TERN_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  TERN_CHECK(EVP_DigestFinal_ex(impl_->context, Raw(digest.data()), nullptr) == 1);
  return digest;
}

Sha256Digest HmacSha256(std::span<const std::byte> key,
                        std::initializer_list<std::span<const std::byte>> pieces) {
  EVP_MAC_CTX* const context = EVP_MAC_CTX_new(Hmac());
  char name[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", name, 0),
                                   OSSL_PARAM_construct_end()};
  bool ok =
      context != nullptr && EVP_MAC_init(context, Raw(key.data()), key.size(), parameters) == 1;
  for (const auto piece : pieces) {
    ok = ok && EVP_MAC_update(context, Raw(piece.data()), piece.size()) == 1;
  }
  Sha256Digest digest;
  size_t bytes = 0;
  ok = ok && EVP_MAC_final(context, Raw(digest.data()), &bytes, digest.size()) == 1;
  EVP_MAC_CTX_free(context);
  TERN_CHECK(ok && bytes == digest.size());
  return digest;
}

bool EqualDigests(std::span<const std::byte, 32> a, std::span<const std::byte, 32> b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool EqualSecrets(std::string_view given, std::string_view secret) {
  Sha256 hash_given, hash_secret;
  hash_given.Update(given);
  hash_secret.Update(secret);
  return EqualDigests(hash_given.Finish(), hash_secret.Finish());
}

std::array<std::byte, 32> RandomBytes32() {
  std::array<std::byte, 32> bytes;
  TERN_CHECK(RAND_bytes(Raw(bytes.data()), static_cast<int>(bytes.size())) == 1);
  return bytes;
}

}  // namespace tern
