// Request: what the engine is asked for, in token ids; and what it answers.
// The engine sees neither text nor JSON: stop strings are matched by the server, which posts
// Cancel(at token). Thread: values; a TokenSink is called on the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/token_mask.h"

namespace tern {

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = -1;        // -1 or 0: all
  double top_p = 1.0;
  double min_p = 0.0;
  std::optional<uint64_t> seed;  // absent: a random one
  int64_t max_new_tokens = 128;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  // Changes to the logits, before temperature; SampleToken says how.
  double presence_penalty = 0, frequency_penalty = 0;  // in [-2, 2]
  double repetition_penalty = 1;                       // in (0, 2]
  std::vector<std::pair<int32_t, float>> logit_bias;   // token, in [-100, 100]
  int64_t min_new_tokens = 0;  // stop and EOS tokens can't come before so many are there
};

// Where the prefill and the decode half of one request meet: the prefill worker's bootstrap port,
// and a number that both halves bring (SGLang's bootstrap_host, _port, _room).
struct Rendezvous {
  std::string host;
  int port = 0;
  uint64_t room = 0;
};

struct GenerateRequest {
  std::string rid;              // repeated rids are accepted (routers retry)
  std::vector<int32_t> tokens;  // the prompt, not empty
  SamplingParams sampling;
  bool return_logprobs = false;  // of generated tokens
  // Log probabilities of prompt tokens from this position on: TokenSink::OnPromptLogprobs. The rows
  // from there are computed, not taken from the prefix cache. Absent: none.
  std::optional<int64_t> prompt_logprobs_from;
  int64_t top_logprobs = 0;  // of the most likely tokens at each such position, at most 20
  std::vector<int32_t> logprob_token_ids;  // and of these, at most 256
  std::string extra_key;                   // with cache_salt: separates tenants' prefixes
  std::string cache_salt;
  std::string session;  // names a conversation, whose pages stay cached longer; "": none
  std::shared_ptr<TokenMask> mask;       // null: every token is allowed
  std::optional<Rendezvous> rendezvous;  // for engines whose role is prefill or decode
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural log, of the unscaled distribution
};

// One generated token.
struct TokenEvent {
  int32_t token = 0;
  int64_t index = 0;          // 0 for the first generated token
  int64_t cached_tokens = 0;  // as in FinishEvent
  std::optional<TokenLogprob> logprob;
  std::vector<TokenLogprob> top_logprobs;    // most likely first
  std::vector<TokenLogprob> asked_logprobs;  // of logprob_token_ids, in their order
};

// What the model thought of one prompt token, given those before it.
struct PromptLogprob {
  TokenLogprob token;
  std::vector<TokenLogprob> top, asked;  // as in TokenEvent
};

struct FinishEvent {
  enum class Reason { kStop, kLength, kAborted, kError } reason = Reason::kStop;
  std::optional<int32_t>
      matched_token;  // kStop: the stop or EOS token (never sent as a TokenEvent)
  std::optional<TokenEvent> matched_logprobs;  // of that token, if they are asked for
  Status status;                               // kError
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt, found in the prefix cache
  int64_t completion_tokens = 0;  // generated, stop token included
  int64_t retractions = 0;
};

// Receives one request's events, in order; OnFinish is the last, exactly once. Called on the engine
// thread: must not block.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // If the request asks for them, once and before the first token: of the prompt's positions
  // prompt_logprobs_from + 1 (position p's token is judged by row p - 1) to the last. Not called
  // for a request that fails.
  virtual void OnPromptLogprobs(std::vector<PromptLogprob> /*logprobs*/) {}
  virtual void OnToken(TokenEvent event) = 0;
  virtual void OnFinish(FinishEvent event) = 0;
};

using RequestId = uint64_t;  // unique in the process; a rid need not be

}  // namespace tern
