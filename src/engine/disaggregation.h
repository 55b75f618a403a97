// Disaggregation: an engine's role when prefill and decode are apart, and what it needs for it.
// Made by cmd, taken by Engine::Start. Thread: values, except EngineWaker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/memory_plan.h"
#include "pd/model_id.h"
#include "pd/transfer.h"

namespace tern {

class Ops;
struct EngineOptions;
struct ModelInfo;

enum class EngineRole : uint8_t {
  kUnified,  // computes prompts and answers
  kPrefill,  // computes prompts, sends their rows away
  kDecode,   // receives the rows of prompts, computes answers
};
const char* EngineRoleName(
    EngineRole role);  // "unified", "prefill", "decode": SGLang's engine_type

// How a transport, whose thread may live longer than an engine, tells it that something has come.
// Thread: any.
class EngineWaker {
 public:
  // From now on Wake calls `wake`; an empty one: nobody is there. Waits for a call that runs.
  void Set(std::function<void()> wake) TERN_EXCLUDES(mutex_);
  void Wake() TERN_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::function<void()> wake_ TERN_GUARDED_BY(mutex_);
};

struct Disaggregation {
  EngineRole role = EngineRole::kUnified;
  std::unique_ptr<PdTransport> transport;  // null for kUnified
  std::shared_ptr<EngineWaker> waker;      // which the transport calls
  uint64_t boot_nonce = 0;                 // as the transport's handshake says
  PdTimeouts timeouts;
  // kDecode: pages are kept for so many tokens of an answer from the start.
  int64_t num_reserved_decode_tokens = 512;
  // Of an engine that shares this machine with another of its process (engine/local_plan.h); none:
  // made at start, from the options.
  std::optional<MemoryPlan> plan;
  const Ops* ops = nullptr;  // converts rows; set by Engine::Start
};

// What an engine says of itself in the handshake. Errors: those of PageFormat::Make.
Result<PdHello> MakePdHello(EngineRole role, const ModelInfo& model, const EngineOptions& options,
                            const ModelId& model_id, uint64_t boot_nonce);

}  // namespace tern
