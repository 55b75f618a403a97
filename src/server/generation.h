// Generation: one HTTP request's way through the engine: one or more choices, each a prompt of its
// own, whose tokens become text on the network thread. Stop strings are matched here: the engine is
// told how many tokens count, and what follows them is never seen.
// Owned by the engine's sinks until the last choice has ended. Thread: the network thread; tokens
// arrive on the engine thread and are posted over.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "engine/engine.h"
#include "server/stop_matcher.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace tern {

struct ChoiceSpec {
  GenerateRequest request;
  std::vector<std::string> stops;
  std::shared_ptr<const StopRegexes> stop_regexes;  // null: none
  bool no_stop_trim = false;
  bool skip_special_tokens = true;
  std::vector<int32_t> shown_special_tokens;  // these are text nevertheless
};

struct ChoiceEnd {
  enum class Reason { kStop, kLength, kAborted, kError } reason = Reason::kStop;
  std::optional<int32_t> matched_token;
  std::optional<TokenEvent> matched_logprobs;  // of that token, if they are asked for
  std::optional<std::string> matched_string;   // or the expression
  Status status;                               // kError
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;  // up to the one that completed the stop string
  int64_t retractions = 0;
  double latency_s = 0;
};

// Makes an answer out of what a Generation reports. Called on the network thread.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  // As TokenSink::OnPromptLogprobs.
  virtual void OnPromptLogprobs(size_t /*choice*/, const std::vector<PromptLogprob>& /*logprobs*/) {
  }
  // A token that counts, and the text that became certain with it: often empty.
  virtual void OnToken(size_t choice, const TokenEvent& token, std::string_view text) = 0;
  // `text`: what was still held back. Once per choice; the last of them, or the first that ends
  // with kError, ends the generation.
  virtual void OnEnd(size_t choice, std::string_view text, const ChoiceEnd& end) = 0;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits all choices; when one is refused, those before it are cancelled and the listener hears
  // nothing. Errors: those of Engine::Submit.
  static Result<std::shared_ptr<Generation>> Start(Engine& engine, Executor& network,
                                                   std::shared_ptr<const Tokenizer> tokenizer,
                                                   std::vector<ChoiceSpec> choices,
                                                   std::shared_ptr<GenerationListener> listener,
                                                   const Clock& clock = SystemClock());

  // The client is gone: ends every choice; the listener hears no more.
  void Cancel();

 private:
  class Sink;
  struct Choice {
    Choice(const ChoiceSpec& spec, const std::shared_ptr<const Tokenizer>& tokenizer)
        : detokenizer(tokenizer, spec.skip_special_tokens, spec.shown_special_tokens),
          stops(spec.stops, spec.stop_regexes),
          no_stop_trim(spec.no_stop_trim) {}
    RequestId id = 0;
    Detokenizer detokenizer;
    StopMatcher stops;
    const bool no_stop_trim;
    int64_t tokens = 0;
    bool ended = false;
  };

  Generation(Engine& engine, Executor& network, std::shared_ptr<GenerationListener> listener,
             const Clock& clock)
      : engine_(engine),
        network_(network),
        listener_(std::move(listener)),
        clock_(clock),
        start_us_(clock.NowUs()) {}

  void HandlePromptLogprobs(size_t index, const std::vector<PromptLogprob>& logprobs);
  void HandleToken(size_t index, const TokenEvent& event);
  void HandleFinish(size_t index, const FinishEvent& event);

  Engine& engine_;
  Executor& network_;
  std::shared_ptr<GenerationListener> listener_;  // null once cancelled
  const Clock& clock_;
  const int64_t start_us_;
  std::vector<Choice> choices_;
};

}  // namespace tern
