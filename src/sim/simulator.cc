#include "sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "engine/engine_core.h"
#include "kv/kv_sabotage.h"
#include "sim/toy_reference.h"

namespace tern {
namespace {

// What a client saw of one request.
struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<FinishEvent> finishes;
};

class RecordingSink final : public TokenSink {
 public:
  explicit RecordingSink(Outcome& outcome) : outcome_(outcome) {}
  void OnToken(TokenEvent event) override {
    if (event.index == static_cast<int64_t>(outcome_.tokens.size())) {
      outcome_.tokens.push_back(event.token);
    } else {
      outcome_.tokens.push_back(-1);  // out of order: never equals the reference
    }
  }
  void OnFinish(FinishEvent event) override { outcome_.finishes.push_back(std::move(event)); }

 private:
  Outcome& outcome_;
};

class SimMask final : public TokenMask {
 public:
  explicit SimMask(uint64_t mask) : mask_(mask) {}
  void Fill(std::span<uint32_t> bits) override {
    for (int32_t token = 0; token < static_cast<int32_t>(bits.size()) * 32; ++token) {
      if (ToyMaskAllows(mask_, accepted_, token)) bits[size_t(token) / 32] |= 1u << token % 32;
    }
  }
  void Accept(int32_t) override { ++accepted_; }
  std::shared_ptr<TokenMask> Restarted() const override { return std::make_shared<SimMask>(mask_); }

