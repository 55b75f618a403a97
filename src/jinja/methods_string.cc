// Methods of str. On a safe string (Markup) results that are text are safe too, and text put into
// it is escaped.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

Value Like(const Value& self, std::string_view text) {
  return Value::Str(std::string(text), self.safe());
}

// A required str argument.
Result<std::string> TextArg(const BoundArgs& args, size_t i) {
  const Value* v = args.Get(i);
  if (v == nullptr || !v->is_string()) {
    return TypeError(
        fmt::format("a str is needed here, not {}", v == nullptr ? "nothing" : v->type_name()));
  }
  return v->str();
}

// The same, escaped when it goes into a safe string.
Result<std::string> InsertedText(const Value& self, const BoundArgs& args, size_t i) {
  TERN_ASSIGN_OR_RETURN(std::string text, TextArg(args, i));
  return self.safe() && !args.Get(i)->safe() ? EscapeHtml(text) : std::move(text);
}

template <std::string (*Map)(std::string_view)>
Result<Value> MapText(Interpreter&, const Value& self, const BoundArgs&) {
  return Like(self, Map(self.str()));
}

// True when the text is not empty and all code points pass.
template <bool (*Test)(char32_t)>
Result<Value> All(Interpreter&, const Value& self, const BoundArgs&) {
  const std::u32string text = ToCodePoints(self.str());
  return Value::Bool(!text.empty() && std::all_of(text.begin(), text.end(), Test));
}

bool IsAlphaNumeric(char32_t c) { return IsAlpha(c) || IsDigit(c) || IsNumeric(c); }

Result<Value> IsAscii(Interpreter&, const Value& self, const BoundArgs&) {
  return Value::Bool(std::all_of(self.str().begin(), self.str().end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

Result<Value> IsPrintableText(Interpreter&, const Value& self, const BoundArgs&) {
  const std::u32string text = ToCodePoints(self.str());
  return Value::Bool(std::all_of(text.begin(), text.end(), IsPrintable));
}

Result<Value> IsIdentifier(Interpreter&, const Value& self, const BoundArgs&) {
  const std::u32string text = ToCodePoints(self.str());
  return Value::Bool(!text.empty() && IsIdentifierStart(text[0]) &&
                     std::all_of(text.begin(), text.end(), IsIdentifierPart));
}

template <bool (*Is)(char32_t), bool (*IsNot)(char32_t)>
Result<Value> IsCase(Interpreter&, const Value& self, const BoundArgs&) {
  const std::u32string text = ToCodePoints(self.str());
  return Value::Bool(
      std::any_of(text.begin(), text.end(), Is) &&
      std::none_of(text.begin(), text.end(), [](char32_t c) { return IsNot(c) || IsTitle(c); }));
}

Result<Value> IsTitleText(Interpreter&, const Value& self, const BoundArgs&) {
  bool in_word = false, found = false;
  for (const char32_t c : ToCodePoints(self.str())) {
    if (IsUpper(c) || IsTitle(c)) {
      if (in_word) return Value::Bool(false);
      in_word = found = true;
    } else if (IsLower(c)) {
      if (!in_word) return Value::Bool(false);
    } else {
      in_word = false;
    }
  }
  return Value::Bool(found);
}

template <bool kLeft, bool kRight>
Result<Value> Strip(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const auto chars, args.Text(0));
  CodePointTest drop = IsSpace;
  if (chars) {
    drop = [set = ToCodePoints(*chars)](char32_t c) { return set.find(c) != std::u32string::npos; };
  }
  std::string_view text = self.str();
  if (kLeft) text = StripLeft(text, drop);
  if (kRight) text = StripRight(text, drop);
  return Like(self, text);
}

Result<Value> RemovePrefix(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string prefix, TextArg(args, 0));
  const std::string_view text = self.str();
  return Like(self, text.starts_with(prefix) ? text.substr(prefix.size()) : text);
}

Result<Value> RemoveSuffix(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string suffix, TextArg(args, 0));
  const std::string_view text = self.str();
  const bool ends = !suffix.empty() && text.ends_with(suffix);
  return Like(self, ends ? text.substr(0, text.size() - suffix.size()) : text);
}

