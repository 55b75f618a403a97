#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/piece_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <string>

#include "text/regex_translator.h"

namespace tern {
namespace {

// What a match needs besides the code; one per thread.
struct MatchState {
  MatchState() {
    constexpr size_t kFirstStackBytes = 32 << 10, kMaxStackBytes = 64 << 20;
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(kFirstStackBytes, kMaxStackBytes, nullptr);
    data = pcre2_match_data_create(1, nullptr);
    if (context != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
  pcre2_match_data* data;
};

}  // namespace

struct PieceRegex::Code {
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code = nullptr;
};

PieceRegex::PieceRegex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
PieceRegex::~PieceRegex() = default;

Result<std::unique_ptr<const PieceRegex>> PieceRegex::Compile(std::string_view pattern) {
  TERN_ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
  if (code->code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return Unimplemented(fmt::format("the regular expression '{}' does not compile: {}", pattern,
                                     reinterpret_cast<const char*>(message)));
  }
  // Without JIT (a hardened kernel) the interpreter gives the same matches.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return std::unique_ptr<const PieceRegex>(new PieceRegex(std::move(code)));
}

std::optional<std::pair<size_t, size_t>> PieceRegex::Find(std::string_view text, size_t pos) const {
  static thread_local MatchState state;
  if (state.context == nullptr || state.data == nullptr) return std::nullopt;
  const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                pos, 0, state.data, state.context);
  if (found < 0) return std::nullopt;
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(state.data);
  return std::pair{static_cast<size_t>(span[0]), static_cast<size_t>(span[1])};
}

}  // namespace tern