 private:
  const uint64_t mask_;
  int64_t accepted_ = 0;
};

bool Contains(const std::vector<int32_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

bool IsPrefix(const std::vector<int32_t>& prefix, const std::vector<int32_t>& whole) {
  return prefix.size() <= whole.size() && std::equal(prefix.begin(), prefix.end(), whole.begin());
}

// The rule of page tags, from outside: a page whose use or owner changes gets a tag that no page
// ever had. Owner 0 is the prefix cache.
class TagHistory {
 public:
  Status Check(const EngineCore& core, const PagePool& pool) {
    std::map<PageId, RequestId> owners;
    for (const auto& sequence : core.queues().running) {
      const auto pages = sequence->lease.expected();
      for (size_t i = static_cast<size_t>(sequence->lease.shared_pages()); i < pages.size(); ++i) {
        owners[pages[i].id] = sequence->id;
      }
    }
    seen_.resize(static_cast<size_t>(pool.pages()));
    for (size_t i = 0; i < seen_.size(); ++i) {
      const PageId page{static_cast<uint32_t>(i)};
      const auto owner = owners.find(page);
      const Seen now = {pool.tag(page), pool.state(page),
                        owner == owners.end() ? 0 : owner->second};
      Seen& before = seen_[i];
      const bool to_cache = before.state == PageState::kHeld && now.state == PageState::kCached;
      const bool same_use = before.state == now.state && before.owner == now.owner;
      if (now.tag == before.tag && !same_use && !to_cache) {
        return Internal(fmt::format("page {} changed its use and kept its tag", i));
      }
      if (now.tag != before.tag) {
        dead_.insert(before.tag);
        if (dead_.contains(now.tag)) return Internal(fmt::format("page {} has an old tag", i));
      }
      before = now;
    }
    return OkStatus();
  }

 private:
  struct Seen {
    PageTag tag = PageTag::kNever;
    PageState state = PageState::kFree;
    RequestId owner = 0;
  };
  std::vector<Seen> seen_;
  std::set<PageTag> dead_;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const SimOptions& options, SimCounts* counts)
      : schedule_(schedule),
        options_(options),
        counts_(counts),
        toy_{.context_length = schedule.context_length, .two_forms = schedule.two_forms},
        model_(toy_),
        outcomes_(schedule.requests.size()),
        accepted_(schedule.requests.size(), false),
        damaged_(schedule.requests.size(), false),
        misread_step_(schedule.requests.size(), -1) {}

  Status Run() {
    TERN_RETURN_IF_ERROR(Start());
    for (step_ = 0; step_ == 0 || !Done(); ++step_) {
      if (step_ > kMaxSteps) return Fail(Internal("no end in sight"));
      TERN_RETURN_IF_ERROR(Fail(Events()));
      model_.FailWith(Contains(schedule_.failing_steps, step_) ? Unavailable(kFailure)
                                                               : OkStatus());
      core_->Step();
      UndoUnseenDamage();
      clock_.AdvanceUs(1000);
      ++counts_->steps;
      TERN_RETURN_IF_ERROR(Fail(CheckNow()));
    }
    TERN_RETURN_IF_ERROR(Fail(CheckEnd()));
    const EngineStats stats = core_->Stats();
    counts_->retractions += stats.retractions;
    counts_->evicted_tokens += core_->evicted_tokens();
    counts_->generated_tokens += stats.generated_tokens;
    counts_->violations += stats.integrity.all_violations();
    counts_->healed += stats.integrity.healed_requests;
    counts_->exposed += stats.integrity.exposed_requests;
    counts_->sealed_rows += stats.integrity.sealed_rows;
    counts_->copied_rows += core_->kv().copied_rows();
    counts_->protected_pages += protected_pages_;
    return OkStatus();
  }

 private:
  static constexpr int64_t kMaxSteps = 20'000;
  static constexpr const char* kFailure = "the schedule says so";

  Status Start() {
    const EngineOptions engine = {
        .page_tokens = schedule_.page_tokens,
        .max_running_requests = schedule_.max_running,
        .chunked_prefill_size = schedule_.chunk_tokens,
        .disable_radix_cache = !schedule_.reuse_prefixes,
        .kv_session_fraction = schedule_.session_fraction,
        .integrity = {.mode = schedule_.sealed ? KvIntegrity::kSealed : KvIntegrity::kTags,
                      .action = schedule_.recompute ? IntegrityAction::kRecompute
                                                    : IntegrityAction::kAbort},
        .kv_verify_interval_us = 0,
        .random_seed = schedule_.seed | 1};
    TERN_ASSIGN_OR_RETURN(
        const MemoryPlan plan,
        PlanMemory(model_.info(), {.page_tokens = schedule_.page_tokens,
                                   .max_total_tokens = schedule_.pages * schedule_.page_tokens,
                                   .available_bytes = uint64_t{1} << 30,
                                   .max_running_requests = schedule_.max_running,
                                   .chunked_prefill_size = schedule_.chunk_tokens}));
    TERN_ASSIGN_OR_RETURN(
        core_, EngineCore::Create(model_, pool_, engine, plan, schedule_.seed, clock_, nullptr));
    core_->kv().InjectFaults(options_.faults);
    capacity_ = std::min(schedule_.context_length, plan.total_tokens);
    return OkStatus();
  }

  // Request i has id i + 1.
  static RequestId IdOf(size_t i) { return i + 1; }

  bool Done() const {
    if (!core_->idle()) return false;
    return std::none_of(schedule_.requests.begin(), schedule_.requests.end(),
                        [this](const SimRequest& r) { return r.arrive_step >= step_; });
  }

  Status Events() {
    for (size_t i = 0; i < schedule_.requests.size(); ++i) {
      if (schedule_.requests[i].arrive_step != step_) continue;
      TERN_RETURN_IF_ERROR(Submit(i));
      TERN_RETURN_IF_ERROR(CheckNow());
    }
    for (size_t i = 0; i < schedule_.requests.size(); ++i) {
      if (schedule_.requests[i].cancel_step != step_) continue;
      core_->Cancel(IdOf(i), schedule_.requests[i].keep_tokens);
      TERN_RETURN_IF_ERROR(CheckNow());
    }
    for (const SimDamage& damage : schedule_.damages) {
      if (damage.step == step_) Damage(damage);
    }
    return Contains(schedule_.flush_steps, step_) ? Flush() : OkStatus();
  }

  Status Flush() {
    const bool idle = core_->idle();
    if (core_->FlushCache() != idle) return Internal("a flush while busy, or none while idle");
    if (!idle) return OkStatus();
    ++counts_->flushes;
    const bool empty = core_->kv().pool().count(PageState::kCached) == 0;
    return empty ? OkStatus() : Internal("pages are still cached after a flush");
  }

  SamplingParams SamplingOf(size_t i) const {
    const SimRequest& request = schedule_.requests[i];
    return {.temperature = request.temperature,
            .seed = request.seed,
            .max_new_tokens = request.max_new_tokens,
            .stop_token_ids = request.stop_tokens,
            .ignore_eos = request.ignore_eos};
  }

  Status Submit(size_t i) {
    GenerateRequest request = {.tokens = schedule_.requests[i].prompt,
                               .sampling = SamplingOf(i),
                               .cache_salt = schedule_.requests[i].salt,
                               .session = schedule_.requests[i].session};
    if (const uint64_t mask = schedule_.requests[i].mask; mask != 0) {
      request.mask = std::make_shared<SimMask>(mask);
      ++counts_->masked;
    }
    const int64_t needed =
        static_cast<int64_t>(request.tokens.size()) + (request.sampling.max_new_tokens > 0 ? 1 : 0);
    const bool fits = needed <= capacity_ && !request.tokens.empty();
    if (core_->Validate(request).ok() != fits) {
      return Internal(fmt::format("request {}: wrongly accepted or refused", i));
    }
    if (!fits) return OkStatus();
    accepted_[i] = true;
    core_->Submit(IdOf(i), std::move(request), std::make_shared<RecordingSink>(outcomes_[i]),
                  clock_.NowUs());
    return OkStatus();
  }

  // Everybody who holds the page may end by it, or be computed anew; with kTable only the sequence
  // itself.
  void Damage(const SimDamage& damage) {
    const uint64_t pick = damage.pick;
    std::vector<Sequence*> generating;
    for (const auto& sequence : core_->queues().running) {
      if (sequence->decoding()) generating.push_back(sequence.get());
    }
    if (generating.empty()) return;
    Sequence& victim = *generating[pick % generating.size()];
    const auto pages = victim.lease.expected();
    const size_t index = pick / 8 % pages.size();
    const PageRef page = pages[index];
#if TERN_FAULTS
    if (damage.kind == SimDamage::kTable) {
      const PageId other{static_cast<uint32_t>(pick / 64 % static_cast<uint64_t>(schedule_.pages))};
      if (other == page.id) return;
      KvSaboteur::Redirect(victim.lease, static_cast<int64_t>(index),
                           core_->kv().MutablePage(other));
      damaged_[victim.id - 1] = true;
      return;
    }
#endif
    if (damage.kind == SimDamage::kBits) {
      const int64_t rows = core_->kv().pool().rows(page.id);
      if (!schedule_.sealed || rows == 0) return;
      const auto layer = static_cast<int64_t>(pick / 64 % 2);
      const KvRowPart part = core_->kv().format().row_parts(layer)[0];
      const auto byte = static_cast<int64_t>(pick / 128) % (rows * part.row_bytes);
      core_->kv().MutablePage(page.id)[part.offset_bytes + byte] ^= std::byte(1 << pick % 8);
    } else if (damage.kind == SimDamage::kHeader) {
      flipped_.push_back({page, pick / 64 % 8, std::byte(1 << pick % 8)});
      Flip(flipped_.back());
    }
    for (const auto& sequence : core_->queues().running) {
      if (!sequence->lease.Holds(page.id)) continue;
      damaged_[sequence->id - 1] = true;
      if (damage.kind == SimDamage::kBits) misread_step_[sequence->id - 1] = step_;
    }
  }

  struct FlippedBit {
    PageRef page;
    size_t byte;
    std::byte bit;
  };
  void Flip(const FlippedBit& flip) {
    core_->kv().MutablePage(flip.page.id)[flip.byte] ^= flip.bit;
  }

  // When the victim was retracted in the same step, nobody has read the page: it may lie in the
  // prefix cache until somebody matches it. Invariants could not be checked until then.
  void UndoUnseenDamage() {
    for (const FlippedBit& flip : flipped_) {
      if (core_->kv().pool().tag(flip.page.id) == flip.page.tag) Flip(flip);
    }
    flipped_.clear();
  }

  Status CheckNow() {
    protected_pages_ = std::max(protected_pages_, core_->kv().protected_pages());
    if (options_.check_invariants) {
      TERN_RETURN_IF_ERROR(core_->CheckInvariants());
      TERN_RETURN_IF_ERROR(tags_.Check(*core_, core_->kv().pool()));
    }
    for (; !Pending().empty();) {
      const size_t i = Pending().back();
      checked_.insert(i);
      TERN_RETURN_IF_ERROR(CheckOutcome(i).WithContext(fmt::format("request {}", i)));
    }
    return OkStatus();
  }

  // Requests that have ended and are not checked yet.
  std::vector<size_t> Pending() const {
    std::vector<size_t> pending;
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      if (!outcomes_[i].finishes.empty() && !checked_.contains(i)) pending.push_back(i);
    }
    return pending;
  }

