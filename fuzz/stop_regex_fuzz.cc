// Stop expressions and strings over arbitrary text: where the text is cut into pieces changes
// nothing. The first line is the expression, the second a stop string, the rest the text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "server/stop_matcher.h"

namespace {

struct Outcome {
  std::string text, match;
  bool failed = false;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome Run(const std::string& stop, const std::shared_ptr<const tern::StopRegexes>& regexes,
            std::string_view text, size_t piece) {
  tern::StopMatcher matcher(stop.empty() ? std::vector<std::string>{} : std::vector{stop}, regexes);
  Outcome outcome;
  for (size_t at = 0; at < text.size() && matcher.status().ok(); at += piece) {
    outcome.text += matcher.Push(text.substr(at, piece));
  }
  outcome.failed = !matcher.status().ok();
  if (outcome.failed) return {{}, {}, true};
  outcome.text += matcher.Flush();
  if (matcher.matched()) outcome.match = matcher.match();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t first = input.find('\n');
  if (first == std::string_view::npos) return 0;
  const size_t second = input.find('\n', first + 1);
  if (second == std::string_view::npos || size > 3000) return 0;
  const std::vector<std::string> patterns = {std::string(input.substr(0, first))};
  const std::string stop(input.substr(first + 1, second - first - 1));
  const std::string text = tern::ReplaceInvalidUtf8(input.substr(second + 1));
  const auto regexes = tern::StopRegexes::Compile(patterns);
  if (!regexes.ok()) return 0;
  const Outcome whole = Run(stop, *regexes, text, text.size() + 1);
  for (const size_t piece : {1, 2, 7}) {
    if (!(Run(stop, *regexes, text, piece) == whole)) std::abort();
  }
  return 0;
}
