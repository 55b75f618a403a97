#include "jinja/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/utf8.h"
#include "jinja/interpreter.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

constexpr int kMaxWidth = 1 << 20;  // of a field; Python would take any

// One conversion: of "%+08.3f" or of "{:*^+#10,.3f}".
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '='; 0: the type's default
  char sign = '-';
  bool alternate = false, zero = false;
  int width = 0;
  int precision = -1;
  char grouping = 0;  // ',' or '_'
  char type = 0;
};

std::string Pad(const Spec& spec, char default_align, const std::string& sign,
                const std::string& body) {
  const int64_t length = CodePointCount(sign) + CodePointCount(body);
  const auto missing = static_cast<size_t>(std::max<int64_t>(0, spec.width - length));
  const auto filling = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align != 0 ? spec.align : default_align) {
    case '<':
      return sign + body + filling(missing);
    case '^':
      return filling(missing / 2) + sign + body + filling(missing - missing / 2);
    case '=':
      return sign + filling(missing) + body;
    default:
      return filling(missing) + sign + body;
  }
}

std::string Group(const std::string& digits, char separator, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string SignText(const Spec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
}

std::string FormatInteger(const Spec& spec, int64_t value, bool percent) {
  // As unsigned: -INT64_MIN does not fit.
  const uint64_t magnitude =
      value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  std::string digits, prefix;
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", magnitude);
      prefix = "0x";
      break;
    case 'X':
      digits = fmt::format("{:X}", magnitude);
      prefix = "0X";
      break;
    case 'o':
      digits = fmt::format("{:o}", magnitude);
      prefix = "0o";
      break;
    case 'b':
      digits = fmt::format("{:b}", magnitude);
      prefix = "0b";
      break;
    default:
      digits = fmt::format("{}", magnitude);
      break;
  }
  if (percent && spec.precision > static_cast<int>(digits.size())) {
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  }
  if (spec.grouping != 0) digits = Group(digits, spec.grouping, prefix.empty() ? 3 : 4);
  std::string sign = SignText(spec, value < 0);
  if (spec.alternate) sign += prefix;
  return Pad(spec, '>', sign, digits);
}

std::string FormatFloat(const Spec& spec, double value, bool percent) {
  Spec s = spec;
  const char type = spec.type;
  std::string body;
  const double magnitude = std::fabs(value);
  if (!std::isfinite(value)) {
    body = std::isnan(value) ? "nan" : "inf";
    if (type == 'F' || type == 'E' || type == 'G') body = std::isnan(value) ? "NAN" : "INF";
    if (percent) s.fill = " ";
  } else if (type == 0 && spec.precision < 0) {
    body = FloatRepr(magnitude);
  } else {
    int precision = spec.precision < 0 ? 6 : spec.precision;
    char c = type == 0 || type == 'n' ? 'g' : type == '%' ? 'f' : type;
    if (c == 'g' && precision == 0) precision = 1;
    const std::string format = fmt::format("%{}.*{}", spec.alternate ? "#" : "", c);
    char small[64];
    const double shown = type == '%' ? magnitude * 100 : magnitude;
    const int size = std::snprintf(small, sizeof small, format.c_str(), precision, shown);
    body.resize(static_cast<size_t>(size) + 1);
    std::snprintf(body.data(), body.size(), format.c_str(), precision, shown);
    body.pop_back();
    // format() without a type keeps one digit after the point.
    if (type == 0 && body.find_first_of(".e") == std::string::npos) body += ".0";
  }
  if (spec.grouping != 0 && std::isfinite(value)) {
    const size_t end = std::min(body.find_first_of(".e"), body.size());
    body = Group(body.substr(0, end), spec.grouping, 3) + body.substr(end);
  }
  if (type == '%') body += "%";
  return Pad(s, '>', SignText(spec, std::signbit(value) && !std::isnan(value)), body);
}

std::string Truncated(const std::string& text, int precision) {
  if (precision < 0) return text;
  return std::string(CodePointRange(text, 0, std::min<int64_t>(precision, CodePointCount(text))));
}

Result<int64_t> ToInteger(const Value& v) {
  if (v.is_integral()) return v.integer();
  const double d = std::trunc(v.number());
  if (!(std::fabs(d) < 9.2e18)) return InvalidArgument("number does not fit in 64 bits");
  return static_cast<int64_t>(d);
}

// ---- %

class PercentFormatter {
 public:
  PercentFormatter(Budget& budget, const Value& format, const Value& args)
      : budget_(budget), text_(format.str()), safe_(format.safe()), args_(args) {}