  Status CheckOutcome(size_t i) {
    const Outcome& outcome = outcomes_[i];
    const SimRequest& request = schedule_.requests[i];
    const FinishEvent& finish = outcome.finishes.front();
    const ToyAnswer want = AnswerOf(toy_, request.prompt, SamplingOf(i), capacity_, request.mask);
    // The token of the step in which a bit flipped may be wrong: the sweep comes after it. Such a
    // request has ended in that step, or when it was computed anew, or in some other way before.
    if (misread_step_[i] == step_) {
      const bool ended = finish.status.code() == StatusCode::kDataLoss;
      (ended ? counts_->tampered : counts_->finished) += 1;
      return OkStatus();
    }
    const bool well = finish.reason == FinishEvent::Reason::kLength || finish.matched_token;
    const bool may_differ = misread_step_[i] >= 0 && !well;
    if (!may_differ && !IsPrefix(outcome.tokens, want.tokens)) {
      return Internal(fmt::format("tokens [{}] are not the reference's [{}]",
                                  fmt::join(outcome.tokens, " "), fmt::join(want.tokens, " ")));
    }
    if (finish.cached_tokens > LongestKnownPrefix(i)) {
      return Internal(fmt::format("{} cached tokens, of which its tenant had at most {}",
                                  finish.cached_tokens, LongestKnownPrefix(i)));
    }
    counts_->cached_tokens += finish.cached_tokens;
    const bool complete = outcome.tokens.size() == want.tokens.size();
    if (core_->kv().quarantined_pages() > 0) quarantined_ = true;
    const bool quarantined = quarantined_;
    const bool cancelled = request.cancel_step >= 0 && request.cancel_step <= step_;
    switch (finish.reason) {
      case FinishEvent::Reason::kStop:
        if (finish.matched_token.has_value()) {
          if (!complete || !want.stopped || want.stop_token != *finish.matched_token) {
            return Internal("stopped where the reference does not");
          }
          ++counts_->finished;
        } else if (!cancelled || request.keep_tokens < 0 ||
                   finish.completion_tokens > request.keep_tokens) {
          return Internal("stopped without a stop token or a cancellation");
        }
        break;
      case FinishEvent::Reason::kLength:
        if ((!complete || want.stopped) && !quarantined) {
          return Internal("ended by length where the reference does not");
        }
        ++counts_->finished;
        break;
      case FinishEvent::Reason::kAborted:
        if (!cancelled || request.keep_tokens >= 0) return Internal("aborted by nobody");
        ++counts_->cancelled;
        break;
      case FinishEvent::Reason::kError:
        return CheckError(i, finish.status, quarantined);
    }
    return OkStatus();
  }

