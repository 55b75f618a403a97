// ToolCallParser: the state machine of one tool-call format, behind OutputParser: markers and text
// in, content and calls out. Owned by its OutputParser. Thread: not shared.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/marker.h"

namespace tern {

// Takes what a format's parser finds.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void Content(std::string_view text) = 0;
  virtual void BeginCall(std::string_view name) = 0;
  // Of the call that began last.
  virtual void Arguments(std::string_view piece) = 0;
};

class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;
  virtual void OnText(std::string_view text) = 0;
  // `spelling`: for markers that mean nothing where they stand.
  virtual void OnMarker(Marker marker, std::string_view spelling) = 0;
  virtual void Finish() = 0;
  // Between a call's first marker and its end.
  virtual bool in_call() const = 0;
};

// `tools`: the request's, or null; outlives the parser, as `sink` does.
std::unique_ptr<ToolCallParser> MakeKimiK2ToolParser(const Json* tools, OutputSink& sink);
std::unique_ptr<ToolCallParser> MakeGlmToolParser(const Json* tools, OutputSink& sink);

// Whitespace as the formats' templates write it around markers.
inline constexpr std::string_view kFormatSpace = " \t\r\n\v\f";
std::string_view TrimSpace(std::string_view text);

// Content around calls: whitespace right after the beginning or a marker is held back, and dropped
// when a marker follows.
class ContentWriter {
 public:
  // drop_trailing: whitespace before a marker is the format's as well (GLM), not the content's
  // (Kimi).
  ContentWriter(OutputSink& sink, bool drop_trailing)
      : sink_(sink), drop_trailing_(drop_trailing) {}
  void Text(std::string_view text);
  void Marker();
  void Finish();

 private:
  OutputSink& sink_;
  const bool drop_trailing_;
  bool gap_ = true;  // only whitespace since the beginning or the last marker
  bool markers_ = false;
  std::string held_;
};

}  // namespace tern
