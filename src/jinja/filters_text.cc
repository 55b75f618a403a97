// Filters on text. soft_str semantics: other values are printed first; safe strings stay safe.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "jinja/builtins.h"
#include "jinja/format.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

bool IsSafe(const Value& v) { return v.is_string() && v.safe(); }

template <std::string (*Map)(std::string_view)>
Result<Value> MapText(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(in.budget(), self));
  return Value::Str(Map(text), IsSafe(self));
}

// jinja2's title: words start after whitespace and ( { [ < -, unlike str.title.
std::string TitleWords(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    const auto is_break = [&](size_t i, size_t* length) {
      const char32_t c = DecodeUtf8(text, i, length);
      return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    };
    size_t length = 0;
    if (is_break(pos, &length)) {
      out += text.substr(pos, length);
      pos += length;
      continue;
    }
    while (end < text.size() && !is_break(end, &length)) end += length;
    size_t first = 0;
    DecodeUtf8(text, pos, &first);
    out += Upper(text.substr(pos, first)) + Lower(text.substr(pos + first, end - pos - first));
    pos = end;
  }
  return out;
}

Result<Value> Replace(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(in.budget(), self));
  TERN_ASSIGN_OR_RETURN(const std::string old, ToStr(in.budget(), *args.Get(0)));
  TERN_ASSIGN_OR_RETURN(const std::string fresh, ToStr(in.budget(), *args.Get(1)));
  Args rest;
  rest.positional = {Value::Str(old), Value::Str(fresh)};
  if (args.Get(2) != nullptr && !args.Get(2)->is_none()) rest.positional.push_back(*args.Get(2));
  TERN_ASSIGN_OR_RETURN(const Value method, in.GetAttr(Value::Str(text), "replace"));
  return in.Call(method, std::move(rest));
}

// Calls the string method `name` on str(self).
Result<Value> CallMethod(Interpreter& in, const Value& self, std::string_view name, Args args) {
  TERN_ASSIGN_OR_RETURN(std::string text, ToStr(in.budget(), self));
  TERN_ASSIGN_OR_RETURN(const Value method,
                        in.GetAttr(Value::Str(std::move(text), IsSafe(self)), name));
  return in.Call(method, std::move(args));
}

Result<Value> Trim(Interpreter& in, const Value& self, const BoundArgs& args) {
  Args rest;
  if (args.Get(0) != nullptr) rest.positional.push_back(*args.Get(0));
  return CallMethod(in, self, "strip", std::move(rest));
}

Result<Value> Center(Interpreter& in, const Value& self, const BoundArgs& args) {
  Args rest;
  rest.positional.push_back(args.Or(0, Value::Int(80)));
  return CallMethod(in, self, "center", std::move(rest));
}

Result<Value> ToText(Interpreter& in, const Value& self, const BoundArgs&) {
  if (self.is_string()) return self;
  TERN_ASSIGN_OR_RETURN(std::string text, ToStr(in.budget(), self));
  return Value::Str(std::move(text));
}

Result<Value> Safe(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(std::string text, ToStr(in.budget(), self));
  return Value::Str(std::move(text), true);
}

Result<Value> Escape(Interpreter& in, const Value& self, const BoundArgs&) {
  if (IsSafe(self)) return self;
  TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(in.budget(), self));
  return Value::Str(EscapeHtml(text), true);
}

Result<Value> ForceEscape(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(in.budget(), self));
  return Value::Str(EscapeHtml(text), true);
}

Result<Value> Indent(Interpreter& in, const Value& self, const BoundArgs& args) {
  if (!self.is_string()) {
    if (self.is_undefined()) return UndefinedError(self);
    return TypeError(fmt::format("indent needs a str, not {}", self.type_name()));
  }
  std::string indention;
  const Value width = args.Or(0, Value::Int(4));
  if (width.is_string()) {
    indention = width.safe() || !self.safe() ? width.str() : EscapeHtml(width.str());
  } else {
    TERN_ASSIGN_OR_RETURN(const int64_t spaces, args.Int(0, 4));
    if (spaces > in.budget().limits().memory_bytes) return InvalidArgument("indent is too large");
    indention.assign(static_cast<size_t>(std::max<int64_t>(0, spaces)), ' ');
  }
  const bool first = args.Truth(1, false), blank = args.Truth(2, false);
  const std::string text = self.str() + "\n";
  std::string out;
  bool is_first = true;
  for (const std::string_view line : SplitLines(text, false)) {
    if (!is_first) out += '\n';
    if (is_first ? first : (blank || !line.empty())) {
      TERN_RETURN_IF_ERROR(in.budget().Allocate(static_cast<int64_t>(indention.size())));
      out += indention;
    }
    out += line;
    is_first = false;
  }
  return Value::Str(std::move(out), self.safe());
}

