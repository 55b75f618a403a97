#include "cmd/hand_off_logits.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "models/single_sequence.h"
#include "pd/convert.h"

namespace tern {
namespace {

Result<PdRows> RowsFor(const LogitSide& side) {
  const EngineOptions& o = side.options;
  TERN_ASSIGN_OR_RETURN(
      PageFormat format,
      PageFormat::Make(side.model.info().kv_layers, o.kv_format, o.page_tokens, o.kv_bf16_layers));
  return PdRows{side.model.info().kv_layers, std::move(format)};
}

class HandOffLogits final : public LogitSource {
 public:
  HandOffLogits(const LogitSide& prefill, const LogitSide& decode, PdRows from, PdRows to)
      : prefill_side_(prefill),
        decode_side_(decode),
        converter_(decode.ops, std::move(from), std::move(to)) {}

  const std::string& name() const override { return decode_side_.name; }
  int64_t vocab_size() const override { return decode_side_.model.info().vocab_size; }
  int64_t context_length() const override {
    return std::min(prefill_side_.model.info().context_length,
                    decode_side_.model.info().context_length);
  }
  Status Begin(int64_t tokens) override {
    prompt_tokens_ = (tokens + 1) / 2;
    TERN_ASSIGN_OR_RETURN(prefill_, SequenceOf(prefill_side_, prompt_tokens_));
    TERN_ASSIGN_OR_RETURN(decode_, SequenceOf(decode_side_, tokens));
    return OkStatus();
  }
  Status Append(std::span<const int32_t> tokens, float* logits) override {
    const auto prompt =
        std::min(tokens.size(), static_cast<size_t>(prompt_tokens_ - prefill_->position()));
    if (prompt > 0) {
      prefill_side_.ops.set_activations(prefill_side_.activations);
      TERN_RETURN_IF_ERROR(prefill_->Append(tokens.first(prompt), RowForm::kPrefill, logits));
      if (prefill_->position() == prompt_tokens_) HandOff();
    }
    if (prompt == tokens.size()) return OkStatus();
    decode_side_.ops.set_activations(decode_side_.activations);
    return decode_->Append(tokens.subspan(prompt), RowForm::kDecode,
                           logits + static_cast<int64_t>(prompt) * vocab_size());
  }

 private:
  static Result<SingleSequence> SequenceOf(const LogitSide& side, int64_t tokens) {
    return SingleSequence::Make(side.model, side.options.kv_format, side.options.page_tokens,
                                tokens, side.options.kv_bf16_layers);
  }

  void HandOff() {
    const auto from = prefill_->NextRun(0, 0, RowForm::kPrefill).kv.pages;
    const auto to = decode_->NextRun(0, 0, RowForm::kDecode).kv.pages;
    const int64_t page = decode_->page_format().page_tokens();
    for (int64_t first = 0; first < prompt_tokens_; first += page) {
      converter_.Convert(from, first, std::min(page, prompt_tokens_ - first),
                         to[static_cast<size_t>(first / page)]);
    }
    decode_->Advance(prompt_tokens_);
  }

  const LogitSide prefill_side_, decode_side_;
  RowConverter converter_;
  int64_t prompt_tokens_ = 0;
  std::optional<SingleSequence> prefill_, decode_;
};

}  // namespace

Result<std::unique_ptr<LogitSource>> MakeHandOffLogits(const LogitSide& prefill,
                                                       const LogitSide& decode) {
  TERN_ASSIGN_OR_RETURN(PdRows from, RowsFor(prefill));
  TERN_ASSIGN_OR_RETURN(const PdRows receiver, RowsFor(decode));
  TERN_ASSIGN_OR_RETURN(PdRows to, NegotiateRows(from, receiver, /*convert_at_receiver=*/false));
  return std::unique_ptr<LogitSource>(
      std::make_unique<HandOffLogits>(prefill, decode, std::move(from), std::move(to)));
}

}  // namespace tern