  Result<Value> Run() {
    std::string out;
    while (pos_ < text_.size()) {
      const size_t percent = std::min(text_.find('%', pos_), text_.size());
      out += text_.substr(pos_, percent - pos_);
      pos_ = percent;
      if (pos_ == text_.size()) break;
      ++pos_;
      TERN_ASSIGN_OR_RETURN(const std::string field, Field());
      TERN_RETURN_IF_ERROR(budget_.Allocate(static_cast<int64_t>(field.size())));
      out += field;
    }
    const size_t given = args_.is_tuple() ? args_.items().size() : 1;
    // What Python takes for a mapping need not be used up.
    const bool mapping = args_.is_dict() || args_.is_list() || args_.is_undefined() ||
                         args_.as<RangeObject>() != nullptr;
    if (used_ < given && !mapping && !named_) {
      return TypeError("not all arguments converted during string formatting");
    }
    return Value::Str(std::move(out), safe_);
  }

 private:
  Result<Value> NextArgument() {
    if (!args_.is_tuple() && used_++ == 0) return args_;
    if (!args_.is_tuple() || used_ >= args_.items().size()) {
      return TypeError("not enough arguments for format string");
    }
    return args_.items()[used_++];
  }

  Result<int> Number() {
    if (pos_ < text_.size() && text_[pos_] == '*') {
      ++pos_;
      TERN_ASSIGN_OR_RETURN(const Value v, NextArgument());
      if (!v.is_int()) return TypeError("* wants int");
      if (std::abs(v.integer()) > kMaxWidth) return InvalidArgument("width is too big");
      return static_cast<int>(v.integer());
    }
    int number = 0;
    while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') {
      number = number * 10 + (text_[pos_++] - '0');
      if (number > kMaxWidth) return InvalidArgument("width is too big");
    }
    return number;
  }

  Result<std::string> Field() {
    Spec spec;
    std::optional<Value> named;
    if (pos_ < text_.size() && text_[pos_] == '(') {
      const size_t close = text_.find(')', pos_);
      if (close == std::string_view::npos) return InvalidArgument("incomplete format key");
      const std::string_view key = text_.substr(pos_ + 1, close - pos_ - 1);
      if (!args_.is_dict()) return TypeError("format requires a mapping");
      const Value* value = args_.dict().Find(key);
      if (value == nullptr) return InvalidArgument(fmt::format("no key '{}' to format", key));
      named = *value;
      named_ = true;
      pos_ = close + 1;
    }
    for (; pos_ < text_.size(); ++pos_) {
      const char c = text_[pos_];
      if (c == '-') {
        spec.align = '<';
      } else if (c == '+' || (c == ' ' && spec.sign != '+')) {
        spec.sign = c;
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '0') {
        spec.zero = true;
      } else if (c != ' ') {
        break;
      }
    }
    TERN_ASSIGN_OR_RETURN(spec.width, Number());
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (pos_ < text_.size() && text_[pos_] == '.') {
      ++pos_;
      TERN_ASSIGN_OR_RETURN(spec.precision, Number());
      spec.precision = std::max(spec.precision, 0);
    }
    while (pos_ < text_.size() &&
           (text_[pos_] == 'l' || text_[pos_] == 'h' || text_[pos_] == 'L')) {
      ++pos_;
    }
    if (pos_ == text_.size()) return InvalidArgument("incomplete format");
    spec.type = text_[pos_++];
    if (spec.type == '%') return std::string("%");
    Value v;
    if (named) {
      v = *named;
    } else {
      TERN_ASSIGN_OR_RETURN(v, NextArgument());
    }
    return Convert(spec, v);
  }

  Result<std::string> Convert(Spec spec, const Value& v) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text;
        if (spec.type == 's') {
          TERN_RETURN_IF_ERROR(AppendStr(budget_, v, &text));
          if (safe_ && !(v.is_string() && v.safe())) text = EscapeHtml(text);
        } else {
          TERN_RETURN_IF_ERROR(AppendRepr(budget_, v, 0, &text));
        }
        return Pad(spec, '>', "", Truncated(text, spec.precision));
      }
      case 'c':
        if (v.is_string() && CodePointCount(v.str()) == 1) return Pad(spec, '>', "", v.str());
        if (v.is_integral() && v.integer() >= 0 && v.integer() <= 0x10FFFF &&
            (v.integer() < 0xD800 || v.integer() > 0xDFFF)) {
          std::string text;
          AppendUtf8(static_cast<char32_t>(v.integer()), &text);
          return Pad(spec, '>', "", text);
        }
        return TypeError("%c requires int or char");
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        const bool needs_int = spec.type == 'x' || spec.type == 'X' || spec.type == 'o';
        if (!v.is_number() || (needs_int && v.is_float())) {
          return TypeError(fmt::format("%{} format: {} is required, not {}", spec.type,
                                       needs_int ? "an integer" : "a real number", v.type_name()));
        }
        TERN_ASSIGN_OR_RETURN(const int64_t i, ToInteger(v));
        ZeroFill(&spec);
        return FormatInteger(spec, i, true);
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (!v.is_number()) {
          return TypeError(fmt::format("must be real number, not {}", v.type_name()));
        }
        ZeroFill(&spec);
        return FormatFloat(spec, v.number(), true);
      default:
        return InvalidArgument(fmt::format("unsupported format character '{}'", spec.type));
    }
  }

  static void ZeroFill(Spec* spec) {
    if (!spec->zero || spec->align == '<') return;
    spec->fill = "0";
    spec->align = '=';
  }

  Budget& budget_;
  const std::string_view text_;
  const bool safe_;
  const Value& args_;
  size_t pos_ = 0;
  size_t used_ = 0;
  bool named_ = false;
};