// text[start:end] by the optional arguments 1 and 2; absent when start is past the end.
Result<std::optional<std::string_view>> Window(const Value& self, const BoundArgs& args) {
  const int64_t length = CodePointCount(self.str());
  const auto bound = [&](size_t i, int64_t absent) -> Result<int64_t> {
    if (args.Get(i) == nullptr || args.Get(i)->is_none()) return absent;
    TERN_ASSIGN_OR_RETURN(const int64_t v, args.Int(i, absent));
    return v < 0 ? std::max<int64_t>(0, v + length) : v;
  };
  TERN_ASSIGN_OR_RETURN(const int64_t begin, bound(1, 0));
  TERN_ASSIGN_OR_RETURN(int64_t end, bound(2, length));
  end = std::min(end, length);
  if (begin > end) return std::optional<std::string_view>();
  return std::optional(CodePointRange(self.str(), begin, end));
}

template <bool kStart>
Result<Value> StartsOrEndsWith(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const auto window, Window(self, args));
  const Value& what = *args.Get(0);
  const auto matches = [&](const Value& affix) -> Result<bool> {
    if (!affix.is_string()) {
      if (affix.is_undefined()) return UndefinedError(affix);
      return TypeError(fmt::format("{} first arg must be str or a tuple of str, not {}",
                                   kStart ? "startswith" : "endswith", affix.type_name()));
    }
    if (!window) return false;
    return kStart ? window->starts_with(affix.str()) : window->ends_with(affix.str());
  };
  if (!what.is_tuple()) {
    TERN_ASSIGN_OR_RETURN(const bool holds, matches(what));
    return Value::Bool(holds);
  }
  for (const Value& affix : what.items()) {
    TERN_ASSIGN_OR_RETURN(const bool holds, matches(affix));
    if (holds) return Value::Bool(true);
  }
  return Value::Bool(false);
}

// The code point index of the first (or last) occurrence, or -1.
template <bool kLast>
Result<int64_t> FindText(const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string what, TextArg(args, 0));
  TERN_ASSIGN_OR_RETURN(const auto window, Window(self, args));
  if (!window) return -1;
  const size_t at = kLast ? window->rfind(what) : window->find(what);
  if (at == std::string_view::npos) return -1;
  const auto offset = static_cast<size_t>(window->data() - self.str().data()) + at;
  return CodePointCount(std::string_view(self.str()).substr(0, offset));
}

template <bool kLast>
Result<Value> Find(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const int64_t at, FindText<kLast>(self, args));
  return Value::Int(at);
}

template <bool kLast>
Result<Value> Index(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const int64_t at, FindText<kLast>(self, args));
  if (at < 0) return InvalidArgument("substring not found");
  return Value::Int(at);
}

Result<Value> Count(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string what, TextArg(args, 0));
  TERN_ASSIGN_OR_RETURN(const auto window, Window(self, args));
  if (!window) return Value::Int(0);
  if (what.empty()) return Value::Int(CodePointCount(*window) + 1);
  int64_t count = 0;
  for (size_t at = window->find(what); at != std::string_view::npos;
       at = window->find(what, at + what.size())) {
    ++count;
  }
  return Value::Int(count);
}

Result<Value> Replace(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string old, TextArg(args, 0));
  TERN_ASSIGN_OR_RETURN(const std::string fresh, InsertedText(self, args, 1));
  TERN_ASSIGN_OR_RETURN(int64_t left, args.Int(2, -1));
  const std::string_view text = self.str();
  std::string out;
  size_t pos = 0;
  while (left != 0 && pos <= text.size()) {
    const size_t at = text.find(old, pos);
    if (at == std::string_view::npos) break;
    TERN_RETURN_IF_ERROR(in.budget().Allocate(static_cast<int64_t>(fresh.size())));
    out += text.substr(pos, at - pos);
    out += fresh;
    pos = at + old.size();
    if (old.empty()) {  // between all characters
      if (pos == text.size()) return Like(self, out);
      size_t length = 0;
      DecodeUtf8(text, pos, &length);
      out += text.substr(pos, length);
      pos += length;
    }
    --left;
  }
  out += text.substr(std::min(pos, text.size()));
  return Like(self, out);
}

