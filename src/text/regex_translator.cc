#include "text/regex_translator.h"

#include <fmt/format.h>

#include <map>
#include <optional>

#include "base/utf8.h"
#include "text/code_point_set.h"

namespace tern {
namespace {

constexpr int kMaxNesting = 32;
constexpr size_t kMaxPatternBytes = 4096;

// Properties by the names that patterns use: general categories and their unions, and Han.
std::optional<UnicodeSet> PropertyNamed(std::string_view name) {
  static constexpr std::string_view kCategories[] = {
      "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
      "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn"};
  static_assert(std::size(kCategories) == kGeneralCategories);
  for (int i = 0; i < kGeneralCategories; ++i) {
    if (kCategories[i] == name) return SetOf(static_cast<GeneralCategory>(i));
  }
  if (name == "L" || name == "Letter") return kLetter;
  if (name == "M" || name == "Mark") return kMark;
  if (name == "N" || name == "Number") return kNumber;
  if (name == "P" || name == "Punctuation") return kPunctuation;
  if (name == "S" || name == "Symbol") return kSymbol;
  if (name == "Z" || name == "Separator") return kSeparator;
  if (name == "C" || name == "Other") return kOther;
  if (name == "Han" || name == "Script=Han" || name == "sc=Han") return kHan;
  return std::nullopt;
}

// Pairs of letters that some single character folds to (U+00DF, U+FB00 to U+FB06): Oniguruma
// matches that character, PCRE2 does not.
bool FoldsTogether(char32_t a, char32_t b) {
  const auto lower = [](char32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; };
  a = lower(a);
  b = lower(b);
  return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    if (pattern_.size() > kMaxPatternBytes) {
      return InvalidArgument(fmt::format("a regular expression of {} bytes; the limit is {}",
                                         pattern_.size(), kMaxPatternBytes));
    }
    if (!IsValidUtf8(pattern_)) return InvalidArgument("a regular expression is not UTF-8");
    TERN_RETURN_IF_ERROR(Alternatives(0, false));
    if (pos_ < pattern_.size()) return Refuse("an unmatched ')'");
    return std::move(out_);
  }

 private:
  Status Refuse(std::string_view what) const {
    return Unimplemented(
        fmt::format("{} at byte {} of the regular expression '{}'", what, pos_, pattern_));
  }
  bool AtEnd() const { return pos_ >= pattern_.size(); }
  bool Looking(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!Looking(text)) return false;
    pos_ += text.size();
    return true;
  }
  char32_t TakeChar() {
    size_t length = 0;
    const char32_t c = DecodeUtf8(pattern_, pos_, &length);
    pos_ += length;
    return c;
  }

  // Up to the end of the pattern or an unmatched ')'.
  Status Alternatives(int depth, bool any_case) {
    if (depth > kMaxNesting) return Refuse("too deep nesting");
    char32_t previous_literal = 0;
    while (!AtEnd() && !Looking(")")) {
      if (Take("|")) {
        out_ += '|';
        previous_literal = 0;
        continue;
      }
      char32_t literal = 0;
      TERN_RETURN_IF_ERROR(Atom(depth, any_case, &literal));
      if (any_case && literal >= 0x80) return Refuse("a non-ASCII letter without regard to case");
      if (any_case && FoldsTogether(previous_literal, literal)) {
        return Refuse("letters that fold to one character");
      }
      previous_literal = literal;
      TERN_RETURN_IF_ERROR(Quantifier());
    }
    return OkStatus();
  }