Result<Value> Truncate(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const int64_t length, args.Int(0, 255));
  const bool kill_words = args.Truth(1, false);
  TERN_ASSIGN_OR_RETURN(const auto end_text, args.Text(2));
  const std::string end = end_text.value_or("...");
  const int64_t end_length = CodePointCount(end);
  TERN_ASSIGN_OR_RETURN(const int64_t leeway, args.Get(3) == nullptr || args.Get(3)->is_none()
                                                  ? Result<int64_t>(5)
                                                  : args.Int(3, 5));
  if (length < end_length) {
    return InvalidArgument(fmt::format("expected length >= {}, got {}", end_length, length));
  }
  if (leeway < 0) return InvalidArgument(fmt::format("expected leeway >= 0, got {}", leeway));
  TERN_ASSIGN_OR_RETURN(const int64_t count, Length(self));
  if (count - leeway <= length) return self;
  if (!self.is_string()) {  // it has a length, but not what a text has
    return TypeError(fmt::format("'{}' object cannot be truncated", self.type_name()));
  }
  const std::string& text = self.str();
  std::string_view kept = CodePointRange(text, 0, length - end_length);
  if (!kill_words) kept = kept.substr(0, kept.rfind(' '));
  return Value::Str(std::string(kept) + end);
}

Result<Value> WordCount(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(in.budget(), self));
  int64_t words = 0;
  bool in_word = false;
  for (const char32_t c : ToCodePoints(text)) {
    const bool word = c == '_' || IsAlpha(c) || IsNumeric(c);
    words += word && !in_word;
    in_word = word;
  }
  return Value::Int(words);
}

Result<Value> Format(Interpreter& in, const Value& self, const BoundArgs& args) {
  const Args& rest = args.rest();
  if (!rest.positional.empty() && !rest.keyword.empty()) {
    return InvalidArgument("can't handle positional and keyword arguments at the same time");
  }
  TERN_ASSIGN_OR_RETURN(const Value format, ToText(in, self, args));
  if (rest.keyword.empty()) {
    return PercentFormat(in.budget(), format, Value::MakeTuple(rest.positional));
  }
  Dict dict;
  for (const auto& [name, value] : rest.keyword) dict.Set(Value::Str(name), value);
  return PercentFormat(in.budget(), format, Value::MakeDict(std::move(dict)));
}

std::string QuoteUrl(std::string_view text, bool query) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

Result<Value> UrlEncode(Interpreter& in, const Value& self, const BoundArgs&) {
  if (self.is_string() || !IsIterable(self)) {
    TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(in.budget(), self));
    return Value::Str(QuoteUrl(text, false));
  }
  Value pairs = self;
  if (self.is_dict()) {
    pairs = Value::Of(std::make_shared<DictView>(in.budget(), self, DictView::Part::kItems));
  }
  TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, ToItems(in.budget(), pairs));
  std::string out;
  for (const Value& item : items) {
    TERN_ASSIGN_OR_RETURN(const std::vector<Value> pair, ToItems(in.budget(), item));
    if (pair.size() != 2) return InvalidArgument("urlencode needs pairs");
    TERN_ASSIGN_OR_RETURN(const std::string key, ToStr(in.budget(), pair[0]));
    TERN_ASSIGN_OR_RETURN(const std::string value, ToStr(in.budget(), pair[1]));
    if (!out.empty()) out += '&';
    out += QuoteUrl(key, true) + "=" + QuoteUrl(value, true);
  }
  return Value::Str(std::move(out));
}

Result<Value> FileSizeFormat(Interpreter& in, const Value& self, const BoundArgs& args) {
  const Result<Value> number = in.ApplyFilter("float", self, {});
  if (!number.ok()) return number;
  const double bytes = number->number();
  const bool binary = args.Truth(0, false);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::Str("1 Byte");
  if (bytes < base) return Value::Str(fmt::format("{} Bytes", static_cast<int64_t>(bytes)));
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  for (size_t i = 0; i < kPrefixes.size(); ++i) {
    unit *= base;
    if (bytes < unit || i + 1 == kPrefixes.size()) {
      const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
      return Value::Str(
          fmt::format("{:.1f} {}{}", base * bytes / unit, prefix, binary ? "iB" : "B"));
    }
  }
  return Internal("no prefix");
}

constexpr std::array kTable = {
    Builtin{"capitalize", "", MapText<Capitalize>},
    Builtin{"center", "width?", Center},
    Builtin{"e", "", Escape},
    Builtin{"escape", "", Escape},
    Builtin{"filesizeformat", "binary?", FileSizeFormat},
    Builtin{"forceescape", "", ForceEscape},
    Builtin{"format", "* **", Format},
    Builtin{"indent", "width? first? blank?", Indent},
    Builtin{"lower", "", MapText<Lower>},
    Builtin{"replace", "old new count?", Replace},
    Builtin{"safe", "", Safe},
    Builtin{"string", "", ToText},
    Builtin{"title", "", MapText<TitleWords>},
    Builtin{"trim", "chars?", Trim},
    Builtin{"truncate", "length? killwords? end? leeway?", Truncate},
    Builtin{"upper", "", MapText<Upper>},
    Builtin{"urlencode", "", UrlEncode},
    Builtin{"wordcount", "", WordCount},
};

}  // namespace

std::span<const Builtin> TextFilters() { return kTable; }

}  // namespace tern::jinja
