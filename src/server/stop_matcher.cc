#include "server/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace tern {

StopMatcher::StopMatcher(std::vector<std::string> stops,
                         std::shared_ptr<const StopRegexes> regexes) {
  if (regexes != nullptr) search_.emplace(std::move(regexes));
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

std::optional<std::string> StopMatcher::StepStrings(char c, size_t* longest) {
  std::optional<std::string> match;
  *longest = 0;
  for (Automaton& automaton : automata_) {
    size_t state = automaton.state;
    while (state > 0 && automaton.stop[state] != c) state = automaton.fallback[state - 1];
    if (automaton.stop[state] == c) ++state;
    automaton.state = state;
    *longest = std::max(*longest, state);
    if (state < automaton.stop.size()) continue;
    if (!match || automaton.stop.size() > match->size()) match = automaton.stop;
  }
  return match;
}

std::optional<std::string> StopMatcher::StepRegexes(char c) {
  character_ += c;
  if (CompleteUtf8Prefix(character_) < character_.size()) return std::nullopt;
  const auto found = search_->Push(std::exchange(character_, {}));
  if (!found.ok()) {
    status_ = found.status();
    search_.reset();
    return std::nullopt;
  }
  if (!*found) return std::nullopt;
  return std::string(**found);
}

std::string StopMatcher::Push(std::string_view text) {
  if (match_) return {};
  if (automata_.empty() && !search_) return std::string(text);
  size_t longest = 0;
  for (const char c : text) {
    held_ += c;
    match_ = StepStrings(c, &longest);
    if (match_) {
      held_.resize(held_.size() - match_->size());
      removed_ = *match_;
      return std::exchange(held_, {});
    }
    if (search_) match_ = StepRegexes(c);
    if (match_) return std::exchange(held_, {});
  }
  if (text.empty()) return {};
  std::string released = held_.substr(0, held_.size() - longest);
  held_.erase(0, released.size());
  return released;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace tern
