#include "engine/actions/pd_send.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/trace.h"

namespace tern {
namespace {

// How long a room that ended before it was asked for can still tell why.
constexpr int64_t kRememberUs = 60'000'000;
constexpr size_t kMaxRemembered = 4096;

}  // namespace

// The pages of a prompt, while they are sent.
class PdSend::Source final : public SequenceHandoff, public PdSource {
 public:
  Source(KvCache& kv, const KvLease& lease) : kv_(kv), lease_(lease) {}

  Result<std::span<std::byte* const>> Read(int64_t first, int64_t tokens) override {
    TERN_TRACE("engine.pd_page");
    const int64_t page_tokens = kv_.format().page_tokens();
    const auto pages = kv_.View(lease_).pages;
    for (int64_t page = first / page_tokens; page * page_tokens < first + tokens; ++page) {
      const auto index = static_cast<size_t>(page);
      if (index >= pages.size()) return DataLoss("a KV page of the prompt is gone");
      const PageRef expected = lease_.expected()[index];
      if (!kv_.pool().Matches(expected) || pages[index] != kv_.pool().base(expected.id)) {
        return DataLoss(
            fmt::format("KV page {} failed its tag check", static_cast<uint32_t>(expected.id)));
      }
    }
    return pages;
  }
  // Only decode rows retract others, and a prefill engine's requests end before they have any. If
  // it happens all the same, a page that has not been sent ends the room (Read).
  void OnRetracted() override { asked = false; }

  bool asked = false;  // the decode worker has asked; the scheduler has the sequence
  bool sent_all = false;
  SampledToken first;

 private:
  KvCache& kv_;
  const KvLease& lease_;
};

PdSend::PdSend(Disaggregation d, std::span<const KvLayerSpec> specs, const Ops& ops,
               const Clock& clock, Queues& queues, KvCache& kv)
    : transport_(std::move(d.transport)),
      queues_(queues),
      kv_(kv),
      clock_(clock),
      sender_({.rows = {{specs.begin(), specs.end()}, kv.format()}, .timeouts = d.timeouts}, ops,
              clock, *transport_) {}

PdSend::~PdSend() = default;

PdSend::Source& PdSend::SourceOf(Sequence& sequence) {
  return static_cast<Source&>(*sequence.handoff);
}

Status PdSend::Begin(Sequence& sequence) {
  auto source = std::make_unique<Source>(kv_, sequence.lease);
  TERN_RETURN_IF_ERROR(sender_.Open(sequence.rendezvous->room, sequence.tokens, source.get()));
  sequence.handoff = std::move(source);
  sequence.max_tokens = sequence.prompt_tokens + 1;  // the other side makes the rest
  queues_.Park(sequence.id);
  return OkStatus();
}

void PdSend::NoteComputed(Sequence& sequence) {
  if (sequence.handoff == nullptr) return;
  sender_.Computed(sequence.rendezvous->room, std::min(sequence.computed, sequence.prompt_tokens));
}

bool PdSend::TakeFirstToken(Sequence& sequence, const SampledToken& token) {
  if (sequence.handoff == nullptr) return false;
  TERN_TRACE("engine.pd_send");
  PdFirstToken first = {
      .token = token.token,
      .cached_tokens = static_cast<uint32_t>(std::max<int64_t>(sequence.cached_tokens, 0)),
      .seed = sequence.seed,
      .position = static_cast<uint64_t>(sequence.size())};
  if (sequence.return_logprobs) first.logprob = token.logprob;
  for (const TokenLogprob& top : token.top_logprobs) {
    first.top_logprobs.emplace_back(top.token, top.logprob);
  }
  sender_.Finish(sequence.rendezvous->room, std::move(first));
  Source& source = SourceOf(sequence);
  source.first = token;
  source.sent_all = true;
  queues_.Park(sequence.id);
  return true;
}

void PdSend::Forget(Sequence& sequence, const Status& why) {
  if (sequence.handoff == nullptr) return;
  const uint64_t room = sequence.rendezvous->room;
  if (!why.ok() && sender_.state(room) == PdState::kBootstrapping) {
    sender_.Abort(room, why);
    ended_early_.push_back({room, clock_.NowUs() + kRememberUs});
  } else {
    if (!why.ok()) sender_.Abort(room, why);
    sender_.Forget(room);
  }
  sequence.handoff.reset();
}

void PdSend::Refuse(const Rendezvous& rendezvous, const Status& why) {
  const uint64_t room = rendezvous.room;
  sender_.Refuse(room, why);  // it has been asked for already
  // Or it will be.
  constexpr int32_t kNoPrompt[] = {0};
  if (!sender_.Open(room, kNoPrompt, nullptr).ok()) return;
  sender_.Abort(room, why);
  ended_early_.push_back({room, clock_.NowUs() + kRememberUs});
}

void PdSend::ForgetEndedEarly() {
  while (!ended_early_.empty() && (ended_early_.front().until_us <= clock_.NowUs() ||
                                   ended_early_.size() > kMaxRemembered)) {
    sender_.Forget(ended_early_.front().room);
    ended_early_.pop_front();
  }
}

bool PdSend::Step(std::vector<HandoffEvent>* events) {
  ForgetEndedEarly();
  const bool changed = sender_.Step();
  std::vector<RequestId> asked;
  queues_.ForEach([&](Sequence& sequence) {
    if (sequence.handoff == nullptr) return;
    Source& source = SourceOf(sequence);
    const uint64_t room = sequence.rendezvous->room;
    const PdState state = sender_.state(room);
    if (state == PdState::kFailed) {
      const bool early = !source.asked;
      ++(early ? stats_.bootstrap_failures : stats_.transfer_failures);
      events->push_back({.id = sequence.id,
                         .status = sender_.error(room).WithContext(
                             early ? "Prefill bootstrap failed" : "Prefill transfer failed")});
    } else if (state == PdState::kSuccess && source.sent_all) {
      times_.push_back(stats_.NoteTransfer(sender_.times(room)));
      events->push_back(
          {.kind = HandoffEvent::Kind::kSent, .id = sequence.id, .first = source.first});
    } else if (!source.asked && state != PdState::kBootstrapping) {
      source.asked = true;
      asked.push_back(sequence.id);
    }
  });
  for (const RequestId id : asked) queues_.Unpark(id, &queues_.waiting);
  return changed || !asked.empty() || !events->empty();
}

HandoffStats PdSend::Stats() const {
  HandoffStats stats = stats_;
  for (const auto& sequence : queues_.parked) {
    const bool sending = static_cast<const Source&>(*sequence->handoff).sent_all;
    ++(sending ? stats.inflight_queue : stats.bootstrap_queue);
  }
  return stats;
}

}  // namespace tern
