#include "engine/engine_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace tern {
namespace {
constexpr int64_t kCheckIntervalUs = 1'000'000;
// An idle engine sweeps a little this often; when all pages have been seen, it waits longer.
constexpr int64_t kSweepIntervalUs = 20'000;
constexpr int64_t kSweptIntervalUs = 1'000'000;
}  // namespace

EngineThread::EngineThread(std::unique_ptr<EngineCore> core, std::unique_ptr<EngineMetrics> metrics,
                           const Clock& clock, int64_t max_queued_requests,
                           double sweep_idle_fraction, Disaggregation disaggregation)
    : core_(std::move(core)),
      metrics_(std::move(metrics)),
      clock_(clock),
      max_queued_requests_(max_queued_requests),
      sweep_idle_fraction_(sweep_idle_fraction),
      waker_(disaggregation.waker),
      stats_(core_->Stats()) {
  core_->SetDisaggregation(std::move(disaggregation), [this] {
    MutexLock lock(mutex_);
    return next_id_++;
  });
  if (waker_ != nullptr) waker_->Set([this] { Wake(); });
  thread_ = std::thread([this] { Loop(); });
}

EngineThread::~EngineThread() {
  if (waker_ != nullptr) waker_->Set({});
  {
    MutexLock lock(mutex_);
    stop_ = true;
    arrived_.NotifyAll();
  }
  thread_.join();
}

Result<RequestId> EngineThread::Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) {
  TERN_TRACE("engine.submit");
  TERN_RETURN_IF_ERROR(core_->Validate(request));
  MutexLock lock(mutex_);
  if (stop_ || draining_) return Unavailable("the server is shutting down");
  if (stats_.queued_requests + submits_in_inbox_ >= max_queued_requests_) {
    return ResourceExhausted(
        fmt::format("the queue is full ({} requests are waiting)", max_queued_requests_));
  }
  // Ids are given under the lock, so that messages arrive in their order.
  const RequestId id = next_id_++;
  inbox_.push_back(SubmitMessage{id, std::move(request), std::move(sink), clock_.NowUs()});
  ++submits_in_inbox_;
  idle_ = false;
  arrived_.NotifyOne();
  return id;
}

void EngineThread::Cancel(RequestId id, int64_t keep_tokens) {
  Post(CancelMessage{id, keep_tokens});
}

void EngineThread::AbortRid(const std::string& rid, bool all) { Post(AbortRidMessage{rid, all}); }

void EngineThread::FlushCache(std::function<void(bool)> done) {
  if (!Post(FlushMessage{done})) done(false);
}

void EngineThread::RefuseRendezvous(const Rendezvous& rendezvous, const Status& why) {
  Post(RefuseMessage{rendezvous, why});
}

void EngineThread::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  arrived_.NotifyOne();
}

bool EngineThread::Post(Message message) {
  MutexLock lock(mutex_);
  if (stop_) return false;
  inbox_.push_back(std::move(message));
  idle_ = false;
  arrived_.NotifyOne();
  return true;
}

void EngineThread::Drain(int64_t timeout_us) {
  // Waiting is on the machine's time, whatever clock the engine has.
  const int64_t deadline_us = SystemClock().NowUs() + timeout_us;
  MutexLock lock(mutex_);
  draining_ = true;
  while (!idle_) {
    const int64_t left_us = deadline_us - SystemClock().NowUs();
    if (left_us <= 0) return;
    drained_.WaitFor(mutex_, left_us);
  }
}

EngineStats EngineThread::Stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

void EngineThread::Loop() {
  bool progress = false;
  for (;;) {
    bool stop = false;
    std::vector<Message> messages = Receive(!progress, &stop);
    for (Message& message : messages) SurviveNoMemory([&] { Handle(std::move(message)); });
    if (stop) break;
    SurviveNoMemory([&] { progress = core_->Step(); });
    SweepWhenIdle();
    Publish();
    CheckWhenIdle();
  }
  core_->EndAll(Unavailable("the server is shutting down"));
  Publish();
}

template <typename Part>
void EngineThread::SurviveNoMemory(Part part) {
  try {
    part();
  } catch (const std::bad_alloc&) {
    TERN_LOG(kError, "out of memory: all running and waiting requests end");
    core_->EndAll(ResourceExhausted("out of memory"));
  }
}

std::vector<EngineThread::Message> EngineThread::Receive(bool nothing_else, bool* stop) {
  int64_t deadline_us = core_->NextDeadlineUs();
  if (sweep_idle_fraction_ > 0 && core_->idle()) {
    const int64_t pause_us = more_to_sweep_ ? kSweepIntervalUs : kSweptIntervalUs;
    deadline_us = std::min(deadline_us, clock_.NowUs() + pause_us);
  }
  MutexLock lock(mutex_);
  while (nothing_else && inbox_.empty() && !stop_ && !woken_) {
    if (deadline_us == INT64_MAX) {
      arrived_.Wait(mutex_);
      continue;
    }
    const int64_t left_us = deadline_us - clock_.NowUs();
    if (left_us <= 0) break;
    arrived_.WaitFor(mutex_, left_us);
  }
  woken_ = false;
  *stop = stop_;
  return std::exchange(inbox_, {});
}

void EngineThread::Handle(Message message) {
  if (auto* submit = std::get_if<SubmitMessage>(&message)) {
    try {
      core_->Submit(submit->id, std::move(submit->request), submit->sink, submit->arrival_us);
    } catch (const std::bad_alloc&) {  // it did not get into the queue
      submit->sink->OnFinish({.reason = FinishEvent::Reason::kError,
                              .status = ResourceExhausted("out of memory for a new request")});
    }
  } else if (const auto* cancel = std::get_if<CancelMessage>(&message)) {
    core_->Cancel(cancel->id, cancel->keep_tokens);
  } else if (const auto* abort = std::get_if<AbortRidMessage>(&message)) {
    core_->AbortRid(abort->rid, abort->all);
  } else if (const auto* flush = std::get_if<FlushMessage>(&message)) {
    flush->done(core_->FlushCache());
  } else if (const auto* refuse = std::get_if<RefuseMessage>(&message)) {
    core_->RefuseRendezvous(refuse->rendezvous, refuse->why);
  }
}

void EngineThread::Publish() {
  const EngineStats stats = core_->Stats();
  metrics_->Publish(stats, core_->evicted_tokens());
  MutexLock lock(mutex_);
  stats_ = stats;
  submits_in_inbox_ = 0;
  for (const Message& message : inbox_) {
    submits_in_inbox_ += std::holds_alternative<SubmitMessage>(message);
  }
  idle_ = inbox_.empty() && core_->idle();
  if (idle_) drained_.NotifyAll();
}

void EngineThread::SweepWhenIdle() {
  if (sweep_idle_fraction_ <= 0 || !core_->idle()) return;
  const double budget_us = static_cast<double>(kSweepIntervalUs) * sweep_idle_fraction_;
  more_to_sweep_ = core_->SweepIdle(static_cast<int64_t>(budget_us));
}

void EngineThread::CheckWhenIdle() {
  if (!core_->idle() || clock_.NowUs() < next_check_us_) return;
  next_check_us_ = clock_.NowUs() + kCheckIntervalUs;
  if (const Status status = core_->CheckInvariants(); !status.ok()) {
    TERN_LOG(kError, "KV cache check: {}", status.ToString());
  }
}

}  // namespace tern
