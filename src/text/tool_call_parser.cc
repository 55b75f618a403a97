#include "text/tool_call_parser.h"

namespace tern {

std::string_view TrimSpace(std::string_view text) {
  const size_t first = text.find_first_not_of(kFormatSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kFormatSpace) - first + 1);
}

void ContentWriter::Text(std::string_view text) {
  const size_t last = text.find_last_not_of(kFormatSpace);
  const bool holds_on = gap_ || drop_trailing_;
  if (last == std::string_view::npos && holds_on) {
    held_ += text;
    return;
  }
  if (!held_.empty()) sink_.Content(held_);
  held_.clear();
  gap_ = false;
  const size_t certain = drop_trailing_ ? last + 1 : text.size();
  if (certain > 0) sink_.Content(text.substr(0, certain));
  held_ = text.substr(certain);
}

void ContentWriter::Marker() {
  held_.clear();
  gap_ = true;
  markers_ = true;
}

void ContentWriter::Finish() {
  // Behind a call, whitespace is the format's; an answer without one is left as it is.
  if (!held_.empty() && !(gap_ && markers_)) sink_.Content(held_);
  held_.clear();
}

}  // namespace tern
