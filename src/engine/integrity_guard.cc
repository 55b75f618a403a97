#include "engine/integrity_guard.h"

#include <algorithm>

#include "base/log.h"
#include "base/trace.h"

namespace tern {
namespace {

// Of the time of steps, for all checks together; what the others leave of it is for the sweep.
constexpr double kShare = 0.0045;
// Unused time is not saved up, so that no step is held up by more than this.
constexpr int64_t kMostCreditUs = 2'000;
// A page that took long is paid back from later steps' shares. No more than this: a long prompt, or
// memory that the system cleared when it was first written, must not keep the sweep away for
// minutes.
constexpr int64_t kMostDebtUs = 20'000;
constexpr int64_t kPagesPerStep = 8;
constexpr size_t kFinishedKept = 512;
constexpr size_t kViolationsThatMatter = 3;
constexpr int64_t kUnhealthyUs = 60'000'000;

}  // namespace

IntegrityGuard::IntegrityGuard(const IntegrityOptions& options, KvCache& kv, const Queues& queues,
                               const Clock& clock, bool verify_all)
    : options_(options),
      pages_per_step_(verify_all ? kv.pool().pages() : kPagesPerStep),
      kv_(kv),
      queues_(queues),
      clock_(clock) {}

std::span<const IntegrityVictim> IntegrityGuard::BeforePass(Batch& batch) {
  victims_.clear();
  if (options_.mode == KvIntegrity::kOff) return victims_;
  TERN_TRACE("engine.integrity");
  const int64_t start_us = clock_.NowUs();
  ConcernFound();
  for (const BatchEntry& entry : batch.entries()) {
    const auto violation = kv_.FindMismatch(entry.sequence->lease, start_us);
    if (violation && !IsVictim(*entry.sequence)) Concern(*violation, entry.sequence);
  }
  for (const BatchEntry& entry : batch.entries()) {
    const Sequence& sequence = *entry.sequence;
    if (IsVictim(sequence)) continue;
    kv_.ExpectRows(sequence.lease, sequence.computed, sequence.computed + entry.rows);
  }
  step_check_us_ += clock_.NowUs() - start_us;
  return victims_;
}

std::span<const IntegrityVictim> IntegrityGuard::AfterPass(Batch& batch) {
  victims_.clear();
  const int64_t start_us = clock_.NowUs();
  for (const BatchEntry& entry : batch.entries()) {
    const Sequence& sequence = *entry.sequence;
    const int64_t first = sequence.computed, last = first + entry.rows;
    const auto violation = kv_.FindMismatchWritten(sequence.lease, first, last);
    if (!violation) continue;
    // What went astray has hit somebody else's page.
    for (const PageId page : kv_.StrayPages(sequence.lease, first, last)) {
      Concern({KvViolationKind::kOwner, page, violation->good_us}, nullptr);
    }
    Concern(*violation, &sequence);
  }
  for (const BatchEntry& entry : batch.entries()) {
    Sequence& sequence = *entry.sequence;
    if (IsVictim(sequence)) continue;
    kv_.NoteWritten(sequence.space, sequence.tokens, sequence.computed,
                    sequence.computed + entry.rows, &sequence.lease);
    stats_.sealed_rows += kv_.integrity() == KvIntegrity::kSealed ? entry.rows : 0;
  }
  kv_.SealWritten();
  ConcernFound();
  step_check_us_ += clock_.NowUs() - start_us;
  return victims_;
}

std::span<const IntegrityVictim> IntegrityGuard::AfterStep(int64_t step_us) {
  victims_.clear();
  step_check_us_ += kv_.match_us() - match_us_;
  const auto share_us = static_cast<int64_t>(static_cast<double>(step_us) * kShare);
  credit_us_ = std::clamp(credit_us_ + share_us - step_check_us_, -kMostDebtUs, kMostCreditUs);
  const int64_t start_us = clock_.NowUs();
  int64_t now_us = start_us;
  bool more = true;
  for (int64_t pages = 0; more && pages < pages_per_step_ && credit_us_ >= 0; ++pages) {
    more = kv_.SweepOne(start_us);
    const int64_t end_us = clock_.NowUs();
    credit_us_ -= end_us - now_us;
    step_check_us_ += end_us - now_us;
    step_us += end_us - now_us;
    now_us = end_us;
  }
  ConcernFound();
  stats_.step_us += step_us;
  stats_.check_us += step_check_us_;
  step_check_us_ = 0;
  match_us_ = kv_.match_us();
  return victims_;
}

bool IntegrityGuard::SweepIdle(int64_t budget_us) {
  victims_.clear();
  const int64_t start_us = clock_.NowUs();
  bool more = true;
  do {
    more = kv_.SweepOne(start_us);
  } while (more && clock_.NowUs() < start_us + budget_us);
  ConcernFound();  // nobody lives: only the exposed are concerned
  return more;
}

void IntegrityGuard::ConcernFound() {
  if (!kv_.has_violations()) return;
  for (const KvViolation& violation : kv_.TakeViolations()) Concern(violation, nullptr);
}

// `holder`: whose records differ; null where the page was found by itself.
void IntegrityGuard::Concern(const KvViolation& violation, const Sequence* holder) {
  ++stats_.violations[static_cast<size_t>(violation.kind)];
  const auto number = static_cast<uint32_t>(violation.page);
  if (!PageHasFailed(violation.kind)) {
    TERN_LOG(kWarning, "KV page {}: {} check failed{}", number, KvViolationName(violation.kind),
             holder != nullptr ? ", for one holder" : "; the page is not shared");
    if (holder != nullptr) AddVictim(*holder, violation);
    return;
  }
  TERN_LOG(kWarning, "KV page {}: {} check failed; quarantined", number,
           KvViolationName(violation.kind));
  CountExposed(violation);
  kv_.QuarantinePage(violation.page);
  queues_.ForEach([&](const Sequence& sequence) {  // those that wait for another engine hold too
    if (&sequence == holder || sequence.lease.Holds(violation.page)) {
      AddVictim(sequence, violation);
    }
  });
}

void IntegrityGuard::AddVictim(const Sequence& sequence, const KvViolation& violation) {
  if (!IsVictim(sequence)) victims_.push_back({sequence.id, violation});
}

bool IntegrityGuard::IsVictim(const Sequence& sequence) const {
  return std::any_of(victims_.begin(), victims_.end(),
                     [&](const IntegrityVictim& victim) { return victim.id == sequence.id; });
}

void IntegrityGuard::NoteFinished(const Sequence& sequence) {
  if (options_.mode == KvIntegrity::kOff) return;
  Finished finished = {sequence.id, sequence.rid, clock_.NowUs(), {}};
  for (const PageRef& page : sequence.lease.expected()) finished.pages.push_back(page.id);
  finished_.push_back(std::move(finished));
  if (finished_.size() > kFinishedKept) finished_.pop_front();
}

// They had read the page when it may have been bad already; their answers are out.
void IntegrityGuard::CountExposed(const KvViolation& violation) {
  std::erase_if(finished_, [&](const Finished& finished) {
    const bool exposed = finished.end_us >= violation.good_us &&
                         std::find(finished.pages.begin(), finished.pages.end(), violation.page) !=
                             finished.pages.end();
    if (!exposed) return false;
    ++stats_.exposed_requests;
    TERN_LOG(kWarning, "request {} (rid '{}') finished after KV page {} was last known to be good",
             finished.id, finished.rid, static_cast<uint32_t>(violation.page));
    return true;
  });
}

void IntegrityGuard::NoteEnded(int64_t requests) {
  stats_.ended_requests += requests;
  const int64_t now_us = clock_.NowUs();
  ended_at_us_.push_back(now_us);
  if (ended_at_us_.size() > kViolationsThatMatter) ended_at_us_.pop_front();
  const bool many =
      ended_at_us_.size() == kViolationsThatMatter && now_us - ended_at_us_.front() <= kUnhealthyUs;
  if (many || now_us < stats_.unhealthy_until_us) {
    stats_.unhealthy_until_us = now_us + kUnhealthyUs;
  }
}

IntegrityStats IntegrityGuard::Stats() const {
  IntegrityStats stats = stats_;
  stats.quarantined_pages = kv_.quarantined_pages();
  stats.verified_pages = kv_.verified_pages();
  stats.swept_pages = kv_.swept_pages();
  if (stats.quarantined_pages > options_.quarantine_limit) {
    stats.unhealthy_until_us = IntegrityStats::kNeverHealthy;
  }
  return stats;
}

}  // namespace tern
