// OutputParser: a model's answer, as text in pieces, to reasoning, content and tool calls. What
// comes out, put together, does not depend on where the pieces are cut (not even inside a
// character). Rules are SGLang's for a stream; where its whole answers differ from its streams,
// both are the stream here:
// * Reasoning ends at </think>, or where a tool call opens, if calls are looked for.
// * Arguments of kimi_k2 are passed on as they are, JSON or not; of GLM they become one JSON
// object,
//   each value typed by the tool's schema (argument_types.h). Absent arguments are {}.
// * Text around calls is content, but for whitespace next to the markers.
// * An answer that ends inside a call keeps the call, with the arguments so far; one that ends
//   before the call's name is known loses it. A call without a usable name is left out.
// Time is linear in the text; memory too, at worst.
// Owner: whoever reads the answer, one per choice. Thread: not shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/marker.h"
#include "text/output_format.h"

namespace tern {

class ToolCallParser;

struct OutputDelta {
  enum class Kind {
    kReasoning,
    kContent,
    kToolCall,   // a call begins: index, id, name
    kArguments,  // a piece of the arguments of the call with this index
  };
  Kind kind = Kind::kContent;
  std::string text;      // empty for kToolCall
  int64_t index = 0;     // of the call, counted in this answer
  std::string id, name;  // kToolCall
};

struct OutputParserOptions {
  OutputFormat format;  // tool_calls kNone: no calls are looked for
  ReasoningStart start = ReasoningStart::kUnopened;
  bool separate_reasoning = true;  // false: reasoning and its tags stay in the content
  bool stream_reasoning = true;    // false: reasoning comes in one piece when it ends
  // The request's tools as OpenAI lists them; for GLM's types. May be null.
  std::shared_ptr<const Json> tools;
  // Tool calls of the conversation so far: ids of kimi_k2, functions.NAME:IDX, count on from here.
  int64_t first_call_index = 0;
  // Ids of GLM's calls; empty: "call_" and 24 random hex digits.
  std::function<std::string()> make_call_id;
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;

  // What became certain with this piece, in order; often nothing.
  std::vector<OutputDelta> Push(std::string_view text);
  // The end of the answer: what was held back. Call once.
  std::vector<OutputDelta> Finish();

  bool in_reasoning() const;
  bool has_tool_calls() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// A whole answer.
struct ParsedToolCall {
  std::string id, name;
  std::string arguments;  // JSON, unless the model wrote none
};
struct ParsedOutput {
  std::string reasoning, content;
  std::vector<ParsedToolCall> tool_calls;

  void Add(const std::vector<OutputDelta>& deltas);
};
ParsedOutput ParseOutput(std::string_view text, OutputParserOptions options);

}  // namespace tern
