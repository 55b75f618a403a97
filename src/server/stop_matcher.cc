#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tern {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    Automaton automaton;
    automaton.fallback.assign(stop.size(), 0);
    for (size_t i = 1, state = 0; i < stop.size(); ++i) {
      while (state > 0 && stop[i] != stop[state]) state = automaton.fallback[state - 1];
      if (stop[i] == stop[state]) ++state;
      automaton.fallback[i] = state;
    }
    automaton.stop = std::move(stop);
    automata_.push_back(std::move(automaton));
  }
}

std::string StopMatcher::Push(std::string_view text) {
  if (match_) return {};
  if (automata_.empty()) return std::string(text);
  size_t longest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    held_ += text[i];
    longest = 0;
    for (size_t a = 0; a < automata_.size(); ++a) {
      Automaton& automaton = automata_[a];
      size_t state = automaton.state;
      while (state > 0 && automaton.stop[state] != text[i]) state = automaton.fallback[state - 1];
      if (automaton.stop[state] == text[i]) ++state;
      automaton.state = state;
      longest = std::max(longest, state);
      if (state == automaton.stop.size() &&
          (!match_ || automaton.stop.size() > automata_[*match_].stop.size())) {
        match_ = a;
      }
    }
    if (match_) {
      held_.resize(held_.size() - match().size());
      return std::exchange(held_, {});
    }
  }
  if (text.empty()) return {};
  std::string released = held_.substr(0, held_.size() - longest);
  held_.erase(0, released.size());
  return released;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace tern
