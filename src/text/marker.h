// Marker: the control texts of the output formats, and MarkerLexer, which cuts an answer that
// arrives in pieces into markers and the text between them. All markers begin with '<' and none is
// the beginning of another, so at most one marker's length is ever held back. Thread: not shared;
// one lexer per answer.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_format.h"

namespace tern {

enum class Marker {
  kThinkBegin,
  kThinkEnd,
  kSectionBegin,  // Kimi's, in two spellings
  kSectionEnd,
  kCallBegin,
  kArgumentBegin,
  kCallEnd,
  kXmlCallBegin,  // GLM's
  kXmlCallEnd,
  kKeyBegin,
  kKeyEnd,
  kValueBegin,
  kValueEnd,
};

struct MarkerText {
  std::string_view text;
  Marker marker;
};
// The markers of a format's tool calls and reasoning. A detokenizer that leaves out special tokens
// must keep these.
std::vector<MarkerText> MarkersOf(const OutputFormat& format);

class MarkerLexer {
 public:
  struct Token {
    std::string_view text;         // the marker's spelling, if it is one; never empty
    std::optional<Marker> marker;  // none: plain text
  };
  using Listener = std::function<void(const Token&)>;

  explicit MarkerLexer(std::vector<MarkerText> markers) : markers_(std::move(markers)) {}

  void Push(std::string_view text, const Listener& listener);
  // The end: what was held back is text.
  void Finish(const Listener& listener);

 private:
  std::vector<MarkerText> markers_;
  std::string held_;  // a beginning of some marker
};

}  // namespace tern
