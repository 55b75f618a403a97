#include "checkpoint/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

namespace tern {
namespace {

constexpr std::string_view kRegexPrefix = "re:";
constexpr size_t kMaxPatternBytes = 4096;
constexpr uint32_t kMaxMatchSteps = 100'000, kMaxMatchDepth = 1000, kMaxHeapKib = 1024;

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

Result<ModulePattern> ModulePattern::Make(std::string_view entry) {
  ModulePattern pattern;
  pattern.text_ = entry;
  if (!entry.starts_with(kRegexPrefix)) return pattern;
  const std::string_view regex = entry.substr(kRegexPrefix.size());
  if (regex.size() > kMaxPatternBytes) {
    return InvalidArgument(fmt::format("a pattern of {} bytes is too long", regex.size()));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(Units(regex), regex.size(), PCRE2_ANCHORED, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return InvalidArgument(fmt::format("'{}' is no regular expression: {} at byte {}", entry,
                                       reinterpret_cast<const char*>(message), offset));
  }
  pattern.code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  return pattern;
}

bool ModulePattern::Matches(std::string_view module) const {
  if (code_ == nullptr) return module == text_;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatch> context(
      pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) return false;
  pcre2_set_match_limit(context.get(), kMaxMatchSteps);
  pcre2_set_depth_limit(context.get(), kMaxMatchDepth);
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  return pcre2_match(code, Units(module), module.size(), 0, 0, data.get(), context.get()) >= 0;
}

}  // namespace tern
