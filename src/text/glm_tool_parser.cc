// GLM tool calls, with line breaks between the tags (4.5, 4.6) or without (4.7 and later). The
// arguments come out as one JSON object, written as Python's json.dumps would; values that can only
// be strings are streamed, others wait for their end.
#include <string>

#include "text/argument_types.h"
#include "text/tool_call_parser.h"

namespace tern {
namespace {

class GlmToolParser final : public ToolCallParser {
 public:
  GlmToolParser(const Json* tools, OutputSink& sink)
      : tools_(tools), sink_(sink), content_(sink, /*drop_trailing=*/true) {}

  void OnText(std::string_view text) override {
    switch (state_) {
      case State::kContent:
        return content_.Text(text);
      case State::kName:
        name_ += text;
        return;
      case State::kKey:
        key_ += text;
        return;
      case State::kValue:
        return Value(text);
      case State::kBetween:
      case State::kAfterKey:
      case State::kDropped:
        return;
    }
  }

  void OnMarker(Marker marker, std::string_view spelling) override {
    // Inside keys and values only their ends mean something.
    const bool open_text = state_ == State::kKey || state_ == State::kValue;
    switch (marker) {
      case Marker::kXmlCallBegin:
        if (open_text) return OnText(spelling);
        EndCall();
        state_ = State::kName;
        name_.clear();
        return;
      case Marker::kXmlCallEnd:
        if (state_ == State::kName) BeginCall();
        return EndCall();
      case Marker::kKeyBegin:
        if (open_text || state_ == State::kContent) return OnText(spelling);
        if (state_ == State::kName) BeginCall();
        if (state_ == State::kDropped) return;
        state_ = State::kKey;
        key_.clear();
        return;
      case Marker::kKeyEnd:
        if (state_ != State::kKey) return OnText(spelling);
        key_ = std::string(TrimSpace(key_));
        state_ = State::kAfterKey;
        return;
      case Marker::kValueBegin:
        if (state_ != State::kAfterKey) return OnText(spelling);
        return BeginValue();
      case Marker::kValueEnd:
        if (state_ != State::kValue) return OnText(spelling);
        return EndValue();
      default:
        return OnText(spelling);
    }
  }

  void Finish() override { content_.Finish(); }
  bool in_call() const override { return state_ != State::kContent; }

 private:
  enum class State {
    kContent,
    kName,
    kBetween,  // arguments: behind the name or a value
    kKey,
    kAfterKey,  // its value may follow
    kValue,
    kDropped,  // a call without a name
  };

  void BeginCall() {
    std::string_view name = TrimSpace(name_);
    // Models write the template's line break as two characters now and then.
    while (name.ends_with("\\n")) name = TrimSpace(name.substr(0, name.size() - 2));
    has_arguments_ = false;
    state_ = name.empty() ? State::kDropped : State::kBetween;
    if (name.empty()) return;
    parameters_ = ParametersOfTool(tools_, name);
    sink_.BeginCall(name);
  }

  void BeginValue() {
    sink_.Arguments(has_arguments_ ? ", " : "{");
    has_arguments_ = true;
    sink_.Arguments(JsonQuote(key_) + ": ");
    is_string_ = ArgumentTypes(parameters_, key_) == json_type::kString;
    if (is_string_) sink_.Arguments("\"");
    value_.clear();
    state_ = State::kValue;
  }

  void Value(std::string_view text) {
    if (!is_string_) {
      value_ += text;
      return;
    }
    const std::string quoted = JsonQuote(text);
    sink_.Arguments(std::string_view(quoted).substr(1, quoted.size() - 2));
  }

  void EndValue() {
    sink_.Arguments(is_string_ ? "\"" : ArgumentToJson(parameters_, key_, value_));
    state_ = State::kBetween;
  }

  void EndCall() {
    content_.Marker();
    if (state_ == State::kValue) EndValue();
    if (state_ == State::kBetween || state_ == State::kKey || state_ == State::kAfterKey) {
      sink_.Arguments(has_arguments_ ? "}" : "{}");
    }
    state_ = State::kContent;
  }

  const Json* const tools_;
  OutputSink& sink_;
  ContentWriter content_;
  State state_ = State::kContent;
  std::string name_, key_, value_;
  const Json* parameters_ = nullptr;  // of the call's tool
  bool has_arguments_ = false;
  bool is_string_ = false;  // the value; it is streamed, value_ stays empty
};

}  // namespace

std::unique_ptr<ToolCallParser> MakeGlmToolParser(const Json* tools, OutputSink& sink) {
  return std::make_unique<GlmToolParser>(tools, sink);
}

}  // namespace tern