Value TextList(const Value& self, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(Like(self, part));
  return Value::MakeList(std::move(items));
}

size_t SpaceEnd(std::string_view text) { return text.size() - StripLeft(text, IsSpace).size(); }

size_t WordEnd(std::string_view text) {
  return text.size() - StripLeft(text, [](char32_t c) { return !IsSpace(c); }).size();
}

std::vector<std::string_view> SplitWords(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text.remove_prefix(SpaceEnd(text));
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      break;
    }
    const size_t end = WordEnd(text);
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
    text.remove_prefix(SpaceEnd(text));
  }
  return parts;
}

std::vector<std::string_view> SplitWordsFromRight(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text = StripRight(text, IsSpace);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(text);
      break;
    }
    const std::string_view rest = StripRight(text, [](char32_t c) { return !IsSpace(c); });
    parts.push_back(text.substr(rest.size()));
    text = StripRight(rest, IsSpace);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool kRight>
Result<Value> Split(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const auto separator, args.Text(0));
  TERN_ASSIGN_OR_RETURN(const int64_t limit, args.Int(1, -1));
  std::string_view text = self.str();
  if (!separator) {
    return TextList(self, kRight ? SplitWordsFromRight(text, limit) : SplitWords(text, limit));
  }
  if (separator->empty()) return InvalidArgument("empty separator");
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = kRight ? text.rfind(*separator) : text.find(*separator);
    if (at == std::string_view::npos) break;
    TERN_RETURN_IF_ERROR(in.budget().Step());
    TERN_RETURN_IF_ERROR(in.budget().Allocate(sizeof(String)));
    const size_t after = at + separator->size();
    parts.push_back(kRight ? text.substr(after) : text.substr(0, at));
    text = kRight ? text.substr(0, at) : text.substr(after);
  }
  parts.push_back(text);
  if (kRight) std::reverse(parts.begin(), parts.end());
  return TextList(self, parts);
}

Result<Value> SplitLinesOf(Interpreter&, const Value& self, const BoundArgs& args) {
  return TextList(self, SplitLines(self.str(), args.Truth(0, false)));
}

template <bool kRight>
Result<Value> Partition(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string separator, TextArg(args, 0));
  if (separator.empty()) return InvalidArgument("empty separator");
  const std::string_view text = self.str();
  const size_t at = kRight ? text.rfind(separator) : text.find(separator);
  if (at == std::string_view::npos) {
    return Value::MakeTuple(
        {kRight ? Like(self, "") : self, Like(self, ""), kRight ? self : Like(self, "")});
  }
  return Value::MakeTuple({Like(self, text.substr(0, at)), Like(self, separator),
                           Like(self, text.substr(at + separator.size()))});
}

Result<Value> Join(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, ToItems(in.budget(), *args.Get(0)));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += self.str();
    if (!items[i].is_string()) {
      return TypeError(fmt::format("sequence item {}: expected str instance, {} found", i,
                                   items[i].type_name()));
    }
    const bool escape = self.safe() && !items[i].safe();
    out += escape ? EscapeHtml(items[i].str()) : items[i].str();
    TERN_RETURN_IF_ERROR(
        in.budget().Allocate(static_cast<int64_t>(items[i].str().size() + self.str().size())));
  }
  return Like(self, out);
}

enum class Side { kLeft, kRight, kBoth };

template <Side kText>
Result<Value> Justify(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const int64_t width, args.Int(0, 0));
  std::string fill = " ";
  if (args.Get(1) != nullptr) {
    TERN_ASSIGN_OR_RETURN(fill, TextArg(args, 1));
    if (CodePointCount(fill) != 1) {
      return TypeError("the fill character must be exactly one character long");
    }
  }
  const int64_t missing = std::max<int64_t>(0, width - CodePointCount(self.str()));
  TERN_RETURN_IF_ERROR(in.budget().Allocate(missing));
  // As CPython: the odd one goes left when the width is odd.
  const int64_t half = missing / 2 + (missing & width & 1);
  const int64_t left = kText == Side::kLeft ? 0 : kText == Side::kRight ? missing : half;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.str();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return Like(self, out);
}

