// StopMatcher: finds stop strings and stop expressions in text that arrives in pieces, and holds
// back what may be the start of a stop string. What it releases does not depend on where the pieces
// are cut. A stop string is not part of the text; what an expression matches is (as SGLang has it).
// Formula: one Knuth-Morris-Pratt automaton per stop string; its state is the length of the longest
// suffix of the text so far that begins the stop string.
// Thread: not shared; one per answer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/stop_regex.h"

namespace tern {

class StopMatcher {
 public:
  // `regexes` may be null. REQUIRES: no empty string.
  explicit StopMatcher(std::vector<std::string> stops,
                       std::shared_ptr<const StopRegexes> regexes = nullptr);

  // Text that is now known not to belong to a stop string. The match is the one that ends first
  // (of several that end together, the longest string, then the first expression); after it,
  // nothing is released any more.
  std::string Push(std::string_view text);
  // The end of the text: what was held back, empty after a match.
  std::string Flush();

  bool matched() const { return match_.has_value(); }
  // The stop string or the expression. REQUIRES: matched()
  const std::string& match() const { return *match_; }
  // The text that the match took away.
  const std::string& removed() const { return removed_; }
  // Not ok once an expression took too many steps; then it is not looked for any more.
  const Status& status() const { return status_; }

 private:
  struct Automaton {
    std::string stop;
    std::vector<size_t> fallback;  // [i]: state after a mismatch behind i + 1 matched bytes
    size_t state = 0;
  };

  // The stop string that text[i], `c`, completes; else how much of one it may begin.
  std::optional<std::string> StepStrings(char c, size_t* longest);
  std::optional<std::string> StepRegexes(char c);

  std::vector<Automaton> automata_;
  std::optional<StopRegexes::Search> search_;
  std::string character_;  // its bytes so far
  std::string held_;
  std::optional<std::string> match_;
  std::string removed_;
  Status status_;
};

}  // namespace tern
