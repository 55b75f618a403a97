#include "engine/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/trace.h"

namespace tern {
namespace {

constexpr int64_t kMaxTopLogprobs = 20;
constexpr size_t kMaxLogprobTokenIds = 256;
constexpr int64_t kMaxHeals = 8;  // without a new token

// Grouped-query attention computes prompt and generated rows alike; MLA does not.
bool HasOneRowForm(const ModelInfo& info) {
  return std::all_of(info.kv_layers.begin(), info.kv_layers.end(), [](const KvLayerSpec& layer) {
    return layer.kind == KvLayerSpec::Kind::kGqa;
  });
}

// What a page's chain begins with: rows of another model or format are no prefix.
uint64_t ModelKey(const ModelInfo& info, KvFormat format) {
  return Hash64(fmt::format("{} {} {} {} {}", info.architecture, info.model_type, info.vocab_size,
                            info.kv_layers.size(), KvFormatName(format)));
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::Create(Model& model, ThreadPool& pool,
                                                       const EngineOptions& options,
                                                       const MemoryPlan& plan, uint64_t boot_nonce,
                                                       const Clock& clock, EngineMetrics* metrics) {
  const ModelInfo& info = model.info();
  TERN_ASSIGN_OR_RETURN(PageFormat format,
                        PageFormat::Make(info.kv_layers, options.kv_format, options.page_tokens,
                                         options.kv_bf16_layers));
  const KvCache::Options kv_options = {
      .reuse_prefixes = !options.disable_radix_cache,
      .reuse_decode_rows = HasOneRowForm(info) || options.deterministic_inference,
      .integrity = options.integrity.mode,
      .model_id = ModelKey(info, format.format()),
      .max_protected_pages =
          static_cast<int64_t>(options.kv_session_fraction * static_cast<double>(plan.pages)),
      .verify_interval_us = options.kv_verify_interval_us,
      .threads = &pool,
      .clock = &clock};
  TERN_ASSIGN_OR_RETURN(std::unique_ptr<KvCache> kv,
                        KvCache::Create(std::move(format), plan.pages, boot_nonce, kv_options));
  const uint64_t seed = options.random_seed != 0 ? options.random_seed : RandomSeed();
  std::unique_ptr<EngineCore> core(
      new EngineCore(model, pool, options, plan, seed, clock, metrics, std::move(kv)));
  if (core->logits_.data() == nullptr) return ResourceExhausted("no memory for logits");
  return core;
}

EngineCore::EngineCore(Model& model, ThreadPool& pool, const EngineOptions& options,
                       const MemoryPlan& plan, uint64_t random_seed, const Clock& clock,
                       EngineMetrics* metrics, std::unique_ptr<KvCache> kv)
    : model_(model),
      pool_(pool),
      clock_(clock),
      metrics_(metrics),
      plan_(plan),
      random_seed_(random_seed),
      integrity_action_(options.integrity.action),
      max_sequence_tokens_(std::min(plan.context_length, plan.total_tokens)),
      max_running_requests_(options.max_running_requests),
      kv_(std::move(kv)),
      scheduler_({.max_running_requests = options.max_running_requests,
                  .chunk_tokens = options.chunked_prefill_size},
                 *kv_),
      guard_(options.integrity, *kv_, scheduler_.queues(), clock,
             /*verify_all=*/options.kv_verify_interval_us == 0),
      fitted_pages_(plan.pages),
      logits_(
          static_cast<size_t>(LogitRows(options.max_running_requests,
                                        options.integrity.action == IntegrityAction::kRecompute)) *
          static_cast<size_t>(model.info().vocab_size) * sizeof(float)) {
  batch_.set_one_row_form(options.deterministic_inference);
}

Status EngineCore::Validate(const GenerateRequest& request) const {
  TERN_RETURN_IF_ERROR(ValidateSampling(request.sampling));
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs) {
    return InvalidArgument(fmt::format("top_logprobs must be in 0..{}", kMaxTopLogprobs));
  }
  if (request.logprob_token_ids.size() > kMaxLogprobTokenIds) {
    return InvalidArgument(fmt::format("token_ids_logprob: at most {} ids", kMaxLogprobTokenIds));
  }
  if (request.tokens.empty()) return InvalidArgument("the prompt is empty");
  if (request.prompt_logprobs_from.value_or(0) < 0) {
    return InvalidArgument("prompt_logprobs_from must be 0 or more");
  }
  const int64_t vocab = model_.info().vocab_size;
  for (const int32_t token : request.logprob_token_ids) {
    if (token < 0 || token >= vocab) {
      return InvalidArgument(
          fmt::format("token_ids_logprob: {} is not in 0..{}", token, vocab - 1));
    }
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    if (token >= vocab) {
      return InvalidArgument(fmt::format("logit_bias: {} is not in 0..{}", token, vocab - 1));
    }
  }
  for (const int32_t token : request.tokens) {
    if (token < 0 || token >= vocab) {
      return InvalidArgument(fmt::format("token id {} is not in 0..{}", token, vocab - 1));
    }
  }
  const int64_t needed =
      static_cast<int64_t>(request.tokens.size()) + (request.sampling.max_new_tokens > 0 ? 1 : 0);
  if (needed > max_sequence_tokens_) {
    return InvalidArgument(fmt::format(
        "the prompt has {} tokens; with the answer at most {} fit (context {}, KV cache {})",
        request.tokens.size(), max_sequence_tokens_, plan_.context_length, plan_.total_tokens));
  }
  return OkStatus();
}

void EngineCore::Submit(RequestId id, GenerateRequest request, std::shared_ptr<TokenSink> sink,
                        int64_t arrival_us) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->rid = std::move(request.rid);
  sequence->space = {std::move(request.extra_key), std::move(request.cache_salt)};
  if (!request.session.empty()) {  // a session of one tenant is nobody else's
    sequence->session =
        std::max<uint64_t>(Hash64(request.session, ChainRoot(0, sequence->space)), 1);
  }
  sequence->sampling = std::move(request.sampling);
  sequence->seed = sequence->sampling.seed.value_or(Mix64(random_seed_ + id));
  sequence->return_logprobs = request.return_logprobs;
  sequence->top_logprobs = request.top_logprobs;
  sequence->logprob_token_ids = std::move(request.logprob_token_ids);
  sequence->mask = std::move(request.mask);
  sequence->sink = std::move(sink);
  sequence->tokens = std::move(request.tokens);
  sequence->prompt_tokens = sequence->size();
  if (request.prompt_logprobs_from) {
    sequence->prompt_logprobs =
        std::make_unique<PromptLogprobs>(*request.prompt_logprobs_from, sequence->prompt_tokens);
  }
  const int64_t room = max_sequence_tokens_ - sequence->size();
  sequence->max_tokens = sequence->size() + std::min(room, sequence->sampling.max_new_tokens);
  // No growth from token to token: rows of the cache take far more than four bytes each.
  sequence->tokens.reserve(static_cast<size_t>(sequence->max_tokens));
  sequence->arrival_us = arrival_us;
  if (handoff_ != nullptr) sequence->rendezvous = std::move(request.rendezvous);
  Sequence& added = *sequence;
  scheduler_.Add(std::move(sequence));
  if (added.rendezvous) {
    if (const Status status = handoff_->Begin(added); !status.ok()) EndWithError(id, status);
  }
  FitToUsablePages();
}

bool EngineCore::Step() {
  const bool moved = StepHandoff();
  if (queues().running.empty() && queues().waiting.empty()) return moved;
  const int64_t start_us = clock_.NowUs();
  const int64_t sampled_before = totals_.sampled_tokens;
  const int64_t prefill_before = totals_.prefill_tokens;
  scheduler_.FillBatch(&batch_);
  if (batch_.empty()) return EndStuck() || moved;
  NoteAdmissions();
  Dismiss(guard_.BeforePass(batch_));
  if (batch_.empty()) return true;
  if (const Status status = Forward(); !status.ok()) {
    EndFailed(status);
    return true;
  }
  Dismiss(guard_.AfterPass(batch_));
  GatherPromptLogprobs(batch_, logits_.as<float>(), model_.info().vocab_size, pool_);
  Rederive();
  const int64_t sample_start_us = clock_.NowUs();
  Sample();
  step_times_.sample_us += clock_.NowUs() - sample_start_us;
  Deliver();

  const int64_t step_us = clock_.NowUs() - start_us;
  step_times_.total_us += step_us;
  ++step_times_.steps;
  // The rate over the last second of work: idle time between steps does not count.
  if (window_us_ >= 1'000'000) window_us_ = window_tokens_ = 0;
  if (totals_.prefill_tokens > prefill_before) totals_.prefill_busy_us += step_us;
  window_us_ += step_us;
  window_tokens_ += totals_.sampled_tokens - sampled_before;
  batch_.Clear();  // some of its sequences have ended
  Dismiss(guard_.AfterStep(clock_.NowUs() - start_us));
  return true;
}

void EngineCore::NoteAdmissions() {
  totals_.retractions += batch_.retracted();
  for (const BatchEntry& entry : batch_.entries()) {
    const Sequence& sequence = *entry.sequence;
    if (!entry.admitted || sequence.retractions > 0) continue;
    totals_.prompt_tokens += sequence.prompt_tokens;
    totals_.cached_prompt_tokens += sequence.cached_tokens;
    if (metrics_ != nullptr) metrics_->ObserveQueueTime(clock_.NowUs() - sequence.arrival_us);
  }
}

void EngineCore::Dismiss(std::span<const IntegrityVictim> victims) {
  // A page of nobody may have failed: the pool is smaller all the same.
  if (victims.empty() && kv_->usable_pages() == fitted_pages_) return;
  int64_t ended = 0;
  for (const IntegrityVictim& victim : victims) {
    std::erase_if(batch_.entries(),
                  [&](const BatchEntry& entry) { return entry.sequence->id == victim.id; });
    const char* check = KvViolationName(victim.violation.kind);
    const auto page = static_cast<uint32_t>(victim.violation.page);
    if (integrity_action_ == IntegrityAction::kRecompute && Heal(victim.id)) {
      TERN_LOG(kWarning, "request {}: KV page {} failed its {} check; computed anew", victim.id,
               page, check);
      continue;
    }
    TERN_LOG(kWarning, "request {}: KV page {} failed its {} check", victim.id, page, check);
    EndWithError(victim.id, DataLoss(fmt::format("KV page {} failed its {} check", page, check)));
    ++ended;
  }
  if (ended > 0) guard_.NoteEnded(ended);
  FitToUsablePages();
  std::erase_if(batch_.entries(), [this](const BatchEntry& entry) {
    const auto& running = queues().running;
    return std::none_of(running.begin(), running.end(),
                        [&](const auto& live) { return live.get() == entry.sequence; });
  });
}

bool EngineCore::Heal(RequestId id) {
  Sequence* const sequence = scheduler_.Find(id);
  if (sequence->heals >= kMaxHeals) return false;
  const bool restarts = sequence->mask == nullptr || sequence->mask->Restarted() != nullptr;
  if (sequence->generated() > 0 && !restarts) return false;
  if (scheduler_.Retract(id) == nullptr) return false;
  ++sequence->heals;
  sequence->rederive_end = sequence->generated() > 0 ? sequence->size() : 0;
  guard_.NoteHealed();
  return true;
}

void EngineCore::EndFailed(const Status& status) {
  for (const BatchEntry& entry : batch_.entries()) {
    Sequence& sequence = *entry.sequence;
    if (kv_->faults().commit_failed_pass) {
      kv_->Commit(sequence.space, sequence.tokens, sequence.computed + entry.rows,
                  sequence.prompt_tokens, &sequence.lease);
    }
    EndWithError(sequence.id, status);
  }
}

// With nothing running, the oldest request fits by construction. When it does not, pages have been
// lost: it gets an error rather than wait for ever. False: pages are with requests that wait for
// another engine, which will give them back.
bool EngineCore::EndStuck() {
  totals_.retractions += batch_.retracted();
  if (!queues().running.empty() || batch_.retracted() > 0) return true;
  const auto& parked = queues().parked;
  if (std::ranges::any_of(parked, [](const auto& one) { return one->lease.pages() > 0; })) {
    return false;
  }
  const size_t waiting = queues().waiting.size();
  FitToUsablePages();
  if (queues().waiting.size() != waiting) return true;
  EndWithError(queues().waiting.front()->id, Internal("the KV cache has lost pages"));
  return true;
}

Status EngineCore::Forward() {
  TERN_TRACE("engine.forward");
  try {
    const ForwardBatch batch = batch_.Build(*kv_);
    const int64_t start_us = clock_.NowUs();
    TERN_RETURN_IF_ERROR(model_.Forward(batch, logits_.as<float>()));
    step_times_.forward_us += clock_.NowUs() - start_us;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of memory in the forward pass");
  }
  return OkStatus();
}

// For the token at `position`, from a row of the logits. Banned tokens and a mask come on top.
SampleRequest EngineCore::RequestFor(const Sequence& sequence, int64_t position,
                                     int64_t logit_row) const {
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  return {.logits = {logits_.as<float>() + static_cast<size_t>(logit_row) * vocab, vocab},
          .params = &sequence.sampling,
          .seed = sequence.seed,
          .position = position,
          .tokens = std::span(sequence.tokens).first(static_cast<size_t>(position)),
          .prompt_tokens = sequence.prompt_tokens};
}

void EngineCore::Rederive() {
  std::vector<RequestId> changed;
  for (const BatchEntry& entry : batch_.entries()) {
    Sequence& sequence = *entry.sequence;
    if (sequence.rederive_end == 0) continue;
    const int64_t end = sequence.computed + entry.rows;
    const int64_t first = sequence.RederiveRows(sequence.computed, end).first;
    if (sequence.mask != nullptr && first + 1 == sequence.prompt_tokens) {
      sequence.rederive_mask = sequence.mask->Restarted();
    }
    for (int64_t i = 0; i < entry.rederive_rows; ++i) {
      const int64_t position = first + i + 1;
      SampleRequest request =
          RequestFor(sequence, position, entry.first_logit_row + entry.prompt_logit_rows + i);
      std::vector<int32_t> banned;
      if (position - sequence.prompt_tokens < sequence.sampling.min_new_tokens) {
        AppendStopTokens(sequence, &banned);
      }
      request.banned = banned;
      std::vector<uint32_t> allowed;
      if (sequence.rederive_mask != nullptr) {
        allowed.resize((request.logits.size() + 31) / 32);
        sequence.rederive_mask->Fill(allowed);
        request.allowed = allowed;
      }
      const Result<SampledToken> token = SampleToken(request);
      const int32_t sent = sequence.tokens[static_cast<size_t>(position)];
      if (!token.ok() || token->token != sent) {
        changed.push_back(sequence.id);
        break;
      }
      if (sequence.rederive_mask != nullptr) sequence.rederive_mask->Accept(sent);
    }
    if (end >= sequence.rederive_end) {
      sequence.rederive_end = 0;
      sequence.rederive_mask = nullptr;
    }
  }
  for (const RequestId id : changed) {
    std::erase_if(batch_.entries(),
                  [id](const BatchEntry& entry) { return entry.sequence->id == id; });
    EndWithError(id, DataLoss("computed anew after a KV page failed, it differs from what was "
                              "sent already"));
  }
  if (!changed.empty()) guard_.NoteEnded(static_cast<int64_t>(changed.size()));
}

void EngineCore::AppendStopTokens(const Sequence& sequence, std::vector<int32_t>* tokens) const {
  const std::vector<int32_t>& stop = sequence.sampling.stop_token_ids;
  const std::vector<int32_t>& eos = model_.info().eos_token_ids;
  tokens->insert(tokens->end(), stop.begin(), stop.end());
  if (!sequence.sampling.ignore_eos) tokens->insert(tokens->end(), eos.begin(), eos.end());
}

// One result for each entry that samples, in order. Rows of logits are independent: they share the
// pool's threads.
void EngineCore::Sample() {
  TERN_TRACE("engine.sample");
  const size_t vocab = static_cast<size_t>(model_.info().vocab_size);
  sample_requests_.clear();
  for (const BatchEntry& entry : batch_.entries()) {
    if (!entry.samples()) continue;
    const Sequence& sequence = *entry.sequence;
    const size_t row = sample_requests_.size();
    SampleRequest request =
        RequestFor(sequence, sequence.size(),
                   entry.first_logit_row + entry.prompt_logit_rows + entry.rederive_rows);
    request.return_logprob = sequence.return_logprobs;
    request.top_logprobs = sequence.top_logprobs;
    request.logprob_token_ids = sequence.logprob_token_ids;
    if (bans_.size() <= row) bans_.resize(row + 1);
    if (masks_.size() <= row) masks_.resize(row + 1);
    bans_[row].clear();
    if (sequence.generated() < sequence.sampling.min_new_tokens) {
      AppendStopTokens(sequence, &bans_[row]);
    }
    if (sequence.mask != nullptr) {
      masks_[row].assign((vocab + 31) / 32, 0u);
      sequence.mask->Fill(masks_[row]);
    } else {
      masks_[row].clear();
    }
    sample_requests_.push_back(request);
  }
  const size_t count = sample_requests_.size();
  for (size_t row = 0; row < count; ++row) {  // only now: the vectors may have moved
    sample_requests_[row].banned = bans_[row];
    sample_requests_[row].allowed = masks_[row];
  }
  sampled_.resize(count, SampledToken{});
  sampler_memory_.resize(static_cast<size_t>(pool_.threads()));
  pool_.ParallelFor(static_cast<int64_t>(count), [&](int64_t i, int worker) {
    Result<SampledToken>& result = sampled_[static_cast<size_t>(i)];
    try {  // this may be one of the pool's threads
      result = SampleToken(sample_requests_[static_cast<size_t>(i)],
                           sampler_memory_[static_cast<size_t>(worker)]);
    } catch (const std::bad_alloc&) {
      sampler_memory_[static_cast<size_t>(worker)] = {};
      result = ResourceExhausted("out of memory in the sampler");
    }
  });
}

void EngineCore::Deliver() {
  size_t next = 0;
  for (const BatchEntry& entry : batch_.entries()) {
    Sequence& sequence = *entry.sequence;
    const bool samples = entry.samples();
    const Result<SampledToken>* token = samples ? &sampled_[next++] : nullptr;
    totals_.prefill_tokens +=
        std::clamp<int64_t>(sequence.prompt_tokens - sequence.computed, 0, entry.rows);
    sequence.computed += entry.rows;
    if (!DeliverPromptLogprobs(sequence)) continue;
    if (handoff_ != nullptr) handoff_->NoteComputed(sequence);
    if (samples) {
      DeliverToken(sequence, *token);
    } else if (sequence.computed == sequence.size()) {  // max_new_tokens is 0
      End(sequence.id, {.reason = FinishEvent::Reason::kLength});
    }
  }
}

bool EngineCore::DeliverPromptLogprobs(Sequence& sequence) {
  if (sequence.prompt_logprobs == nullptr) return true;
  if (!sequence.prompt_logprobs->status().ok()) {
    EndWithError(sequence.id, Status(sequence.prompt_logprobs->status()));
    return false;
  }
  if (sequence.computed < sequence.prompt_tokens) return true;
  sequence.sink->OnPromptLogprobs(std::exchange(sequence.prompt_logprobs, nullptr)->Take());
  return true;
}

void EngineCore::DeliverToken(Sequence& sequence, const Result<SampledToken>& sampled) {
  if (!sampled.ok()) return EndWithError(sequence.id, sampled.status());
  // From now on others may share the prompt's pages.
  kv_->Commit(sequence.space, sequence.tokens, sequence.prompt_tokens, sequence.prompt_tokens,
              &sequence.lease);
  if (handoff_ != nullptr && handoff_->TakeFirstToken(sequence, *sampled)) return;
  const int32_t token = sampled->token;
  if (sequence.mask != nullptr) sequence.mask->Accept(token);
  ++totals_.sampled_tokens;
  const int64_t now_us = clock_.NowUs();
  if (sequence.generated() == 0) sequence.first_token_us = now_us;
  if (metrics_ != nullptr && sequence.generated() == 0) {
    metrics_->ObserveFirstToken(now_us - sequence.arrival_us);
  } else if (metrics_ != nullptr) {
    metrics_->ObserveTokenGap(now_us - sequence.last_token_us);
  }
  sequence.last_token_us = now_us;
  TokenEvent event = {.token = token,
                      .index = sequence.generated(),
                      .cached_tokens = std::max<int64_t>(sequence.cached_tokens, 0)};
  if (sequence.return_logprobs) {
    event.logprob = TokenLogprob{token, sampled->logprob};
    event.top_logprobs = sampled->top_logprobs;
    event.asked_logprobs = sampled->asked_logprobs;
  }
  if (IsStopToken(sequence, token)) {
    FinishEvent finish = {.reason = FinishEvent::Reason::kStop, .matched_token = token};
    if (sequence.return_logprobs) finish.matched_logprobs = std::move(event);
    return End(sequence.id, std::move(finish));
  }
  sequence.heals = 0;
  sequence.tokens.push_back(token);
  sequence.sink->OnToken(std::move(event));
  if (sequence.size() >= sequence.max_tokens) {
    End(sequence.id, {.reason = FinishEvent::Reason::kLength});
  }
}

bool EngineCore::IsStopToken(const Sequence& sequence, int32_t token) const {
  const auto contains = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return contains(sequence.sampling.stop_token_ids) ||
         (!sequence.sampling.ignore_eos && contains(model_.info().eos_token_ids));
}

void EngineCore::Cancel(RequestId id, int64_t keep_tokens) {
  Sequence* sequence = scheduler_.Find(id);
  if (sequence == nullptr) return;
  if (keep_tokens < 0) return End(id, {.reason = FinishEvent::Reason::kAborted});
  const int64_t kept = std::min(keep_tokens, sequence->generated());
  sequence->tokens.resize(static_cast<size_t>(sequence->prompt_tokens + kept));
  End(id, {.reason = FinishEvent::Reason::kStop});
}

void EngineCore::AbortRid(const std::string& rid, bool all) {
  if (rid.empty() && !all) return;
  for (const RequestId id : LiveIds()) {
    if (all || scheduler_.Find(id)->rid == rid) Cancel(id, -1);
  }
}

void EngineCore::EndAll(const Status& status) {
  for (const RequestId id : LiveIds()) EndWithError(id, status);
}

std::vector<RequestId> EngineCore::LiveIds() const {
  std::vector<RequestId> ids;
  queues().ForEach([&](const Sequence& sequence) { ids.push_back(sequence.id); });
  return ids;
}

void EngineCore::End(RequestId id, FinishEvent event) {
  const std::unique_ptr<Sequence> sequence = scheduler_.Remove(id);
  TERN_CHECK(sequence != nullptr);
  const bool finished =
      event.reason == FinishEvent::Reason::kStop || event.reason == FinishEvent::Reason::kLength;
  if (finished) {
    // Rows behind the last token that counts are not offered.
    try {
      kv_->CommitLast(sequence->space, sequence->tokens,
                      std::min(sequence->computed, sequence->size()), sequence->prompt_tokens,
                      sequence->session, &sequence->lease);
    } catch (const std::bad_alloc&) {  // others will not find the rows; the sink must hear the end
      TERN_LOG(kWarning, "request {}: no memory to cache its pages", id);
    }
  }
  if (finished) guard_.NoteFinished(*sequence);
  if (handoff_ != nullptr) {
    const bool gone = event.reason == FinishEvent::Reason::kAborted;
    handoff_->Forget(*sequence, gone ? Cancelled("the client is gone") : event.status);
  }
  kv_->Release(&sequence->lease);
  event.prompt_tokens = sequence->prompt_tokens;
  event.cached_tokens = std::max<int64_t>(sequence->cached_tokens, 0);
  event.completion_tokens = sequence->generated() + (event.matched_token.has_value() ? 1 : 0);
  event.retractions = sequence->retractions;
  ++(finished ? totals_.finished_requests : totals_.aborted_requests);
  // Only now it is known how many count: a stop string may have ended before the newest token.
  totals_.generated_tokens += event.completion_tokens;
  if (metrics_ != nullptr) {
    const int64_t now_us = clock_.NowUs();
    metrics_->ObserveFinished(now_us - sequence->arrival_us, now_us - sequence->first_token_us,
                              event.prompt_tokens, event.completion_tokens);
  }
  sequence->sink->OnFinish(std::move(event));
}

void EngineCore::EndWithError(RequestId id, const Status& status) {
  End(id, {.reason = FinishEvent::Reason::kError, .status = status});
}

void EngineCore::FitToUsablePages() {
  fitted_pages_ = kv_->usable_pages();
  if (fitted_pages_ == plan_.pages) return;
  const int64_t capacity = kv_->usable_pages() * kv_->format().page_tokens();
  for (const RequestId id : LiveIds()) {
    Sequence& sequence = *scheduler_.Find(id);
    const bool wants_more = sequence.size() < sequence.max_tokens;
    sequence.max_tokens = std::min(sequence.max_tokens, capacity);
    if (sequence.size() > capacity || (wants_more && sequence.size() >= capacity)) {
      EndWithError(id, ResourceExhausted(fmt::format(
                           "{} tokens no longer fit: {} of {} KV pages are in quarantine",
                           sequence.size(), plan_.pages - kv_->usable_pages(), plan_.pages)));
    }
  }
}

void EngineCore::RefuseRendezvous(const Rendezvous& rendezvous, const Status& why) {
  if (handoff_ != nullptr) handoff_->Refuse(rendezvous, why);
}

bool EngineCore::FlushCache() {
  if (!idle()) return false;
  kv_->Flush();
  kv_->ReadmitQuarantined();  // no request lives: nobody is left who could write to one
  return true;
}

EngineStats EngineCore::Stats() const {
  EngineStats stats = totals_;
  stats.max_running_requests = max_running_requests_;
  stats.running_requests = static_cast<int64_t>(queues().running.size());
  stats.queued_requests = static_cast<int64_t>(queues().waiting.size());
  for (const auto& sequence : queues().waiting) {
    stats.queued_tokens += sequence->size();
    stats.retracted_requests += sequence->retractions > 0 ? 1 : 0;
  }
  for (const auto& parked : queues().parked) {
    ++(parked->lease.pages() > 0 ? stats.running_requests : stats.queued_requests);
  }
  if (handoff_ != nullptr) stats.handoff = handoff_->Stats();
  const int64_t page_tokens = kv_->format().page_tokens();
  stats.total_tokens = plan_.total_tokens;
  stats.cached_tokens = kv_->evictable_pages() * page_tokens;
  stats.free_tokens = kv_->pool().count(PageState::kFree) * page_tokens;
  stats.protected_tokens = kv_->protected_pages() * page_tokens;
  stats.used_tokens = kv_->usable_pages() * page_tokens - stats.cached_tokens - stats.free_tokens;
  stats.context_length = plan_.context_length;
  stats.generated_tokens_per_s =
      window_us_ > 0 ? static_cast<double>(window_tokens_) * 1e6 / static_cast<double>(window_us_)
                     : 0;
  stats.integrity = guard_.Stats();
  stats.weight_bytes = plan_.weight_bytes;
  stats.kv_bytes = plan_.kv_bytes;
  return stats;
}

Status EngineCore::CheckInvariants() const {
  std::vector<const KvLease*> leases;
  for (const auto& sequence : queues().running) leases.push_back(&sequence->lease);
  for (const auto& sequence : queues().parked) leases.push_back(&sequence->lease);
  for (const auto& sequence : queues().waiting) {
    if (sequence->lease.pages() > 0) return Internal("a waiting request holds KV pages");
  }
  return kv_->CheckInvariants(leases);
}

}  // namespace tern