Result<Value> ZeroFill(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const int64_t width, args.Int(0, 0));
  const int64_t missing = std::max<int64_t>(0, width - CodePointCount(self.str()));
  TERN_RETURN_IF_ERROR(in.budget().Allocate(missing));
  const std::string_view text = self.str();
  const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return Like(self, std::string(text.substr(0, sign)) +
                        std::string(static_cast<size_t>(missing), '0') +
                        std::string(text.substr(sign)));
}

Result<Value> Format(Interpreter& in, const Value& self, const BoundArgs& args) {
  return BraceFormat(in, self, args.rest());
}

Result<Value> FormatMap(Interpreter& in, const Value& self, const BoundArgs& args) {
  if (!args.Get(0)->is_dict()) return TypeError("format_map() needs a mapping");
  Args rest;
  for (const auto& [key, value] : args.Get(0)->dict().entries()) {
    if (key.is_string()) rest.keyword.emplace_back(key.str(), value);
  }
  return BraceFormat(in, self, rest);
}

constexpr std::array kTable = {
    Builtin{"capitalize", "/", MapText<Capitalize>},
    Builtin{"center", "/ width fillchar?", Justify<Side::kBoth>},
    Builtin{"count", "/ sub start? end?", Count},
    Builtin{"endswith", "/ suffix start? end?", StartsOrEndsWith<false>},
    Builtin{"find", "/ sub start? end?", Find<false>},
    Builtin{"format", "/ * **", Format},
    Builtin{"format_map", "/ mapping", FormatMap},
    Builtin{"index", "/ sub start? end?", Index<false>},
    Builtin{"isalnum", "/", All<IsAlphaNumeric>},
    Builtin{"isalpha", "/", All<IsAlpha>},
    Builtin{"isascii", "/", IsAscii},
    Builtin{"isdecimal", "/", All<IsDecimal>},
    Builtin{"isdigit", "/", All<IsDigit>},
    Builtin{"isidentifier", "/", IsIdentifier},
    Builtin{"islower", "/", IsCase<IsLower, IsUpper>},
    Builtin{"isnumeric", "/", All<IsNumeric>},
    Builtin{"isprintable", "/", IsPrintableText},
    Builtin{"isspace", "/", All<IsSpace>},
    Builtin{"istitle", "/", IsTitleText},
    Builtin{"isupper", "/", IsCase<IsUpper, IsLower>},
    Builtin{"join", "/ iterable", Join},
    Builtin{"ljust", "/ width fillchar?", Justify<Side::kLeft>},
    Builtin{"lower", "/", MapText<Lower>},
    Builtin{"lstrip", "/ chars?", Strip<true, false>},
    Builtin{"partition", "/ sep", Partition<false>},
    Builtin{"removeprefix", "/ prefix", RemovePrefix},
    Builtin{"removesuffix", "/ suffix", RemoveSuffix},
    Builtin{"replace", "/ old new count?", Replace},
    Builtin{"rfind", "/ sub start? end?", Find<true>},
    Builtin{"rindex", "/ sub start? end?", Index<true>},
    Builtin{"rjust", "/ width fillchar?", Justify<Side::kRight>},
    Builtin{"rpartition", "/ sep", Partition<true>},
    Builtin{"rsplit", "sep? maxsplit?", Split<true>},
    Builtin{"rstrip", "/ chars?", Strip<false, true>},
    Builtin{"split", "sep? maxsplit?", Split<false>},
    Builtin{"splitlines", "keepends?", SplitLinesOf},
    Builtin{"startswith", "/ prefix start? end?", StartsOrEndsWith<true>},
    Builtin{"strip", "/ chars?", Strip<true, true>},
    Builtin{"swapcase", "/", MapText<SwapCase>},
    Builtin{"title", "/", MapText<Title>},
    Builtin{"upper", "/", MapText<Upper>},
    Builtin{"zfill", "/ width", ZeroFill},
};

}  // namespace

std::span<const Builtin> StringMethods() { return kTable; }

}  // namespace tern::jinja
