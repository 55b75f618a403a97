// StopRegexes: the regular expressions that end an answer, and the search for them in text that
// arrives in pieces. The answer ends at the first character with which some expression matches, as
// if all text so far was searched after every character; so it does not depend on the pieces.
//
// Expressions are PCRE2's, close to Python's; they come from clients, so everything is bounded: the
// number and length of expressions, the text that a match may span (kWindowBytes, behind which
// nothing is remembered) and the steps of each search. An empty match is none.
// Thread: StopRegexes is immutable; a search is not shared, one per answer.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tern {

class StopRegexes {
 public:
  static constexpr size_t kMostPatterns = 8;
  static constexpr size_t kMostPatternBytes = 512;
  static constexpr size_t kWindowBytes = 4096;

  // Errors: kInvalidArgument saying which expression is wrong and where, or that there are too
  // many or too long ones.
  static Result<std::shared_ptr<const StopRegexes>> Compile(std::span<const std::string> patterns);
  ~StopRegexes();
  StopRegexes(const StopRegexes&) = delete;
  StopRegexes& operator=(const StopRegexes&) = delete;

  class Search {
   public:
    explicit Search(std::shared_ptr<const StopRegexes> regexes);
    // The text goes on by one character (UTF-8). Returns the expression that now matches, the first
    // of several. Errors: kInvalidArgument naming one that takes too many steps.
    Result<std::optional<std::string_view>> Push(std::string_view character);

   private:
    void DropOldText();

    std::shared_ptr<const StopRegexes> regexes_;
    std::string text_;            // the end of the text so far
    bool dropped_ = false;        // it is not all
    std::vector<size_t> starts_;  // per expression: no match begins before this in text_
  };

 private:
  struct Compiled;
  StopRegexes() = default;
  std::vector<std::unique_ptr<Compiled>> compiled_;
  size_t lookbehind_bytes_ = 0;  // that a match may look at before it begins
};

}  // namespace tern
