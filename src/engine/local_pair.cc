#include "engine/local_pair.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"

namespace tern {

// Prefill's half has nothing to say but what it knows of the prompt: its first token goes to
// decode, which also hears of its failure.
class LocalPair::PrefillSink final : public TokenSink {
 public:
  explicit PrefillSink(std::shared_ptr<TokenSink> answer) : answer_(std::move(answer)) {}
  void OnPromptLogprobs(std::vector<PromptLogprob> logprobs) override {
    answer_->OnPromptLogprobs(std::move(logprobs));
  }
  void OnToken(TokenEvent) override {}
  void OnFinish(FinishEvent) override {}

 private:
  const std::shared_ptr<TokenSink> answer_;
};

namespace {

// Passes on what decode says; calls `failed` when it is not a whole answer.
class DecodeSink final : public TokenSink {
 public:
  DecodeSink(std::shared_ptr<TokenSink> next, std::function<void()> failed)
      : next_(std::move(next)), failed_(std::move(failed)) {}
  void OnToken(TokenEvent event) override { next_->OnToken(std::move(event)); }
  void OnFinish(FinishEvent event) override {
    if (event.reason == FinishEvent::Reason::kError ||
        event.reason == FinishEvent::Reason::kAborted) {
      failed_();
    }
    next_->OnFinish(std::move(event));
  }

 private:
  const std::shared_ptr<TokenSink> next_;
  const std::function<void()> failed_;
};

}  // namespace

LocalPair::LocalPair(std::unique_ptr<Engine> prefill, std::unique_ptr<Engine> decode,
                     Rendezvous meeting)
    : meeting_(std::move(meeting)),
      next_room_(RandomSeed() >> 1),
      prefill_(std::move(prefill)),
      decode_(std::move(decode)) {}

LocalPair::~LocalPair() = default;

Result<RequestId> LocalPair::Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) {
  request.rendezvous = meeting_;
  request.rendezvous->room = next_room_.fetch_add(1);
  GenerateRequest prompt = request;
  TERN_ASSIGN_OR_RETURN(const RequestId prompt_id,
                        prefill_->Submit(std::move(prompt), std::make_shared<PrefillSink>(sink)));
  Result<RequestId> id = decode_->Submit(
      std::move(request), std::make_shared<DecodeSink>(std::move(sink), [this, prompt_id] {
        prefill_->Cancel(prompt_id);  // it may wait to be asked
      }));
  if (!id.ok()) prefill_->Cancel(prompt_id);
  return id;
}

void LocalPair::Cancel(RequestId id, int64_t keep_tokens) { decode_->Cancel(id, keep_tokens); }

void LocalPair::AbortRid(const std::string& rid, bool all) {
  decode_->AbortRid(rid, all);
  prefill_->AbortRid(rid, all);
}

void LocalPair::FlushCache(std::function<void(bool)> done) {
  decode_->FlushCache([prefill = prefill_.get(), done = std::move(done)](bool flushed) {
    if (!flushed) return done(false);
    prefill->FlushCache(done);
  });
}

void LocalPair::Drain(int64_t timeout_us) {
  const int64_t end_us = SystemClock().NowUs() + timeout_us;
  decode_->Drain(timeout_us);
  prefill_->Drain(std::max<int64_t>(end_us - SystemClock().NowUs(), 0));
}

EngineStats LocalPair::Stats() const {
  const EngineStats prefill = prefill_->Stats();
  EngineStats stats = decode_->Stats();
  stats.weight_bytes += prefill.weight_bytes;
  stats.kv_bytes += prefill.kv_bytes;
  stats.handoff.bootstrap_queue = prefill.handoff.bootstrap_queue;
  stats.handoff.inflight_queue = prefill.handoff.inflight_queue;
  stats.context_length =
      std::min({stats.context_length, prefill.context_length, prefill.total_tokens});
  return stats;
}

}  // namespace tern
