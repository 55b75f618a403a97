// Kimi K2.x tool calls. Calls are also found without a section around them, and a section's end or
// the next call ends one that the model left open, as SGLang reads them.
#include <algorithm>
#include <set>
#include <string>

#include "text/argument_types.h"
#include "text/tool_call_parser.h"

namespace tern {
namespace {

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The name in `functions.NAME:IDX` or `NAME:IDX`; the bare NAME of a declared tool; else empty.
std::string_view NameInHeader(const Json* tools, std::string_view header) {
  constexpr std::string_view kPrefix = "functions.";
  if (header.starts_with(kPrefix)) header.remove_prefix(kPrefix.size());
  const size_t colon = header.rfind(':');
  const bool has_index = colon != std::string_view::npos && IsDigits(header.substr(colon + 1));
  const std::string_view name = has_index ? header.substr(0, colon) : header;
  if (name.find_first_of(kFormatSpace) != std::string_view::npos) return {};
  if (!has_index && ParametersOfTool(tools, name) == nullptr) return {};
  return name;
}

// The model sometimes writes only a counter: then the tool whose parameters fit these arguments
// best, the first of equals; empty when none can be told.
std::string_view ToolThatFits(const Json* tools, const std::string& arguments) {
  if (tools == nullptr || !tools->is_array()) return {};
  const Result<Json> parsed = ParseJson(arguments);
  if (!parsed.ok() || !parsed->is_object()) return {};
  std::set<std::string_view> keys;
  for (const auto& [key, value] : parsed->items()) keys.insert(key);
  std::string_view best;
  int64_t best_score = -1;
  for (const Json& tool : *tools) {
    const Json* function = JsonMember(tool, "function");
    const Json* name = function == nullptr ? nullptr : JsonMember(*function, "name");
    const Json* parameters = function == nullptr ? nullptr : JsonMember(*function, "parameters");
    const Json* properties =
        parameters == nullptr ? nullptr : JsonMember(*parameters, "properties");
    if (name == nullptr || !name->is_string() || properties == nullptr) continue;
    int64_t known = 0;
    for (const auto& [key, value] : properties->items()) known += keys.contains(key) ? 1 : 0;
    const int64_t score = 2 * known - static_cast<int64_t>(keys.size());  // known less unknown
    if (score <= best_score) continue;
    best_score = score;
    best = name->get_ref<const std::string&>();
  }
  return best;
}

class KimiK2ToolParser final : public ToolCallParser {
 public:
  KimiK2ToolParser(const Json* tools, OutputSink& sink)
      : tools_(tools), sink_(sink), content_(sink, /*drop_trailing=*/false) {}

  void OnText(std::string_view text) override {
    switch (state_) {
      case State::kContent:
        return content_.Text(text);
      case State::kHeader:
        header_ += text;
        return;
      case State::kArguments:
        return Arguments(text);
      case State::kUnnamed:
        unnamed_arguments_ += text;
        return;
      case State::kDropped:
        return;
    }
  }

  void OnMarker(Marker marker, std::string_view spelling) override {
    switch (marker) {
      case Marker::kCallBegin:
        EndCall();
        state_ = State::kHeader;
        header_.clear();
        return;
      case Marker::kCallEnd:
      case Marker::kSectionEnd:
        return EndCall();
      case Marker::kSectionBegin:
        if (state_ == State::kArguments || state_ == State::kUnnamed) return OnText(spelling);
        return EndCall();
      case Marker::kArgumentBegin:
        if (state_ == State::kHeader) return BeginArguments();
        if (state_ == State::kContent) return content_.Marker();
        return OnText(spelling);
      default:
        return OnText(spelling);
    }
  }

  void Finish() override { content_.Finish(); }
  bool in_call() const override { return state_ != State::kContent; }

 private:
  enum class State {
    kContent,
    kHeader,     // between <|tool_call_begin|> and <|tool_call_argument_begin|>
    kArguments,  // of a call that began
    kUnnamed,    // arguments, while the name is not known
    kDropped,    // arguments of nothing
  };

  void BeginArguments() {
    const std::string_view header = TrimSpace(header_);
    const std::string_view name = NameInHeader(tools_, header);
    wrote_ = false;
    space_.clear();
    unnamed_arguments_.clear();
    if (!name.empty()) {
      sink_.BeginCall(name);
      state_ = State::kArguments;
    } else {
      state_ = IsDigits(header) ? State::kUnnamed : State::kDropped;
    }
  }

  // Whitespace around the arguments is the format's.
  void Arguments(std::string_view text) {
    if (!wrote_) {
      const size_t first = text.find_first_not_of(kFormatSpace);
      text.remove_prefix(std::min(first, text.size()));
    }
    if (text.empty()) return;
    const size_t certain = text.find_last_not_of(kFormatSpace) + 1;  // npos + 1 == 0
    if (certain > 0) {
      if (!space_.empty()) sink_.Arguments(space_);
      space_.clear();
      sink_.Arguments(text.substr(0, certain));
      wrote_ = true;
    }
    space_ += text.substr(certain);
  }

  void EndCall() {
    content_.Marker();
    if (state_ == State::kUnnamed) {
      const std::string_view name = ToolThatFits(tools_, unnamed_arguments_);
      if (!name.empty()) {
        sink_.BeginCall(name);
        state_ = State::kArguments;
        Arguments(unnamed_arguments_);
      }
    }
    if (state_ == State::kArguments && !wrote_) sink_.Arguments("{}");
    state_ = State::kContent;
  }

  const Json* const tools_;
  OutputSink& sink_;
  ContentWriter content_;
  State state_ = State::kContent;
  std::string header_;
  std::string unnamed_arguments_;
  std::string space_;   // inside the arguments, if more of them follow
  bool wrote_ = false;  // some arguments of this call
};

}  // namespace

std::unique_ptr<ToolCallParser> MakeKimiK2ToolParser(const Json* tools, OutputSink& sink) {
  return std::make_unique<KimiK2ToolParser>(tools, sink);
}

}  // namespace tern
