#include "text/output_parser.h"

#include <fmt/format.h>

#include <utility>

#include "base/rng.h"
#include "base/utf8.h"
#include "text/tool_call_parser.h"

namespace tern {
namespace {

std::string RandomCallId() {
  thread_local Rng rng(RandomSeed());
  return fmt::format("call_{:016x}{:08x}", rng.Next(), rng.Next() >> 32);
}

bool IsSpace(std::string_view text) {
  return text.find_first_not_of(kFormatSpace) == std::string_view::npos;
}

}  // namespace

class OutputParser::State final : public OutputSink {
 public:
  explicit State(OutputParserOptions options)
      : options_(std::move(options)), lexer_(MarkersOf(options_.format)) {
    const bool kimi = options_.format.tool_calls == ToolCallFormat::kKimiK2;
    if (kimi) {
      tools_ = MakeKimiK2ToolParser(options_.tools.get(), *this);
    } else if (options_.format.tool_calls != ToolCallFormat::kNone) {
      tools_ = MakeGlmToolParser(options_.tools.get(), *this);
    }
    if (!kimi && !options_.make_call_id) options_.make_call_id = RandomCallId;
    if (options_.format.reasoning == ReasoningFormat::kNone) {
      part_ = Part::kAnswer;
      opened_ = true;
    } else if (options_.start == ReasoningStart::kOpen) {
      OpenReasoning();
    }
  }

  std::vector<OutputDelta> Push(std::string_view piece) {
    bytes_ += piece;
    const size_t whole = CompleteUtf8Prefix(bytes_);
    lexer_.Push(std::string_view(bytes_).substr(0, whole),
                [this](const MarkerLexer::Token& token) { OnToken(token); });
    bytes_.erase(0, whole);
    return std::exchange(deltas_, {});
  }

  std::vector<OutputDelta> Finish() {
    const auto on_token = [this](const MarkerLexer::Token& token) { OnToken(token); };
    if (!bytes_.empty()) lexer_.Push(std::exchange(bytes_, {}), on_token);
    lexer_.Finish(on_token);
    if (part_ == Part::kReasoning) {
      Reasoning(std::exchange(space_, {}));
      CloseReasoning();
    } else {
      Answer(std::exchange(space_, {}));
    }
    if (tools_ != nullptr) tools_->Finish();
    return std::exchange(deltas_, {});
  }

  bool in_reasoning() const { return part_ == Part::kReasoning; }
  bool has_tool_calls() const { return calls_ > 0; }

  // OutputSink
  void Content(std::string_view text) override { Append(OutputDelta::Kind::kContent, text); }
  void BeginCall(std::string_view name) override {
    OutputDelta delta{.kind = OutputDelta::Kind::kToolCall, .index = calls_};
    delta.id = options_.format.tool_calls == ToolCallFormat::kKimiK2
                   ? fmt::format("functions.{}:{}", name, options_.first_call_index + calls_)
                   : options_.make_call_id();
    delta.name = name;
    deltas_.push_back(std::move(delta));
    ++calls_;
  }
  void Arguments(std::string_view piece) override {
    if (piece.empty()) return;
    Append(OutputDelta::Kind::kArguments, piece);
    deltas_.back().index = calls_ - 1;
  }

 private:
  enum class Part {
    kStart,  // nothing but whitespace so far, which is in space_
    kReasoning,
    kAnswer,
  };

  void OnToken(const MarkerLexer::Token& token) {
    switch (part_) {
      case Part::kStart:
        return OnStart(token);
      case Part::kReasoning:
        return OnReasoning(token);
      case Part::kAnswer:
        return OnAnswer(token);
    }
  }

  void OnStart(const MarkerLexer::Token& token) {
    if (!token.marker && IsSpace(token.text)) {
      space_ += token.text;
    } else if (token.marker == Marker::kThinkBegin) {
      Tag(std::exchange(space_, {}));
      Tag(token.text);
      OpenReasoning();
    } else if (token.marker == Marker::kThinkEnd) {  // reasoning was empty
      Tag(std::exchange(space_, {}));
      Tag(token.text);
      part_ = Part::kAnswer;
      opened_ = true;
    } else {
      part_ = Part::kAnswer;
      // After "no reasoning", <think> is text unless the answer begins with it.
      opened_ = options_.start == ReasoningStart::kClosed;
      Answer(std::exchange(space_, {}));
      OnAnswer(token);
    }
  }

