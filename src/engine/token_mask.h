// TokenMask: which tokens may come next (grammars, tool formats). The server implements it; the
// sampler asks. One per request. Thread: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace tern {

class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets bit i of bits[i / 32] for each token that is allowed next. bits: ceil(vocab / 32) words.
  virtual void Fill(std::span<uint32_t> bits) = 0;
  // The sampled token, in order.
  virtual void Accept(int32_t token) = 0;
  // The mask as it was before the first token; null where that can't be had. Needed to compute a
  // request anew and compare (--kv-integrity-action recompute).
  virtual std::shared_ptr<TokenMask> Restarted() const { return nullptr; }
};

}  // namespace tern
