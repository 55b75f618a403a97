#include "engine/actions/pd_receive.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace tern {

// The pages that a prompt's rows go to.
class PdReceive::Target final : public SequenceHandoff, public PdTarget {
 public:
  enum class Stage : uint8_t { kWantsPages, kReceiving, kHere };

  // `sequence` owns this.
  Target(KvCache& kv, const Clock& clock, Sequence& sequence)
      : waiting_since_us(clock.NowUs()), kv_(kv), clock_(clock), sequence_(sequence) {}

  std::vector<uint64_t> Tags() override {
    std::vector<uint64_t> tags;
    const auto pages = static_cast<size_t>(kv_.PagesFor(sequence_.prompt_tokens));
    for (const PageRef page : sequence_.lease.expected().first(pages)) {
      tags.push_back(static_cast<uint64_t>(page.tag));
    }
    return tags;
  }
  Result<std::byte*> Page(int64_t index) override {
    const PageRef expected = sequence_.lease.expected()[static_cast<size_t>(index)];
    std::byte* const base = kv_.View(sequence_.lease).pages[static_cast<size_t>(index)];
    if (!kv_.pool().Matches(expected) || base != kv_.pool().base(expected.id)) {
      return DataLoss(fmt::format("KV page {} is not the one that was acquired",
                                  static_cast<uint32_t>(expected.id)));
    }
    return base;
  }
  void Landed(int64_t index, int64_t rows, std::span<const uint64_t> sums) override {
    const int64_t first = index * kv_.format().page_tokens();
    kv_.NoteWritten(sequence_.space, sequence_.tokens, first, first + rows, &sequence_.lease, sums);
  }
  void OnRetracted() override {
    stage = Stage::kWantsPages;
    again = true;
    waiting_since_us = clock_.NowUs();
  }

  Stage stage = Stage::kWantsPages;
  bool again = false;
  int64_t waiting_since_us = 0;  // for pages
  int64_t alloc_us = 0;          // so long did it wait for them

 private:
  KvCache& kv_;
  const Clock& clock_;
  Sequence& sequence_;
};

PdReceive::PdReceive(Disaggregation d, std::span<const KvLayerSpec> specs, Limits limits,
                     const Ops& ops, const Clock& clock, Queues& queues, KvCache& kv)
    : transport_(std::move(d.transport)),
      reserved_tokens_(d.num_reserved_decode_tokens),
      limits_(limits),
      clock_(clock),
      queues_(queues),
      kv_(kv),
      receiver_({.rows = {{specs.begin(), specs.end()}, kv.format()}, .timeouts = d.timeouts}, ops,
                clock, *transport_) {}

PdReceive::~PdReceive() = default;

PdReceive::Target& PdReceive::TargetOf(const Sequence& sequence) {
  return static_cast<Target&>(*sequence.handoff);
}

Status PdReceive::Begin(Sequence& sequence) {
  sequence.handoff = std::make_unique<Target>(kv_, clock_, sequence);
  sequence.prompt_logprobs = nullptr;  // prefill's half tells them
  queues_.Park(sequence.id);
  return OkStatus();
}

void PdReceive::Forget(Sequence& sequence, const Status& why) {
  if (sequence.handoff == nullptr) return;
  const uint64_t room = sequence.rendezvous->room;
  Target& target = TargetOf(sequence);
  if (target.stage == Target::Stage::kReceiving) {
    if (!why.ok()) receiver_.Abort(room, why);
    receiver_.Forget(room);
  } else if (target.stage == Target::Stage::kWantsPages && !target.again) {
    Refuse(*sequence.rendezvous, why);  // prefill waits to be asked
  }
  sequence.handoff.reset();
}

void PdReceive::Refuse(const Rendezvous& rendezvous, const Status& why) {
  // A room that has been used is known to the sender.
  (void)receiver_.Decline(
      {.host = rendezvous.host, .port = rendezvous.port, .room = rendezvous.room}, why);
}

bool PdReceive::Admit(Sequence& sequence, Status* refused) {
  const int64_t left = sequence.max_tokens - sequence.size();
  const int64_t tokens =
      std::min(sequence.size() + std::min(left, reserved_tokens_), limits_.max_sequence_tokens);
  // Every running sequence must still be able to take a page, or the newcomer would be retracted.
  const auto running = static_cast<int64_t>(queues_.running.size());
  if (kv_.PagesFor(tokens) + running > kv_.available_pages()) return false;
  if (!kv_.Reserve(tokens, &sequence.lease)) return false;
  TERN_TRACE("engine.pd_receive");
  Target& target = TargetOf(sequence);
  const Rendezvous& at = *sequence.rendezvous;
  *refused = receiver_.Open(
      {.host = at.host,
       .port = at.port,
       .room = at.room,
       .prompt = std::span(sequence.tokens).first(static_cast<size_t>(sequence.prompt_tokens)),
       .recompute = target.again,
       .cache_salt = sequence.space.cache_salt,
       .extra_key = sequence.space.extra_key},
      &target);
  target.stage = Target::Stage::kReceiving;
  target.alloc_us = clock_.NowUs() - target.waiting_since_us;
  if (target.again) ++stats_.asked_again;
  return true;
}