  void OnReasoning(const MarkerLexer::Token& token) {
    if (at_reasoning_start_) {
      if (!token.marker && IsSpace(token.text)) {
        space_ += token.text;
        return;
      }
      // Some models repeat the <think> that the prompt ends with.
      const bool repeated =
          token.marker == Marker::kThinkBegin && options_.start == ReasoningStart::kOpen;
      if (repeated) {
        Tag(std::exchange(space_, {}));
        Tag(token.text);
        return;
      }
      at_reasoning_start_ = false;
      Reasoning(std::exchange(space_, {}));
    }
    if (token.marker == Marker::kThinkEnd) {
      Tag(token.text);
      CloseReasoning();
    } else if (token.marker == Marker::kSectionBegin || token.marker == Marker::kCallBegin ||
               token.marker == Marker::kXmlCallBegin) {
      CloseReasoning();
      interrupted_ = true;
      OnAnswer(token);
    } else {
      Reasoning(token.text);
    }
  }

  void OnAnswer(const MarkerLexer::Token& token) {
    const bool in_call = tools_ != nullptr && tools_->in_call();
    if (token.marker == Marker::kThinkBegin && !opened_ && !in_call && calls_ == 0) {
      Tag(token.text);
      OpenReasoning();
    } else if (token.marker == Marker::kThinkEnd && interrupted_ && !in_call) {
      interrupted_ = false;  // it closes the reasoning that a call broke into
      Tag(token.text);
    } else if (token.marker && tools_ != nullptr) {
      tools_->OnMarker(*token.marker, token.text);
    } else {
      Answer(token.text);
    }
  }

  void OpenReasoning() {
    part_ = Part::kReasoning;
    opened_ = true;
    at_reasoning_start_ = true;
  }

  void CloseReasoning() {
    part_ = Part::kAnswer;
    if (!waiting_reasoning_.empty()) {
      Append(OutputDelta::Kind::kReasoning, std::exchange(waiting_reasoning_, {}));
    }
  }

  void Reasoning(std::string_view text) {
    if (!options_.separate_reasoning) return Answer(text);
    if (!options_.stream_reasoning) {
      waiting_reasoning_ += text;
      return;
    }
    Append(OutputDelta::Kind::kReasoning, text);
  }
  // What stands around reasoning.
  void Tag(std::string_view text) {
    if (!options_.separate_reasoning) Answer(text);
  }
  void Answer(std::string_view text) {
    if (text.empty()) return;
    tools_ != nullptr ? tools_->OnText(text) : Content(text);
  }

  void Append(OutputDelta::Kind kind, std::string_view text) {
    if (text.empty()) return;
    if (deltas_.empty() || deltas_.back().kind != kind) deltas_.push_back({.kind = kind});
    deltas_.back().text += text;
  }

  OutputParserOptions options_;
  MarkerLexer lexer_;
  std::unique_ptr<ToolCallParser> tools_;  // null: no calls are looked for
  std::vector<OutputDelta> deltas_;        // since the last Push
  std::string bytes_;                      // less than one character
  std::string space_;                      // at the start of the answer, or of reasoning
  std::string waiting_reasoning_;          // unless it is streamed
  Part part_ = Part::kStart;
  bool opened_ = false;  // reasoning; it opens once
  bool at_reasoning_start_ = false;
  bool interrupted_ = false;  // reasoning, by a call; its </think> may follow
  int64_t calls_ = 0;
};

OutputParser::OutputParser(OutputParserOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;

std::vector<OutputDelta> OutputParser::Push(std::string_view text) { return state_->Push(text); }
std::vector<OutputDelta> OutputParser::Finish() { return state_->Finish(); }
bool OutputParser::in_reasoning() const { return state_->in_reasoning(); }
bool OutputParser::has_tool_calls() const { return state_->has_tool_calls(); }

void ParsedOutput::Add(const std::vector<OutputDelta>& deltas) {
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        reasoning += delta.text;
        break;
      case OutputDelta::Kind::kContent:
        content += delta.text;
        break;
      case OutputDelta::Kind::kToolCall:
        tool_calls.push_back({delta.id, delta.name, {}});
        break;
      case OutputDelta::Kind::kArguments:
        tool_calls.back().arguments += delta.text;
        break;
    }
  }
}

ParsedOutput ParseOutput(std::string_view text, OutputParserOptions options) {
  OutputParser parser(std::move(options));
  ParsedOutput output;
  output.Add(parser.Push(text));
  output.Add(parser.Finish());
  return output;
}

}  // namespace tern
