#include "text/scanners.h"

#include <algorithm>

#include "text/unicode.h"

namespace tern {
namespace {

using enum GeneralCategory;

bool IsNewline(const TextChar& c) { return c.code_point == '\r' || c.code_point == '\n'; }

// End of the run of characters of `set` at pos.
size_t EndOfRun(std::string_view text, size_t pos, UnicodeSet set) {
  for (TextChar c = CharAt(text, pos); c.In(set); c = CharAt(text, pos)) pos += c.size_bytes;
  return pos;
}

// [^\s\p{L}\p{N}]+
size_t EndOfSymbols(std::string_view text, size_t pos) {
  constexpr UnicodeSet kNot = kWhiteSpace | kLetter | kNumber;
  TextChar c = CharAt(text, pos);
  while (!c.AtEnd() && !c.In(kNot)) {
    pos += c.size_bytes;
    c = CharAt(text, pos);
  }
  return pos;
}

// The contraction at pos ('s 't 're 've 'm 'll 'd), else pos. With `any_case`, as Unicode folds it:
// U+017F, the long s, is an s.
size_t EndOfContraction(std::string_view text, size_t pos, bool any_case) {
  if (CharAt(text, pos).code_point != '\'') return pos;
  const auto lower = [&](size_t at) -> char32_t {
    const char32_t c = CharAt(text, at).code_point;
    if (!any_case) return c;
    if (c >= 'A' && c <= 'Z') return c + ('a' - 'A');
    return c == 0x017F ? U's' : c;
  };
  const char32_t first = lower(pos + 1);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return pos + 1 + CharAt(text, pos + 1).size_bytes;
    case 'r':
    case 'v':
      return lower(pos + 2) == 'e' ? pos + 3 : pos;
    case 'l':
      return lower(pos + 2) == 'l' ? pos + 3 : pos;
    default:
      return pos;
  }
}

// \p{N}{1,max}
size_t EndOfDigits(std::string_view text, size_t pos, int max) {
  TextChar c = CharAt(text, pos);
  for (int n = 0; n < max && c.In(kNumber); ++n) {
    pos += c.size_bytes;
    c = CharAt(text, pos);
  }
  return pos;
}

// \s+(?!\S)|\s+ : a run of spaces keeps its last one for the word that follows.
// With `break_after_newlines`, \s*[\r\n]+ is tried first: the run ends after its last newline.
size_t EndOfSpaces(std::string_view text, size_t pos, bool break_after_newlines) {
  size_t end = pos, last = pos, after_newline = pos;
  TextChar c = CharAt(text, pos);
  while (c.In(kWhiteSpace)) {
    last = end;
    end += c.size_bytes;
    if (IsNewline(c)) after_newline = end;
    c = CharAt(text, end);
  }
  if (break_after_newlines && after_newline > pos) return after_newline;
  return c.AtEnd() || last == pos ? end : last;
}

size_t ScanGpt2(std::string_view text, size_t pos) {
  if (const size_t end = EndOfContraction(text, pos, false); end > pos) return end;
  const size_t word = pos + (text[pos] == ' ' ? 1 : 0);
  const TextChar c = CharAt(text, word);
  if (c.In(kLetter)) return EndOfRun(text, word, kLetter);
  if (c.In(kNumber)) return EndOfRun(text, word, kNumber);
  if (!c.AtEnd() && !c.In(kWhiteSpace)) return EndOfSymbols(text, word);
  return EndOfSpaces(text, pos, false);
}

// What the cl100k family shares after words and digits:
//  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+   (with `slashes`, [\r\n/]*)
size_t ScanSymbolsOrSpaces(std::string_view text, size_t pos, bool slashes = false) {
  const size_t start = pos + (text[pos] == ' ' ? 1 : 0);
  size_t end = EndOfSymbols(text, start);
  if (end == start) return EndOfSpaces(text, pos, true);
  const std::string_view tail = slashes ? "\r\n/" : "\r\n";
  return std::min(text.find_first_not_of(tail, end), text.size());
}

template <int kMaxDigits>
size_t ScanCl100k(std::string_view text, size_t pos) {
  if (const size_t end = EndOfContraction(text, pos, true); end > pos) return end;
  const TextChar c = CharAt(text, pos);
  if (c.In(kLetter)) return EndOfRun(text, pos, kLetter);
  if (c.In(kNumber)) return EndOfDigits(text, pos, kMaxDigits);
  if (!IsNewline(c)) {
    const size_t start = pos + c.size_bytes;
    if (const size_t end = EndOfRun(text, start, kLetter); end > start) return end;
  }
  return ScanSymbolsOrSpaces(text, pos);
}

// The two classes of words cut by case are [Lu Lt Lm Lo M] and [Ll Lm Lo M]; they overlap.
constexpr UnicodeSet kUpper = SetOf(kLu) | SetOf(kLt) | SetOf(kLm) | SetOf(kLo) | kMark;
constexpr UnicodeSet kLower = SetOf(kLl) | SetOf(kLm) | SetOf(kLo) | kMark;

// Words cut where lower case is followed by upper case. `kExcluded` is taken out of both classes.
template <UnicodeSet kExcluded>
struct CasedWords {
  static bool In(const TextChar& c, UnicodeSet set) { return c.In(set) && !c.In(kExcluded); }

