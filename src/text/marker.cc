#include "text/marker.h"

#include <algorithm>

namespace tern {

std::vector<MarkerText> MarkersOf(const OutputFormat& format) {
  std::vector<MarkerText> markers;
  if (format.reasoning != ReasoningFormat::kNone) {
    markers = {{"<think>", Marker::kThinkBegin}, {"</think>", Marker::kThinkEnd}};
  }
  const auto add = [&markers](std::initializer_list<MarkerText> more) {
    markers.insert(markers.end(), more);
  };
  switch (format.tool_calls) {
    case ToolCallFormat::kNone:
      break;
    case ToolCallFormat::kKimiK2:
      add({{"<|tool_calls_section_begin|>", Marker::kSectionBegin},
           {"<|tool_calls_section_end|>", Marker::kSectionEnd},
           {"<|tool_call_section_begin|>", Marker::kSectionBegin},
           {"<|tool_call_section_end|>", Marker::kSectionEnd},
           {"<|tool_call_begin|>", Marker::kCallBegin},
           {"<|tool_call_argument_begin|>", Marker::kArgumentBegin},
           {"<|tool_call_end|>", Marker::kCallEnd}});
      break;
    case ToolCallFormat::kGlm45:
    case ToolCallFormat::kGlm47:
      add({{"<tool_call>", Marker::kXmlCallBegin},
           {"</tool_call>", Marker::kXmlCallEnd},
           {"<arg_key>", Marker::kKeyBegin},
           {"</arg_key>", Marker::kKeyEnd},
           {"<arg_value>", Marker::kValueBegin},
           {"</arg_value>", Marker::kValueEnd}});
      break;
  }
  return markers;
}

void MarkerLexer::Push(std::string_view piece, const Listener& listener) {
  const std::string joined = held_ + std::string(piece);
  held_.clear();
  const std::string_view text = joined;
  size_t start = 0;  // of plain text that was not given yet
  const auto give_text = [&](size_t end) {
    if (end > start) listener({text.substr(start, end - start), std::nullopt});
  };
  size_t pos = text.find('<');
  while (pos != std::string_view::npos) {
    const std::string_view rest = text.substr(pos);
    const MarkerText* whole = nullptr;
    bool cut = false;
    for (const MarkerText& marker : markers_) {
      const size_t common = std::min(marker.text.size(), rest.size());
      if (marker.text.substr(0, common) != rest.substr(0, common)) continue;
      if (common == marker.text.size()) whole = &marker;
      if (common < marker.text.size()) cut = true;
    }
    if (whole != nullptr) {
      give_text(pos);
      listener({whole->text, whole->marker});
      start = pos + whole->text.size();
      pos = text.find('<', start);
    } else if (cut) {
      give_text(pos);
      held_ = rest;
      return;
    } else {
      pos = text.find('<', pos + 1);
    }
  }
  give_text(text.size());
}

void MarkerLexer::Finish(const Listener& listener) {
  const std::string held = std::move(held_);
  held_.clear();
  if (!held.empty()) listener({held, std::nullopt});
}

}  // namespace tern