  // *literal: the character, when the atom is one.
  Status Atom(int depth, bool any_case, char32_t* literal) {
    if (Looking("(")) return Group(depth, any_case);
    if (Looking("[")) {
      CodePointSet set;
      TERN_RETURN_IF_ERROR(Class(depth + 1, &set));
      if (any_case && set.ranges().back().last >= 0x80) {
        return Refuse("a class of non-ASCII characters without regard to case");
      }
      out_ += set.ToPcre2();
      return OkStatus();
    }
    if (Take(".")) {
      out_ += CodePointSet('\n', '\n').Complement().ToPcre2();
      return OkStatus();
    }
    for (const char* c : {"*", "+", "?", "^", "$"}) {
      if (Looking(c)) return Refuse(fmt::format("'{}'", c));
    }
    if (Looking("\\")) {
      CodePointSet set;
      TERN_RETURN_IF_ERROR(Escape(&set, literal));
      if (*literal == 0) {
        if (any_case) return Refuse("a class without regard to case");
        out_ += set.ToPcre2();
        return OkStatus();
      }
    } else {
      *literal = TakeChar();
    }
    out_ += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(*literal));
    return OkStatus();
  }

  Status Group(int depth, bool any_case) {
    static constexpr std::string_view kOpenings[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (Take("(?i:")) {
      out_ += "(?i:";
      any_case = true;
    } else if (!Looking("(?")) {
      pos_ += 1;
      out_ += "(?:";
    } else {
      std::string_view taken;
      for (const std::string_view opening : kOpenings) {
        if (Take(opening)) taken = opening;
        if (!taken.empty()) break;
      }
      if (taken.empty()) return Refuse("a group of an unknown kind");
      out_ += taken;
    }
    TERN_RETURN_IF_ERROR(Alternatives(depth + 1, any_case));
    if (!Take(")")) return Refuse("a group without its ')'");
    out_ += ')';
    return OkStatus();
  }

  Status Quantifier() {
    bool interval = false;
    if (Looking("*") || Looking("+") || Looking("?")) {
      out_ += pattern_[pos_++];
    } else if (Looking("{")) {
      TERN_RETURN_IF_ERROR(Interval());
      interval = true;
    } else {
      return OkStatus();
    }
    // "x{1,3}+" repeats x{1,3} in Oniguruma and is possessive elsewhere.
    if (Looking("+") && interval) return Refuse("'+' after an interval");
    if (Looking("+") || Looking("?")) out_ += pattern_[pos_++];
    if (Looking("*") || Looking("+") || Looking("?") || Looking("{")) {
      return Refuse("a repeated repetition");
    }
    return OkStatus();
  }

  // {n}, {n,}, {,m}, {n,m}
  Status Interval() {
    const size_t close = pattern_.find('}', pos_);
    if (close == std::string_view::npos) return Refuse("'{'");
    const std::string_view body = pattern_.substr(pos_ + 1, close - pos_ - 1);
    const size_t comma = body.find(',');
    const std::string_view low = body.substr(0, comma);
    const bool exact = comma == std::string_view::npos;
    const std::string_view high = exact ? low : body.substr(comma + 1);
    const auto is_count = [](std::string_view text) {
      return text.size() <= 3 && text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    if (!is_count(low) || !is_count(high) || (low.empty() && high.empty())) return Refuse("'{'");
    if (exact && pattern_.substr(close + 1).starts_with("?")) return Refuse("'?' after '{n}'");
    out_ += fmt::format("{{{},{}}}", low.empty() ? "0" : low, high);
    pos_ = close + 1;
    return OkStatus();
  }

  // An escape in or outside a class: a set, or a single character in *literal.
  Status Escape(CodePointSet* set, char32_t* literal) {
    pos_ += 1;
    if (AtEnd()) return Refuse("a '\\' at the end");
    const char c = pattern_[pos_];
    switch (c) {
      case 'r':
        *literal = '\r';
        break;
      case 'n':
        *literal = '\n';
        break;
      case 't':
        *literal = '\t';
        break;
      case 'f':
        *literal = '\f';
        break;
      case 'v':
        *literal = '\v';
        break;
      case 'x':
      case 'u':
        return HexEscape(literal);
      case 'p':
      case 'P':
        return PropertyEscape(set);
      case 's':
        *set = Properties(kWhiteSpace);
        break;
      case 'S':
        *set = Properties(kWhiteSpace).Complement();
        break;
      case 'd':
        *set = Properties(SetOf(GeneralCategory::kNd));
        break;
      case 'D':
        *set = Properties(SetOf(GeneralCategory::kNd)).Complement();
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x80 || c <= ' ' || std::isalnum(c)) {
          return Refuse(fmt::format("'\\{}'", c));
        }
        *literal = static_cast<char32_t>(c);
    }
    pos_ += 1;
    return OkStatus();
  }

  // \xHH, \x{H...}, \uHHHH
  Status HexEscape(char32_t* literal) {
    const bool long_form = pattern_[pos_] == 'u';
    pos_ += 1;
    const bool braces = !long_form && Take("{");
    const size_t digits = braces ? pattern_.substr(pos_).find('}') : (long_form ? 4 : 2);
    if (digits == std::string_view::npos || digits == 0 || digits > 8 ||
        pos_ + digits > pattern_.size()) {
      return Refuse("a hexadecimal escape");
    }
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = pattern_[pos_ + i];
      if (!std::isxdigit(static_cast<unsigned char>(c))) return Refuse("a hexadecimal escape");
      value = value << 4 | static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value == 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      return Refuse("a hexadecimal escape");
    }
    pos_ += digits + (braces ? 1 : 0);
    *literal = value;
    return OkStatus();
  }

  // \p{Name}, \p{^Name}, \P{Name}. Rust has \pL too; in Oniguruma that is the text "pL".
  Status PropertyEscape(CodePointSet* set) {
    bool negated = pattern_[pos_] == 'P';
    const size_t start = pos_;
    pos_ += 1;
    const size_t close = pattern_.find('}', pos_);
    if (!Take("{") || close == std::string_view::npos) return Refuse("a property without braces");
    if (Take("^")) negated = !negated;
    const std::string_view name = pattern_.substr(pos_, close - pos_);
    pos_ = close + 1;
    const std::optional<UnicodeSet> property = PropertyNamed(name);
    if (!property) {
      pos_ = start;
      return Refuse(fmt::format("the unknown property '{}'", name));
    }
    *set = Properties(*property);
    if (negated) *set = set->Complement();
    return OkStatus();
  }

  // A class from its '[' to its ']', with ranges, nested classes and intersections.
  Status Class(int depth, CodePointSet* result) {
    if (depth > kMaxNesting) return Refuse("too deep nesting");
    pos_ += 1;
    const bool negated = Take("^");
    if (Looking("]")) return Refuse("a class that starts with ']'");
    CodePointSet all = CodePointSet().Complement();  // of the operands of && so far
    CodePointSet operand;
    for (;;) {
      if (AtEnd()) return Refuse("a class without its ']'");
      if (Take("]")) break;
      if (Take("&&")) {
        all = all.Intersection(operand);
        operand = CodePointSet();
        continue;
      }
      if (Looking("--") || Looking("~~") || Looking("[:")) {
        return Refuse(fmt::format("'{}' in a class", pattern_.substr(pos_, 2)));
      }
      CodePointSet item;
      TERN_RETURN_IF_ERROR(ClassItem(depth, &item));
      operand.Add(item);
    }
    *result = all.Intersection(operand);
    if (negated) *result = result->Complement();
    if (result->ranges().empty()) return Refuse("an empty class");
    return OkStatus();
  }

  // A nested class, an escape, a character or a range of characters.
  Status ClassItem(int depth, CodePointSet* item) {
    if (Looking("[")) return Class(depth + 1, item);
    char32_t first = 0;
    TERN_RETURN_IF_ERROR(ClassChar(item, &first));
    if (first == 0) return OkStatus();
    char32_t last = first;
    const std::string_view rest = pattern_.substr(pos_);
    if (rest.starts_with("--")) return Refuse("'--' in a class");
    if (rest.starts_with("-") && !rest.starts_with("-]") && !rest.starts_with("-[")) {
      pos_ += 1;
      CodePointSet set;
      last = 0;
      if (AtEnd()) return Refuse("a class without its ']'");
      TERN_RETURN_IF_ERROR(ClassChar(&set, &last));
      if (last < first) return Refuse("a range that ends before it starts");
    }
    *item = CodePointSet(first, last);
    return OkStatus();
  }

  // A set from an escape, or a single character in *literal.
  Status ClassChar(CodePointSet* set, char32_t* literal) {
    if (Looking("\\")) return Escape(set, literal);
    *literal = TakeChar();
    if (*literal == 0) return Refuse("a NUL character");
    return OkStatus();
  }

  const CodePointSet& Properties(UnicodeSet set) {
    const auto [it, added] = properties_.try_emplace(set);
    if (added) it->second = CodePointSet::WithProperties(set);
    return it->second;
  }

  const std::string_view pattern_;
  size_t pos_ = 0;
  std::string out_;
  std::map<UnicodeSet, CodePointSet> properties_;
};

}  // namespace

Result<std::string> TranslateRegex(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace tern