  static size_t EndOfCased(std::string_view text, size_t pos, UnicodeSet set) {
    for (TextChar c = CharAt(text, pos); In(c, set); c = CharAt(text, pos)) pos += c.size_bytes;
    return pos;
  }

  // Upper* Lower+ at pos, else pos. When no lower-case letter follows the run of Upper, it gives
  // back characters up to its last one that is also in Lower, and that one alone is Lower+.
  static size_t EndOfUpperThenLower(std::string_view text, size_t pos) {
    size_t end = pos, end_of_last_shared = pos;
    TextChar c = CharAt(text, pos);
    while (In(c, kUpper)) {
      end += c.size_bytes;
      if (c.In(kLower)) end_of_last_shared = end;
      c = CharAt(text, end);
    }
    return In(c, kLower) ? EndOfCased(text, end, kLower) : end_of_last_shared;
  }

  // Upper+ Lower* at pos, else pos.
  static size_t EndOfUpper(std::string_view text, size_t pos) {
    const size_t end = EndOfCased(text, pos, kUpper);
    return end == pos ? pos : EndOfCased(text, end, kLower);
  }

  // Either form with its contraction, else pos. Each takes one leading character that is no letter,
  // digit or newline; without a match it is tried again without it, which matters for marks.
  static size_t EndOfWord(std::string_view text, size_t pos) {
    const TextChar c = CharAt(text, pos);
    const bool may_lead = !c.In(kLetter | kNumber) && !IsNewline(c);
    for (const auto end_of_form : {EndOfUpperThenLower, EndOfUpper}) {
      for (const size_t start : {pos + (may_lead ? c.size_bytes : 0), pos}) {
        const size_t end = end_of_form(text, start);
        if (end > start) return EndOfContraction(text, end, true);
      }
    }
    return pos;
  }
};

size_t ScanKimi(std::string_view text, size_t pos) {
  if (const size_t end = EndOfRun(text, pos, kHan); end > pos) return end;
  if (const size_t end = CasedWords<kHan>::EndOfWord(text, pos); end > pos) return end;
  if (const size_t end = EndOfDigits(text, pos, 3); end > pos) return end;
  return ScanSymbolsOrSpaces(text, pos);
}

size_t ScanO200k(std::string_view text, size_t pos) {
  if (const size_t end = CasedWords<0>::EndOfWord(text, pos); end > pos) return end;
  if (const size_t end = EndOfDigits(text, pos, 3); end > pos) return end;
  return ScanSymbolsOrSpaces(text, pos, true);
}

}  // namespace

Scanner FindScanner(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return ScanGpt2;
  if (pattern == kLlama3Pattern) return ScanCl100k<3>;
  if (pattern == kQwen2Pattern) return ScanCl100k<1>;
  if (pattern == kKimiPattern) return ScanKimi;
  if (pattern == kO200kPattern) return ScanO200k;
  return nullptr;
}

}  // namespace tern
