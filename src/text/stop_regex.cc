#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/stop_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

namespace tern {
namespace {

constexpr uint32_t kMostSteps = 20'000;  // of all expressions at one character
constexpr uint32_t kMostHeapKib = 1024;
constexpr uint32_t kMostNesting = 32;
constexpr size_t kMostBytesPerCharacter = 4;

// What matching needs besides the code; one per thread.
struct MatchState {
  MatchState() {
    context = pcre2_match_context_create(nullptr);
    data = pcre2_match_data_create(1, nullptr);
    if (context != nullptr) pcre2_set_heap_limit(context, kMostHeapKib);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  pcre2_match_context* context;
  pcre2_match_data* data;
};

bool BeginsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

Status TooManySteps(std::string_view pattern) {
  return InvalidArgument(fmt::format("stop_regex '{}' takes too many steps", pattern));
}

}  // namespace

struct StopRegexes::Compiled {
  ~Compiled() { pcre2_code_free(code); }
  std::string pattern;
  pcre2_code* code = nullptr;
};

StopRegexes::~StopRegexes() = default;

Result<std::shared_ptr<const StopRegexes>> StopRegexes::Compile(
    std::span<const std::string> patterns) {
  if (patterns.size() > kMostPatterns) {
    return InvalidArgument(fmt::format("stop_regex: at most {} expressions", kMostPatterns));
  }
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) return ResourceExhausted("no memory for stop_regex");
  pcre2_set_parens_nest_limit(context.get(), kMostNesting);
  std::shared_ptr<StopRegexes> regexes(new StopRegexes());
  for (const std::string& pattern : patterns) {
    if (pattern.empty() || pattern.size() > kMostPatternBytes) {
      return InvalidArgument(
          fmt::format("stop_regex: expressions have 1 to {} bytes", kMostPatternBytes));
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto compiled = std::make_unique<Compiled>();
    compiled->pattern = pattern;
    // No JIT: it would compile longer than most answers search.
    compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_ALT_BSUX | PCRE2_NEVER_BACKSLASH_C,
                                   &error, &offset, context.get());
    if (compiled->code == nullptr) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(error, message, sizeof(message));
      return InvalidArgument(fmt::format("stop_regex '{}' is wrong at byte {}: {}", pattern, offset,
                                         reinterpret_cast<const char*>(message)));
    }
    uint32_t lookbehind = 0;
    pcre2_pattern_info(compiled->code, PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
    regexes->lookbehind_bytes_ =
        std::max(regexes->lookbehind_bytes_, lookbehind * kMostBytesPerCharacter);
    regexes->compiled_.push_back(std::move(compiled));
  }
  // One character at least: it shows that the text did not begin here.
  regexes->lookbehind_bytes_ =
      std::clamp(regexes->lookbehind_bytes_, kMostBytesPerCharacter, kWindowBytes);
  return std::shared_ptr<const StopRegexes>(std::move(regexes));
}

StopRegexes::Search::Search(std::shared_ptr<const StopRegexes> regexes)
    : regexes_(std::move(regexes)), starts_(regexes_->compiled_.size(), 0) {}

Result<std::optional<std::string_view>> StopRegexes::Search::Push(std::string_view character) {
  static thread_local MatchState state;
  if (state.context == nullptr || state.data == nullptr) {
    return ResourceExhausted("no memory for stop_regex");
  }
  text_ += character;
  pcre2_set_match_limit(state.context, kMostSteps / static_cast<uint32_t>(starts_.size()));
  for (size_t i = 0; i < starts_.size(); ++i) {
    const Compiled& compiled = *regexes_->compiled_[i];
    const uint32_t options =
        PCRE2_NOTEMPTY | PCRE2_PARTIAL_SOFT | PCRE2_NO_UTF_CHECK | (dropped_ ? PCRE2_NOTBOL : 0);
    const int found = pcre2_match(compiled.code, reinterpret_cast<PCRE2_SPTR>(text_.data()),
                                  text_.size(), starts_[i], options, state.data, state.context);
    if (found >= 0) return std::optional<std::string_view>(compiled.pattern);
    if (found == PCRE2_ERROR_PARTIAL) {
      starts_[i] = std::max(starts_[i], pcre2_get_ovector_pointer(state.data)[0]);
    } else if (found == PCRE2_ERROR_NOMATCH) {
      starts_[i] = text_.size();
    } else {
      return TooManySteps(compiled.pattern);
    }
  }
  DropOldText();
  return std::optional<std::string_view>();
}

void StopRegexes::Search::DropOldText() {
  size_t first = text_.size();
  for (size_t& start : starts_) {
    if (text_.size() - start > kWindowBytes) start = text_.size() - kWindowBytes;
    while (start < text_.size() && !BeginsCharacter(text_[start])) ++start;
    first = std::min(first, start);
  }
  // In steps, so that a character costs no copy of the window.
  if (first < regexes_->lookbehind_bytes_ + kWindowBytes) return;
  size_t drop = first - regexes_->lookbehind_bytes_;
  while (!BeginsCharacter(text_[drop])) ++drop;
  text_.erase(0, drop);
  for (size_t& start : starts_) start -= drop;
  dropped_ = true;
}

}  // namespace tern
