#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "text/piece_regex.h"
#include "text/scanners.h"
#include "text/unicode.h"

namespace tern {

// Finds the first match at or after a position of a piece.
class PreTokenizer::Matcher {
 public:
  using Span = std::pair<size_t, size_t>;
  virtual ~Matcher() = default;
  virtual std::optional<Span> Find(std::string_view text, size_t pos) const = 0;
};

namespace {

using Span = PreTokenizer::Matcher::Span;

class ScannerMatcher : public PreTokenizer::Matcher {
 public:
  explicit ScannerMatcher(Scanner scanner) : scanner_(scanner) {}
  std::optional<Span> Find(std::string_view text, size_t pos) const override {
    if (pos >= text.size()) return std::nullopt;
    return Span{pos, scanner_(text, pos)};
  }

 private:
  const Scanner scanner_;
};

class RegexMatcher : public PreTokenizer::Matcher {
 public:
  explicit RegexMatcher(std::unique_ptr<const PieceRegex> regex) : regex_(std::move(regex)) {}
  std::optional<Span> Find(std::string_view text, size_t pos) const override {
    return regex_->Find(text, pos);
  }

 private:
  const std::unique_ptr<const PieceRegex> regex_;
};

class TextMatcher : public PreTokenizer::Matcher {
 public:
  explicit TextMatcher(std::string text) : text_(std::move(text)) {}
  std::optional<Span> Find(std::string_view text, size_t pos) const override {
    const size_t start = text.find(text_, pos);
    if (start == std::string_view::npos) return std::nullopt;
    return Span{start, start + text_.size()};
  }

 private:
  const std::string text_;
};

// One character of \p{N}.
class DigitMatcher : public PreTokenizer::Matcher {
 public:
  std::optional<Span> Find(std::string_view text, size_t pos) const override {
    while (pos < text.size()) {
      const TextChar c = CharAt(text, pos);
      if (c.In(kNumber)) return Span{pos, pos + c.size_bytes};
      pos += c.size_bytes;
    }
    return std::nullopt;
  }
};

struct Segment {
  size_t start, end;
  bool match;
};

std::vector<Segment> SegmentsOf(const PreTokenizer::Matcher& matcher, std::string_view text) {
  std::vector<Segment> segments;
  size_t done = 0, pos = 0;
  while (const auto span = matcher.Find(text, pos)) {
    const auto [start, end] = *span;
    if (start > done) segments.push_back({done, start, false});
    if (end > start) segments.push_back({start, end, true});
    done = end;
    pos = end > start ? end : end + CharAt(text, end).size_bytes;  // get past an empty match
    if (end >= text.size()) break;
  }
  if (done < text.size()) segments.push_back({done, text.size(), false});
  return segments;
}

// Joins segments as `behavior` says; an empty segment is one that is removed.
void Join(SplitBehavior behavior, std::vector<Segment>* segments) {
  std::vector<Segment>& s = *segments;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      for (Segment& segment : s) {
        if (segment.match) segment.end = segment.start;
      }
      return;
    case SplitBehavior::kContiguous:
      for (size_t i = 1; i < s.size(); ++i) {
        if (s[i].match != s[i - 1].match) continue;
        s[i].start = s[i - 1].start;
        s[i - 1].end = s[i - 1].start;
      }
      return;
    case SplitBehavior::kMergedWithPrevious:
      for (size_t i = s.size(); i-- > 1;) {
        if (!s[i].match || s[i - 1].match) continue;
        s[i - 1].end = s[i].end;
        s[i].start = s[i].end;
      }
      return;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = 0; i + 1 < s.size(); ++i) {
        if (!s[i].match || s[i + 1].match) continue;
        s[i + 1].start = s[i].start;
        s[i].end = s[i].start;
      }
      return;
  }
}

}  // namespace