// ---- {}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Value& format, const Args& args)
      : in_(in), text_(format.str()), safe_(format.safe()), args_(args) {}

  Result<Value> Run() {
    TERN_ASSIGN_OR_RETURN(std::string out, Expand(text_, 2));
    return Value::Str(std::move(out), safe_);
  }

 private:
  // `levels`: how deep fields may nest (a specification may hold fields).
  Result<std::string> Expand(std::string_view text, int levels) {
    if (levels < 0) return InvalidArgument("max string recursion exceeded");
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c != '{' && c != '}') {
        out += c;
        ++i;
      } else if (i + 1 < text.size() && text[i + 1] == c) {
        out += c;
        i += 2;
      } else if (c == '}') {
        return InvalidArgument("single '}' encountered in format string");
      } else {
        size_t end = i + 1;
        for (int open = 1; end < text.size(); ++end) {
          if (text[end] == '{') ++open;
          if (text[end] == '}' && --open == 0) break;
        }
        if (end >= text.size()) return InvalidArgument("expected '}' before end of string");
        TERN_ASSIGN_OR_RETURN(const std::string field,
                              Field(text.substr(i + 1, end - i - 1), levels));
        TERN_RETURN_IF_ERROR(in_.budget().Allocate(static_cast<int64_t>(field.size())));
        out += field;
        i = end + 1;
      }
    }
    return out;
  }

  Result<std::string> Field(std::string_view field, int levels) {
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    TERN_ASSIGN_OR_RETURN(Value v, Lookup(field.substr(0, name_end)));
    std::string_view rest = field.substr(name_end);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) {
        return InvalidArgument("expected ':' after conversion specifier");
      }
      std::string text;
      if (rest[1] == 's') {
        TERN_RETURN_IF_ERROR(AppendStr(in_.budget(), v, &text));
      } else if (rest[1] == 'r') {
        TERN_RETURN_IF_ERROR(AppendRepr(in_.budget(), v, 0, &text));
      } else {
        return InvalidArgument(fmt::format("unknown conversion specifier '{}'", rest[1]));
      }
      v = Value::Str(std::move(text));
      rest.remove_prefix(2);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    TERN_ASSIGN_OR_RETURN(const std::string spec_text, Expand(rest, levels - 1));
    TERN_ASSIGN_OR_RETURN(const std::string text, Convert(spec_text, v));
    return safe_ && !(v.is_string() && v.safe()) ? EscapeHtml(text) : text;
  }

  // "0.name[key]": an argument, then attributes and items.
  Result<Value> Lookup(std::string_view path) {
    size_t end = std::min(path.find_first_of(".["), path.size());
    const std::string_view first = path.substr(0, end);
    Value v;
    if (first.empty() ||
        std::all_of(first.begin(), first.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      const bool automatic = first.empty();
      if (numbering_ != 0 && numbering_ != (automatic ? 1 : 2)) {
        return InvalidArgument("cannot mix automatic and manual field numbering");
      }
      numbering_ = automatic ? 1 : 2;
      size_t i = next_;
      if (automatic) {
        ++next_;
      } else if (std::from_chars(first.data(), first.data() + first.size(), i).ec != std::errc()) {
        return InvalidArgument("too many decimal digits in format string");
      }
      if (i >= args_.positional.size()) {
        return InvalidArgument("replacement index is out of range for positional args tuple");
      }
      v = args_.positional[i];
    } else {
      const auto it = std::find_if(args_.keyword.begin(), args_.keyword.end(),
                                   [&](const auto& k) { return k.first == first; });
      if (it == args_.keyword.end()) {
        return InvalidArgument(fmt::format("no argument '{}' to format", first));
      }
      v = it->second;
    }
    while (end < path.size()) {
      if (path[end] == '.') {
        const size_t next = std::min(path.find_first_of(".[", end + 1), path.size());
        TERN_ASSIGN_OR_RETURN(v, in_.GetAttr(v, path.substr(end + 1, next - end - 1)));
        end = next;
      } else {
        const size_t close = path.find(']', end);
        if (close == std::string_view::npos) return InvalidArgument("missing ']' in format string");
        const std::string_view key = path.substr(end + 1, close - end - 1);
        int64_t index = 0;
        const auto parsed = std::from_chars(key.data(), key.data() + key.size(), index);
        const bool is_index = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size() &&
                              !key.starts_with('-');
        TERN_ASSIGN_OR_RETURN(
            v, in_.GetItem(v, is_index ? Value::Int(index) : Value::Str(std::string(key))));
        end = close + 1;
      }
    }
    return v;
  }

  static Result<Spec> ParseSpec(std::string_view text) {
    Spec spec;
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    size_t fill_length = 0;
    if (!text.empty()) DecodeUtf8(text, 0, &fill_length);
    if (fill_length < text.size() && is_align(text[fill_length])) {
      spec.fill = text.substr(0, fill_length);
      spec.align = text[fill_length];
      text.remove_prefix(fill_length + 1);
    } else if (!text.empty() && is_align(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
    const auto take = [&text](std::string_view any_of) {
      if (text.empty() || any_of.find(text[0]) == std::string_view::npos) return '\0';
      const char c = text[0];
      text.remove_prefix(1);
      return c;
    };
    if (const char sign = take("+- ")) spec.sign = sign;
    spec.alternate = take("#") != 0;
    spec.zero = take("0") != 0;
    const auto number = [&](int* out) -> Status {
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *out);
      if (parsed.ec == std::errc::result_out_of_range || *out > kMaxWidth) {
        return InvalidArgument("a width or precision in a format specification is too big");
      }
      text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
      return OkStatus();
    };
    if (!text.empty() && text[0] != '-') TERN_RETURN_IF_ERROR(number(&spec.width));
    spec.grouping = take(",_");
    if (take(".")) {
      spec.precision = -1;
      if (!text.empty() && text[0] != '-') TERN_RETURN_IF_ERROR(number(&spec.precision));
      if (spec.precision < 0) return InvalidArgument("format specifier missing precision");
    }
    spec.type = take("bcdeEfFgGnosxX%");
    if (!text.empty()) return InvalidArgument("invalid format specifier");
    if (spec.zero && spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    return spec;
  }

  Result<std::string> Convert(const std::string& spec_text, const Value& v) {
    if (spec_text.empty()) return ToStr(in_.budget(), v);
    if (!v.is_string() && !v.is_number()) {
      return TypeError(
          fmt::format("unsupported format string passed to {}.__format__", v.type_name()));
    }
    TERN_ASSIGN_OR_RETURN(Spec spec, ParseSpec(spec_text));
    const auto bad_type = [&] {
      return InvalidArgument(fmt::format("unknown format code '{}' for object of type '{}'",
                                         spec.type, v.type_name()));
    };
    if (v.is_string()) {
      if (spec.type != 0 && spec.type != 's') return bad_type();
      if (spec.align == '=' && spec.fill == "0") spec.align = '<';
      if (spec.align == '=') return InvalidArgument("'=' alignment not allowed in string format");
      return Pad(spec, '<', "", Truncated(v.str(), spec.precision));
    }
    if (spec.type == 's') return bad_type();
    const bool float_type =
        spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
    if (v.is_float() || float_type) {
      if (spec.type != 0 && spec.type != 'n' && !float_type) return bad_type();
      return FormatFloat(spec, v.number(), false);
    }
    if (spec.precision >= 0) {
      return InvalidArgument("precision not allowed in integer format specifier");
    }
    if (spec.type == 'c') {
      if (v.integer() < 0 || v.integer() > 0x10FFFF ||
          (v.integer() >= 0xD800 && v.integer() < 0xE000)) {
        return InvalidArgument("%c arg not in range(0x110000)");
      }
      std::string text;
      AppendUtf8(static_cast<char32_t>(v.integer()), &text);
      return Pad(spec, '<', "", text);
    }
    return FormatInteger(spec, v.integer(), false);
  }

  Interpreter& in_;
  const std::string_view text_;
  const bool safe_;
  const Args& args_;
  size_t next_ = 0;
  int numbering_ = 0;  // 0: not known yet, 1: "{}", 2: "{0}"
};

}  // namespace

Result<Value> PercentFormat(Budget& budget, const Value& format, const Value& args) {
  TERN_RETURN_IF_ERROR(budget.Scan(static_cast<int64_t>(format.str().size())));
  return PercentFormatter(budget, format, args).Run();
}

Result<Value> BraceFormat(Interpreter& interpreter, const Value& format, const Args& args) {
  TERN_RETURN_IF_ERROR(interpreter.budget().Scan(static_cast<int64_t>(format.str().size())));
  return BraceFormatter(interpreter, format, args).Run();
}

}  // namespace tern::jinja
