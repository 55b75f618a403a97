// The part of EngineCore that works with another engine: see engine/handoff.h.
#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/actions/pd_receive.h"
#include "engine/actions/pd_send.h"
#include "engine/engine_core.h"

namespace tern {
namespace {

// Of prompts that another engine asks for: what it wants is the rows.
class NobodysSink final : public TokenSink {
 public:
  void OnToken(TokenEvent) override {}
  void OnFinish(FinishEvent) override {}
};

}  // namespace

void EngineCore::SetDisaggregation(Disaggregation disaggregation,
                                   std::function<RequestId()> new_id) {
  new_id_ = std::move(new_id);
  if (disaggregation.role == EngineRole::kUnified) return;
  const Ops& ops = *disaggregation.ops;
  const std::vector<KvLayerSpec>& layers = model_.info().kv_layers;
  if (disaggregation.role == EngineRole::kPrefill) {
    handoff_ = std::make_unique<PdSend>(std::move(disaggregation), layers, ops, clock_,
                                        scheduler_.queues(), *kv_);
  } else if (disaggregation.role == EngineRole::kDecode) {
    const PdReceive::Limits limits = {.max_running_requests = max_running_requests_,
                                      .max_sequence_tokens = max_sequence_tokens_};
    handoff_ = std::make_unique<PdReceive>(std::move(disaggregation), layers, limits, ops, clock_,
                                           scheduler_.queues(), *kv_);
  }
}

int64_t EngineCore::NextDeadlineUs() const {
  return handoff_ == nullptr ? INT64_MAX : handoff_->NextDeadlineUs();
}

bool EngineCore::StepHandoff() {
  if (handoff_ == nullptr) return false;
  handoff_events_.clear();
  bool moved = handoff_->Step(&handoff_events_);
  for (HandoffEvent& event : handoff_events_) TakeHandoffEvent(std::move(event));
  SubmitRecomputes();
  for (const HandoffTimes& times : handoff_->TakeTimes()) {
    if (metrics_ != nullptr) metrics_->ObserveTransfer(times);
  }
  return moved;
}

void EngineCore::TakeHandoffEvent(HandoffEvent event) {
  Sequence* const sequence = scheduler_.Find(event.id);
  TERN_CHECK(sequence != nullptr);
  switch (event.kind) {
    case HandoffEvent::Kind::kFailed:
      return EndWithError(event.id, event.status);
    case HandoffEvent::Kind::kSent:
      handoff_->Forget(*sequence, OkStatus());
      sequence->mask = nullptr;  // decode's half may use it already
      return DeliverToken(*sequence, std::move(event.first));
    case HandoffEvent::Kind::kReceived:
      if (event.again) return;  // its tokens are known
      sequence->seed = event.seed;
      sequence->cached_tokens = event.cached_tokens;
      totals_.prompt_tokens += sequence->prompt_tokens;
      totals_.cached_prompt_tokens += event.cached_tokens;
      return DeliverToken(*sequence, std::move(event.first));
  }
}

void EngineCore::SubmitRecomputes() {
  for (PdRecompute& wanted : handoff_->TakeRecomputes()) {
    GenerateRequest request;
    request.rid = fmt::format("recompute_{:016x}", wanted.room);
    request.tokens = std::move(wanted.tokens);
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = 1;
    request.extra_key = std::move(wanted.extra_key);
    request.cache_salt = std::move(wanted.cache_salt);
    request.rendezvous = Rendezvous{.room = wanted.room};
    if (const Status status = Validate(request); !status.ok()) {
      handoff_->Refuse(*request.rendezvous, status);
      continue;
    }
    Submit(new_id_(), std::move(request), std::make_shared<NobodysSink>(), clock_.NowUs());
  }
}

}  // namespace tern