struct PreTokenizer::Step {
  std::unique_ptr<const Matcher> matcher;  // null: put a space in front
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

Status PreTokenizer::AddStep(std::unique_ptr<Step> step) {
  if (steps_.size() >= kMaxSteps) {
    return InvalidArgument(fmt::format("more than {} pre-tokenizer steps", kMaxSteps));
  }
  steps_.push_back(std::move(step));
  return OkStatus();
}

Status PreTokenizer::AddSplitByRegex(std::string_view pattern, SplitBehavior behavior,
                                     bool invert) {
  std::unique_ptr<const Matcher> matcher;
  if (const Scanner scanner = FindScanner(pattern)) {
    matcher = std::make_unique<ScannerMatcher>(scanner);
  } else {
    TERN_ASSIGN_OR_RETURN(auto regex, PieceRegex::Compile(pattern));
    matcher = std::make_unique<RegexMatcher>(std::move(regex));
  }
  return AddStep(std::make_unique<Step>(Step{std::move(matcher), behavior, invert}));
}

Status PreTokenizer::AddSplitByText(std::string text, SplitBehavior behavior, bool invert) {
  if (text.empty()) return InvalidArgument("an empty text to split at");
  auto matcher = std::make_unique<TextMatcher>(std::move(text));
  return AddStep(std::make_unique<Step>(Step{std::move(matcher), behavior, invert}));
}

Status PreTokenizer::AddDigits(bool individual) {
  const auto behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  return AddStep(std::make_unique<Step>(Step{std::make_unique<DigitMatcher>(), behavior, false}));
}

Status PreTokenizer::AddPrefixSpace() { return AddStep(std::make_unique<Step>()); }

void PreTokenizer::Run(size_t step, std::string_view piece, Sink* sink) const {
  if (piece.empty()) return;
  if (step == steps_.size()) {
    sink->Piece(piece);
  } else if (steps_[step]->matcher != nullptr) {
    RunSplit(step, piece, sink);
  } else if (piece.front() == ' ') {
    Run(step + 1, piece, sink);
  } else {
    Run(step + 1, " " + std::string(piece), sink);
  }
}

void PreTokenizer::RunSplit(size_t step, std::string_view piece, Sink* sink) const {
  const Step& s = *steps_[step];
  if (s.behavior == SplitBehavior::kIsolated) {
    // The usual case, without a list of segments: matches and what lies between are pieces alike.
    size_t done = 0, pos = 0;
    while (pos < piece.size()) {
      const auto span = s.matcher->Find(piece, pos);
      if (!span) break;
      const auto [start, end] = *span;
      Run(step + 1, piece.substr(done, start - done), sink);
      Run(step + 1, piece.substr(start, end - start), sink);
      done = end;
      pos = end > start ? end : end + CharAt(piece, end).size_bytes;
      if (end >= piece.size()) break;
    }
    Run(step + 1, piece.substr(done), sink);
    return;
  }
  std::vector<Segment> segments = SegmentsOf(*s.matcher, piece);
  if (s.invert) {
    for (Segment& segment : segments) segment.match = !segment.match;
  }
  Join(s.behavior, &segments);
  for (const Segment& segment : segments) {
    Run(step + 1, piece.substr(segment.start, segment.end - segment.start), sink);
  }
}

std::vector<std::string_view> PreTokenizerPatterns(std::string_view name) {
  // DeepSeek V3 and R1; the ranges are CJK ideographs, Hiragana and Katakana.
  static constexpr std::string_view kDeepSeekV3[] = {
      R"(\p{N}{1,3})", R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
      R"(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  // "smollm": SmolLM2's own tokenizer.json cuts single digits out first, which shows only where two
  // or more white-space characters stand before a digit. The reference ids for its GGUF file
  // (transformers' reading of it, tests/data/text) do not, and these are what tern promises.
  if (name == "gpt2" || name == "gpt-2" || name == "smollm") return {kGpt2Pattern};
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3" || name == "glm4" ||
      name == "chatglm-bpe") {
    return {kLlama3Pattern};
  }
  if (name == "qwen2") return {kQwen2Pattern};
  if (name == "gpt-4o" || name == "llama4") return {kO200kPattern};
  if (name == "kimi-k2") return {kKimiPattern};
  if (name == "deepseek-v3") return {std::begin(kDeepSeekV3), std::end(kDeepSeekV3)};
  return {};
}

Status PreTokenizer::AddNamed(std::string_view name) {
  const std::vector<std::string_view> patterns = PreTokenizerPatterns(name);
  if (patterns.empty()) {
    return Unimplemented(fmt::format(
        "the pre-tokenizer '{}' is unknown; tern has gpt2, smollm, llama-bpe, qwen2, glm4, gpt-4o, "
        "kimi-k2 and deepseek-v3",
        name));
  }
  for (const std::string_view pattern : patterns) {
    TERN_RETURN_IF_ERROR(AddSplitByRegex(pattern, SplitBehavior::kIsolated, false));
  }
  return OkStatus();
}

}  // namespace tern