  Status CheckError(size_t i, const Status& status, bool quarantined) {
    if (status.code() == StatusCode::kDataLoss && damaged_[i]) {
      ++counts_->tampered;
      return OkStatus();
    }
    if (status.code() == StatusCode::kResourceExhausted && quarantined) {
      ++counts_->resource_errors;
      return OkStatus();
    }
    if (status == Unavailable(kFailure) && Contains(schedule_.failing_steps, step_)) {
      ++counts_->failed;
      return OkStatus();
    }
    return Internal("ended with " + status.ToString());
  }

  // Rows of request i's prompt that some other request of its namespace could have left; its last
  // token is always computed.
  int64_t LongestKnownPrefix(size_t i) const {
    const SimRequest& request = schedule_.requests[i];
    int64_t longest = 0;
    for (size_t k = 0; k < schedule_.requests.size(); ++k) {
      const SimRequest& other = schedule_.requests[k];
      if (k == i || other.salt != request.salt || !accepted_[k]) continue;
      std::vector<int32_t> known = other.prompt;
      const ToyAnswer answer = AnswerOf(toy_, known, SamplingOf(k), capacity_, other.mask);
      if (!schedule_.two_forms) {
        known.insert(known.end(), answer.tokens.begin(), answer.tokens.end());
      }
      const auto end =
          std::mismatch(known.begin(), known.end(), request.prompt.begin(), request.prompt.end());
      longest = std::max<int64_t>(longest, end.first - known.begin());
    }
    return std::min(longest, static_cast<int64_t>(request.prompt.size()) - 1);
  }

