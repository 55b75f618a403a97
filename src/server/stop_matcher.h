// StopMatcher: finds stop strings in text that arrives in pieces, and holds back what may be the
// start of one. What it releases does not depend on where the pieces are cut.
// Formula: one Knuth-Morris-Pratt automaton per stop string; its state is the length of the longest
// suffix of the text so far that begins the stop string.
// Thread: not shared; one per answer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tern {

class StopMatcher {
 public:
  // REQUIRES: no empty string.
  explicit StopMatcher(std::vector<std::string> stops);

  // Text that is now known not to belong to a stop string. The match is the one that ends first
  // (of several that end together, the longest); after it, nothing is released any more.
  std::string Push(std::string_view text);
  // The end of the text: what was held back, empty after a match.
  std::string Flush();

  bool matched() const { return match_.has_value(); }
  // REQUIRES: matched()
  const std::string& match() const { return automata_[*match_].stop; }

 private:
  struct Automaton {
    std::string stop;
    std::vector<size_t> fallback;  // [i]: state after a mismatch behind i + 1 matched bytes
    size_t state = 0;
  };

  std::vector<Automaton> automata_;
  std::string held_;
  std::optional<size_t> match_;
};

}  // namespace tern
