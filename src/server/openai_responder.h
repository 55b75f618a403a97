// OpenAiResponder: makes a whole answer or a stream out of a Generation; chat and text completions
// differ in the shapes, which a subclass gives. Order of a stream: per choice an opening chunk,
// text chunks, an end chunk; then usage, if asked for; then [DONE]. Owned by its Generation.
// Thread: the network thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/endpoint_context.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/sse.h"

namespace tern {

class OpenAiResponder : public GenerationListener {
 public:
  // `id_prefix`: of the id, when the request brings no rid. `choices`: params.n for each prompt.
  OpenAiResponder(const EndpointContext& context, const CompletionParams& params,
                  std::string_view id_prefix, const std::vector<ChoiceSpec>& choices,
                  std::shared_ptr<ResponseWriter> writer);

  void OnPromptLogprobs(size_t choice, const std::vector<PromptLogprob>& logprobs) override;
  void OnToken(size_t choice, const TokenEvent& token, std::string_view text) override;
  void OnEnd(size_t choice, std::string_view text, const ChoiceEnd& end) override;

 protected:
  // "chat.completion" or "text_completion".
  virtual std::string_view ObjectName(bool chunk) const = 0;
  // Fields are what a choice has between "index" and "logprobs", without commas around them.
  virtual std::string OpeningFields() const { return {}; }  // empty: no such chunk
  // Takes the text that a token, or the end (`last`), made certain; it may be empty. For a stream:
  // the fields of the chunks to send now, in order.
  virtual std::vector<std::string> AddText(size_t choice, std::string_view text, bool last) = 0;
  virtual std::string EndFields() const = 0;
  virtual std::string WholeFields(size_t choice) const = 0;
  virtual std::string_view FinishReason(size_t choice, const ChoiceEnd& end) const;
  virtual std::string_view TokenIdsName() const = 0;  // of an answer's own ids
  virtual int64_t ReasoningTokens(size_t /*choice*/) const { return 0; }
  virtual void AddPromptLogprobs(size_t /*choice*/, const std::vector<PromptLogprob>& /*prompt*/) {}
  virtual void AddLogprob(size_t choice, const TokenEvent& token) = 0;
  // The choice's log probabilities since the last call, as a JSON object.
  virtual std::string TakeLogprobs(size_t choice) = 0;

  // Adds the token's log probability, if there is one, to what the next chunk tells.
  void TellLogprob(size_t choice, const TokenEvent& token);
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool stream() const { return stream_; }

 private:
  struct Choice {
    int64_t prompt_tokens = 0;
    int64_t tokens = 0;
    int64_t cached_tokens = 0;
    int64_t untold_logprobs = 0;  // added, but not taken yet
    bool opened = false;
    std::vector<int32_t> prompt_ids, token_ids;  // not told yet, where they are asked for
    ChoiceEnd end;
  };

  std::string LogprobsOrNull(size_t choice);
  // The ids not told yet as fields with a comma before each; empty when none are asked for.
  std::string TakeTokenIds(size_t choice);
  void Open(size_t choice);
  void SendChunk(size_t choice, std::string_view fields, std::string_view logprobs,
                 std::string_view finish_reason, std::string_view matched_stop);
  void TakeText(size_t choice, std::string_view text, bool last);
  void SendWhole();
  Usage TotalUsage() const;

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<ResponseWriter> writer_;
  SseStream sse_;
  const bool stream_, include_usage_, continuous_usage_, logprobs_, token_ids_, cache_report_;
  const std::string id_, model_;
  const int64_t created_;
  const size_t choices_per_prompt_;
  std::vector<Choice> choices_;
  size_t ended_ = 0;
};

// n choices for each prompt, in order. Errors: those of ResolveMaxTokens and CheckPromptLogprobs.
Result<std::vector<ChoiceSpec>> MakeChoices(const CompletionParams& params, int64_t context_length,
                                            std::vector<std::vector<int32_t>> prompts);

}  // namespace tern