  // Everybody got exactly one end, and nobody holds a page.
  Status CheckEnd() {
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      if (outcomes_[i].finishes.size() != (accepted_[i] ? 1 : 0)) {
        return Internal(fmt::format("request {}: {} ends", i, outcomes_[i].finishes.size()));
      }
    }
    if (!options_.check_invariants) return OkStatus();
    if (core_->kv().available_pages() != core_->kv().usable_pages()) {
      return Internal("pages are still held at the end");
    }
    return Flush();
  }

  Status Fail(Status status) const { return status.WithContext(fmt::format("step {}", step_)); }

  const Schedule& schedule_;
  const SimOptions& options_;
  SimCounts* counts_;
  const ToyOptions toy_;
  ToyModel model_;
  ThreadPool pool_{1};
  ManualClock clock_;
  std::unique_ptr<EngineCore> core_;
  std::vector<Outcome> outcomes_;
  std::vector<bool> accepted_;
  std::vector<bool> damaged_;          // may end by a failed page
  std::vector<int64_t> misread_step_;  // may have read wrong rows in this step; -1: never
  std::set<size_t> checked_;
  TagHistory tags_;
  std::vector<FlippedBit> flipped_;
  bool quarantined_ = false;     // some page was, once
  int64_t capacity_ = 0;         // tokens of the longest sequence
  int64_t protected_pages_ = 0;  // at most, at once
  int64_t step_ = 0;
};

bool Fails(const Schedule& schedule, const SimOptions& options) {
  SimCounts counts;
  return !RunSchedule(schedule, options, &counts).ok();
}

}  // namespace

SimCounts& SimCounts::operator+=(const SimCounts& other) {
  steps += other.steps;
  finished += other.finished;
  cancelled += other.cancelled;
  retractions += other.retractions;
  cached_tokens += other.cached_tokens;
  evicted_tokens += other.evicted_tokens;
  generated_tokens += other.generated_tokens;
  tampered += other.tampered;
  resource_errors += other.resource_errors;
  failed += other.failed;
  masked += other.masked;
  flushes += other.flushes;
  violations += other.violations;
  healed += other.healed;
  exposed += other.exposed;
  quarantined += other.quarantined;
  sealed_rows += other.sealed_rows;
  copied_rows += other.copied_rows;
  protected_pages += other.protected_pages;
  return *this;
}

Status RunSchedule(const Schedule& schedule, const SimOptions& options, SimCounts* counts) {
  return Simulation(schedule, options, counts).Run();
}

Schedule Shrink(Schedule schedule, const SimOptions& options) {
  bool smaller = true;
  const auto attempt = [&](const std::function<void(Schedule&)>& change) {
    Schedule candidate = schedule;
    change(candidate);
    if (!Fails(candidate, options)) return false;
    schedule = std::move(candidate);
    smaller = true;
    return true;
  };
  while (smaller) {
    smaller = false;
    for (size_t i = 0; i < schedule.requests.size();) {
      const auto erase = [i](Schedule& s) { s.requests.erase(s.requests.begin() + long(i)); };
      if (!attempt(erase)) ++i;
    }
    for (auto steps : {&Schedule::failing_steps, &Schedule::flush_steps}) {
      for (size_t i = 0; i < (schedule.*steps).size();) {
        const auto erase = [&](Schedule& s) { (s.*steps).erase((s.*steps).begin() + long(i)); };
        if (!attempt(erase)) ++i;
      }
    }
    for (size_t i = 0; i < schedule.damages.size();) {
      const auto erase = [i](Schedule& s) { s.damages.erase(s.damages.begin() + long(i)); };
      if (!attempt(erase)) ++i;
    }
    for (size_t i = 0; i < schedule.requests.size(); ++i) {
      if (schedule.requests[i].mask != 0) attempt([i](Schedule& s) { s.requests[i].mask = 0; });
      if (schedule.requests[i].cancel_step >= 0) {
        attempt([i](Schedule& s) { s.requests[i].cancel_step = s.requests[i].keep_tokens = -1; });
      }
      while (schedule.requests[i].prompt.size() > 1 &&
             attempt([i](Schedule& s) { s.requests[i].prompt.pop_back(); })) {
      }
      while (schedule.requests[i].max_new_tokens > 0 &&
             attempt([i](Schedule& s) { --s.requests[i].max_new_tokens; })) {
      }
      while (schedule.requests[i].arrive_step > 0 &&
             attempt([i](Schedule& s) { --s.requests[i].arrive_step; })) {
      }
    }
  }
  return schedule;
}

}  // namespace tern
