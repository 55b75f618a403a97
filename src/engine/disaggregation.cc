#include "engine/disaggregation.h"

#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "kv/page_format.h"
#include "pd/wire_rows.h"

namespace tern {
namespace {

// As many pages may be under way to a receiver at once, and as long a frame may be.
constexpr uint32_t kLandingSlots = 32;
constexpr uint32_t kMaxBodyBytes = 256u << 20;

}  // namespace

const char* EngineRoleName(EngineRole role) {
  switch (role) {
    case EngineRole::kPrefill:
      return "prefill";
    case EngineRole::kDecode:
      return "decode";
    case EngineRole::kUnified:
      break;
  }
  return "unified";
}

void EngineWaker::Set(std::function<void()> wake) {
  MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

void EngineWaker::Wake() {
  MutexLock lock(mutex_);
  if (wake_) wake_();
}

Result<PdHello> MakePdHello(EngineRole role, const ModelInfo& model, const EngineOptions& options,
                            const ModelId& model_id, uint64_t boot_nonce) {
  TERN_CHECK(role != EngineRole::kUnified);
  TERN_ASSIGN_OR_RETURN(const PageFormat format,
                        PageFormat::Make(model.kv_layers, options.kv_format, options.page_tokens,
                                         options.kv_bf16_layers));
  PdHello hello;
  hello.model_id = model_id;
  hello.boot_nonce = boot_nonce;
  hello.landing_slots = role == EngineRole::kDecode ? kLandingSlots : 0;
  hello.max_body_bytes = kMaxBodyBytes;
  hello.role = role == EngineRole::kDecode ? PdHello::Role::kReceiver : PdHello::Role::kSender;
  DescribeRows({model.kv_layers, format}, &hello);
  return hello;
}

}  // namespace tern
