// Sequence: the engine's state of one live request: its tokens, how many of their KV rows are
// written, and the pages that hold them. Owner: the scheduler's queues. Thread: the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/handoff.h"
#include "engine/prompt_logprobs.h"
#include "engine/request.h"
#include "kv/kv_cache.h"

namespace tern {

struct Sequence {
  RequestId id = 0;  // grows with arrival: a smaller id is an older request
  std::string rid;
  CacheNamespace space;
  uint64_t session = 0;  // whose pages the prefix cache keeps longer; 0: nobody's
  SamplingParams sampling;
  uint64_t seed = 0;
  bool return_logprobs = false;
  int64_t top_logprobs = 0;
  std::vector<int32_t> logprob_token_ids;
  std::unique_ptr<PromptLogprobs> prompt_logprobs;  // null: not asked for, or told already
  std::shared_ptr<TokenMask> mask;
  std::shared_ptr<TokenSink> sink;

  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;  // `tokens` never grows beyond this
  KvLease lease;
  int64_t computed = 0;        // rows [0, computed) are written
  int64_t cached_tokens = -1;  // of the prompt, found at the first admission; -1: not admitted yet
  int64_t retractions = 0;
  // After a page of the sequence failed and was given back: its generated tokens before this
  // position are derived once more, and must come out as they were sent.
  int64_t rederive_end = 0;
  std::shared_ptr<TokenMask> rederive_mask;
  int64_t heals = 0;  // since its last new token
  int64_t arrival_us = 0, first_token_us = 0, last_token_us = 0;
  std::optional<Rendezvous> rendezvous;      // absent: this engine computes prompt and answer
  std::unique_ptr<SequenceHandoff> handoff;  // as long as the other side takes part

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated() const { return size() - prompt_tokens; }
  // Which of rows [first, last) choose a token that is to be derived once more.
  std::pair<int64_t, int64_t> RederiveRows(int64_t first, int64_t last) const {
    const int64_t begin = std::max(first, prompt_tokens - 1);
    return {begin, std::max(begin, std::min(last, rederive_end - 1))};
  }
  // Only the row of the newest token is missing, and decode writes it. Otherwise the sequence has
  // prompt rows to write, or generated ones that a retraction lost.
  bool decoding() const { return computed >= prompt_tokens && computed + 1 == size(); }
};

}  // namespace tern
