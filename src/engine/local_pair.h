// LocalPair: a prefill and a decode engine in one process, behind one Engine (`serve
// --disaggregation-mode local`). Rows pass in memory. Owner: cmd. Thread: as Engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace tern {

class LocalPair final : public Engine {
 public:
  // `meeting`: where decode's transport finds prefill's; over memory it means nothing.
  // REQUIRES: the engines' transports are the two ends of one, and their roles are as named.
  LocalPair(std::unique_ptr<Engine> prefill, std::unique_ptr<Engine> decode,
            Rendezvous meeting = {.host = "local"});
  ~LocalPair() override;

  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) override;
  void Cancel(RequestId id, int64_t keep_tokens) override;
  void AbortRid(const std::string& rid, bool all) override;
  void FlushCache(std::function<void(bool)> done) override;
  void Drain(int64_t timeout_us) override;
  // Decode's, with prefill's queue and cached tokens, and the weights and pages of both.
  EngineStats Stats() const override;

 private:
  class PrefillSink;

  const Rendezvous meeting_;
  std::atomic<uint64_t> next_room_;
  const std::unique_ptr<Engine> prefill_;  // outlives decode_, whose sinks call it
  const std::unique_ptr<Engine> decode_;
};

}  // namespace tern
