#include "server/generation.h"

#include "base/trace.h"

namespace tern {

// Carries one choice's events from the engine thread to the network thread.
class Generation::Sink final : public TokenSink {
 public:
  Sink(std::shared_ptr<Generation> generation, size_t index)
      : generation_(std::move(generation)), index_(index) {}
  void OnPromptLogprobs(std::vector<PromptLogprob> logprobs) override {
    generation_->network_.Post(
        [generation = generation_, index = index_, logprobs = std::move(logprobs)] {
          generation->HandlePromptLogprobs(index, logprobs);
        });
  }
  void OnToken(TokenEvent event) override {
    generation_->network_.Post(
        [generation = generation_, index = index_, event = std::move(event)] {
          generation->HandleToken(index, event);
        });
  }
  void OnFinish(FinishEvent event) override {
    generation_->network_.Post(
        [generation = generation_, index = index_, event = std::move(event)] {
          generation->HandleFinish(index, event);
        });
  }

 private:
  const std::shared_ptr<Generation> generation_;
  const size_t index_;
};

Result<std::shared_ptr<Generation>> Generation::Start(Engine& engine, Executor& network,
                                                      std::shared_ptr<const Tokenizer> tokenizer,
                                                      std::vector<ChoiceSpec> choices,
                                                      std::shared_ptr<GenerationListener> listener,
                                                      const Clock& clock) {
  std::shared_ptr<Generation> generation(
      new Generation(engine, network, std::move(listener), clock));
  generation->choices_.reserve(choices.size());
  for (const ChoiceSpec& spec : choices) generation->choices_.emplace_back(spec, tokenizer);
  // Events are posted to this thread, so none is handled before all ids are known.
  for (size_t i = 0; i < choices.size(); ++i) {
    Result<RequestId> id =
        engine.Submit(std::move(choices[i].request), std::make_shared<Sink>(generation, i));
    if (!id.ok()) {
      for (size_t j = i; j < choices.size(); ++j) generation->choices_[j].ended = true;
      generation->Cancel();
      return id.status();
    }
    generation->choices_[i].id = *id;
  }
  return generation;
}

void Generation::Cancel() {
  listener_ = nullptr;
  for (const Choice& choice : choices_) {
    if (!choice.ended) engine_.Cancel(choice.id);
  }
}

void Generation::HandlePromptLogprobs(size_t index, const std::vector<PromptLogprob>& logprobs) {
  if (listener_ == nullptr || choices_[index].ended) return;
  const std::shared_ptr<GenerationListener> listener = listener_;
  listener->OnPromptLogprobs(index, logprobs);
}

void Generation::HandleToken(size_t index, const TokenEvent& event) {
  Choice& choice = choices_[index];
  if (listener_ == nullptr || choice.ended || choice.stops.matched()) return;
  // A write may find the client gone and cancel this generation: the listener outlives its call.
  const std::shared_ptr<GenerationListener> listener = listener_;
  ++choice.tokens;
  TERN_TRACE("text.detokenize");
  std::string text = choice.stops.Push(choice.detokenizer.Push(event.token));
  if (!choice.stops.status().ok()) {
    FinishEvent failed;
    failed.reason = FinishEvent::Reason::kError;
    failed.status = choice.stops.status();
    engine_.Cancel(choice.id);
    return HandleFinish(index, failed);
  }
  if (choice.stops.matched()) {
    engine_.Cancel(choice.id, choice.tokens);
    if (choice.no_stop_trim) text += choice.stops.removed();
  }
  listener->OnToken(index, event, text);
}

void Generation::HandleFinish(size_t index, const FinishEvent& event) {
  Choice& choice = choices_[index];
  if (listener_ == nullptr || choice.ended) return;
  const std::shared_ptr<GenerationListener> listener = listener_;
  choice.ended = true;

  ChoiceEnd end;
  end.prompt_tokens = event.prompt_tokens;
  end.cached_tokens = event.cached_tokens;
  end.completion_tokens = event.completion_tokens;
  end.retractions = event.retractions;
  end.latency_s = static_cast<double>(clock_.NowUs() - start_us_) * 1e-6;
  end.status = event.status;
  end.matched_token = event.matched_token;
  end.matched_logprobs = event.matched_logprobs;
  switch (event.reason) {
    case FinishEvent::Reason::kStop:
      end.reason = ChoiceEnd::Reason::kStop;
      break;
    case FinishEvent::Reason::kLength:
      end.reason = ChoiceEnd::Reason::kLength;
      break;
    case FinishEvent::Reason::kAborted:
      end.reason = ChoiceEnd::Reason::kAborted;
      break;
    case FinishEvent::Reason::kError:
      end.reason = ChoiceEnd::Reason::kError;
      break;
  }
  // An unfinished character may still complete a stop string; then it is the held text that ends.
  const bool matched_before = choice.stops.matched();
  std::string text;
  if (!matched_before) {
    text = choice.stops.Push(choice.detokenizer.Flush());
    text += choice.stops.Flush();
  }
  if (choice.stops.matched() && end.reason != ChoiceEnd::Reason::kError) {
    // The engine may have run on before it heard of the match: what counts ends at the match.
    if (!matched_before && choice.no_stop_trim) text += choice.stops.removed();
    end.reason = ChoiceEnd::Reason::kStop;
    end.matched_string = choice.stops.match();
    end.matched_token.reset();
    end.matched_logprobs.reset();
    end.completion_tokens = choice.tokens;
  }
  listener->OnEnd(index, text, end);
  if (end.reason == ChoiceEnd::Reason::kError) Cancel();  // one answer: its other choices go too
}

}  // namespace tern
