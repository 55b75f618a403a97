// PreTokenizer: cuts text into pieces that BPE then encodes one by one. A chain of steps, each of
// which cuts the pieces of the one before, as the `pre_tokenizer` of tokenizer.json says.
// Immutable once made. Thread: const methods may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tern {

// What becomes of the text that a Split step matches, in HuggingFace's names.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The patterns that a GGUF file's tokenizer.ggml.pre stands for, each an isolating split; empty for
// an unknown name.
std::vector<std::string_view> PreTokenizerPatterns(std::string_view name);

class PreTokenizer {
 public:
  // Receives the pieces, in order.
  class Sink {
   public:
    virtual ~Sink() = default;
    virtual void Piece(std::string_view piece) = 0;
  };

  PreTokenizer();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // Steps, added in the order in which they apply. At most kMaxSteps.
  static constexpr size_t kMaxSteps = 16;
  // Splits by a regular expression: a scanner when there is one for it, else PCRE2. `invert`: what
  // lies between matches is the match.
  Status AddSplitByRegex(std::string_view pattern, SplitBehavior behavior, bool invert);
  Status AddSplitByText(std::string text, SplitBehavior behavior, bool invert);
  // Cuts out runs of digits (\p{N}), or single ones.
  Status AddDigits(bool individual);
  // Puts a space before each piece that does not start with one.
  Status AddPrefixSpace();

  // The steps of a GGUF file's tokenizer.ggml.pre. kUnimplemented, with the names that are known,
  // for another one.
  Status AddNamed(std::string_view name);

  // The views live as long as `text` or, after AddPrefixSpace, only during the call.
  void Split(std::string_view text, Sink* sink) const { Run(0, text, sink); }

  class Matcher;

 private:
  struct Step;
  Status AddStep(std::unique_ptr<Step> step);
  void Run(size_t step, std::string_view piece, Sink* sink) const;
  void RunSplit(size_t step, std::string_view piece, Sink* sink) const;

  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace tern