bool PdReceive::Step(std::vector<HandoffEvent>* events) {
  const bool busy = std::ranges::any_of(queues_.running, [](const auto&) { return true; });
  bool changed = receiver_.Step(busy ? limits_.pages_per_step : INT64_MAX);
  auto receiving = std::ranges::count_if(queues_.parked, [](const auto& sequence) {
    return TargetOf(*sequence).stage == Target::Stage::kReceiving;
  });
  bool full = false;  // oldest first: nobody overtakes one that waits for pages
  std::vector<RequestId> received, local;
  for (const auto& parked : queues_.parked) {
    Sequence& sequence = *parked;
    Target& target = TargetOf(sequence);
    if (target.stage == Target::Stage::kWantsPages) {
      const auto running = static_cast<int64_t>(queues_.running.size());
      full = full || running + receiving >= limits_.max_running_requests;
      if (full) continue;
      Status refused;
      full = !Admit(sequence, &refused);
      if (full) continue;
      ++receiving;
      changed = true;
      if (!refused.ok()) {
        target.stage = Target::Stage::kHere;  // the room is another sequence's
        events->push_back({.id = sequence.id, .status = refused});
      }
      continue;
    }
    const uint64_t room = sequence.rendezvous->room;
    switch (receiver_.state(room)) {
      case PdState::kSuccess: {
        HandoffEvent event = {.kind = HandoffEvent::Kind::kReceived, .id = sequence.id};
        TakeReceived(sequence, &event);
        events->push_back(std::move(event));
        received.push_back(sequence.id);
        break;
      }
      case PdState::kFailed:
        if (target.again) {
          TERN_LOG(kWarning,
                   "request {}: its prompt is computed here, for its rows can't be had "
                   "again: {}",
                   sequence.id, receiver_.error(room).message());
          local.push_back(sequence.id);
          break;
        }
        ++(receiver_.times(room).bootstrapped_us == 0 ? stats_.bootstrap_failures
                                                      : stats_.transfer_failures);
        events->push_back(
            {.id = sequence.id,
             .status = receiver_.error(room).WithContext(receiver_.times(room).bootstrapped_us == 0
                                                             ? "Decode handshake failed"
                                                             : "Decode transfer failed")});
        break;
      default:
        break;
    }
  }
  for (const RequestId id : received) {
    Sequence& sequence = *queues_.Unpark(id, &queues_.running);
    sequence.computed = sequence.prompt_tokens;
  }
  for (const RequestId id : local) {
    Sequence& sequence = *queues_.Unpark(id, &queues_.waiting);
    receiver_.Forget(sequence.rendezvous->room);
    sequence.handoff.reset();
    kv_.Release(&sequence.lease);
    ++stats_.local_recomputes;
  }
  return changed || !events->empty() || !local.empty();
}

void PdReceive::TakeReceived(Sequence& sequence, HandoffEvent* event) {
  const uint64_t room = sequence.rendezvous->room;
  Target& target = TargetOf(sequence);
  const PdFirstToken& first = receiver_.first_token(room);
  event->first = {.token = first.token, .logprob = first.logprob.value_or(0)};
  for (const auto& [token, logprob] : first.top_logprobs) {
    event->first.top_logprobs.push_back({token, logprob});
  }
  event->seed = first.seed;
  event->cached_tokens = first.cached_tokens;
  event->again = target.again;
  times_.push_back(stats_.NoteTransfer(receiver_.times(room)));
  times_.back().alloc_us = target.alloc_us;
  receiver_.Forget(room);
  target.stage = Target::Stage::kHere;
}

HandoffStats PdReceive::Stats() const {
  HandoffStats stats = stats_;
  for (const auto& sequence : queues_.parked) {
    const Target& target = TargetOf(*sequence);
    if (target.stage == Target::Stage::kReceiving) {
      ++stats.transfer_queue;
      stats.receiving_tokens +=
          static_cast<int64_t>(sequence->lease.expected().size()) * kv_.format().page_tokens();
    } else {
      ++(target.again ? stats.retracted_queue : stats.prealloc_queue);
    }
  }
  return stats;
}

}  // namespace tern
