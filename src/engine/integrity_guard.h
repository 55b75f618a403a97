// IntegrityGuard: the engine's side of KV integrity (docs/integrity.md). It checks what a pass
// reads and wrote, sweeps between passes, says whose requests are no longer to be trusted, and
// keeps the books. What becomes of those requests is EngineCore's business. Owner: EngineCore.
// Thread: the engine thread.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/integrity.h"
#include "engine/queues.h"
#include "engine/request.h"

namespace tern {

// A request that must not go on with the rows it has.
struct IntegrityVictim {
  RequestId id = 0;
  KvViolation violation;
};

class IntegrityGuard {
 public:
  // All outlive the guard. `verify_all`: the sweep between steps takes every page (tests).
  IntegrityGuard(const IntegrityOptions& options, KvCache& kv, const Queues& queues,
                 const Clock& clock, bool verify_all = false);

  // Each of these returns whom the checks have found, each request once; valid until the next call.
  // Pages that failed are in quarantine, their descendants hidden from matches.
  //
  // Before a pass: every page that it will read or write; and what matches found in this step.
  std::span<const IntegrityVictim> BeforePass(Batch& batch);
  // After it: owners of the pages written. Records and seals the rows of all others.
  std::span<const IntegrityVictim> AfterPass(Batch& batch);
  // After a step that took `step_us`: as much of the sweep as its share of the time allows.
  std::span<const IntegrityVictim> AfterStep(int64_t step_us);
  // With nothing to do: sweeps for `budget_us`. False when there was nothing to sweep.
  bool SweepIdle(int64_t budget_us);

  // What EngineCore did: a request finished well (its pages still held); victims ended or healed.
  void NoteFinished(const Sequence& sequence);
  void NoteEnded(int64_t requests);
  void NoteHealed() { ++stats_.healed_requests; }

  IntegrityStats Stats() const;

 private:
  struct Finished {
    RequestId id = 0;
    std::string rid;
    int64_t end_us = 0;
    std::vector<PageId> pages;
  };

  void Concern(const KvViolation& violation, const Sequence* holder);
  void ConcernFound();
  void AddVictim(const Sequence& sequence, const KvViolation& violation);
  bool IsVictim(const Sequence& sequence) const;
  void CountExposed(const KvViolation& violation);

  const IntegrityOptions options_;
  const int64_t pages_per_step_;  // for the sweep
  KvCache& kv_;
  const Queues& queues_;
  const Clock& clock_;
  IntegrityStats stats_;
  std::vector<IntegrityVictim> victims_;
  std::deque<Finished> finished_;    // the newest ones
  std::deque<int64_t> ended_at_us_;  // the last violations that ended a request
  int64_t step_check_us_ = 0;        // of the step that is running
  int64_t match_us_ = 0;             // of KvCache, at the end of the last step
  int64_t credit_us_ = 0;            // for the sweep between steps
};

}  // namespace tern
