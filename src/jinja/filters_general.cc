// Filters on any value: defaults, numbers, JSON.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "jinja/builtins.h"
#include "jinja/json_value.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

Result<Value> Default(Interpreter&, const Value& self, const BoundArgs& args) {
  if (self.is_undefined() || (args.Truth(1, false) && !Truth(self))) {
    return args.Or(0, Value::Str(""));
  }
  return self;
}

Result<Value> Attr(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const std::string name, ToStr(in.budget(), *args.Get(0)));
  // Unlike object.name this never looks among a dict's keys.
  if (self.is_dict() && FindMethod(self, name) == nullptr) {
    return Value::Undef(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return in.GetAttr(self, name);
}

Result<Value> Abs(Interpreter&, const Value& self, const BoundArgs&) {
  if (self.is_undefined()) {
    return TypeError("bad operand type for abs(): 'Undefined'");
  }
  if (self.is_integral()) return self.integer() < 0 ? Negate(self) : Value::Int(self.integer());
  if (self.is_float()) return Value::Float(std::fabs(self.number()));
  return TypeError(fmt::format("bad operand type for abs(): '{}'", self.type_name()));
}

// Removes Python's digit separators: single underscores between digits. Absent: misplaced.
std::optional<std::string> WithoutSeparators(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_' || text[i - 1] == '.') {
      return std::nullopt;
    }
  }
  return out;
}

// float(text). Absent: not a number.
std::optional<double> ParseFloat(std::string_view text) {
  const auto digits = WithoutSeparators(StripSpace(text));
  if (!digits || digits->empty()) return std::nullopt;
  const std::string lower = Lower(*digits);
  // strtod also takes hexadecimal and "nan(...)"; Python does not.
  if (lower.find_first_of("xp(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double d = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return d;
}

// int(text, base). Absent: not an integer; an error: too large.
Result<std::optional<int64_t>> ParseInt(std::string_view text, int64_t base) {
  text = StripSpace(text);
  std::string sign;
  if (text.starts_with('-') || text.starts_with('+')) {
    if (text[0] == '-') sign = "-";
    text.remove_prefix(1);
  }
  const std::string head = Lower(text.substr(0, 2));
  const int64_t implied = head == "0x" ? 16 : head == "0o" ? 8 : head == "0b" ? 2 : 0;
  if (implied != 0 && (base == 0 || base == implied)) {
    base = implied;
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
  } else if (base == 0) {
    base = 10;
  }
  if (base < 2 || base > 36) return std::optional<int64_t>();
  const auto digits = WithoutSeparators(text);
  if (!digits || digits->empty() || *digits->begin() == '-') return std::optional<int64_t>();
  const std::string all = sign + *digits;
  int64_t value = 0;
  const auto result =
      std::from_chars(all.data(), all.data() + all.size(), value, static_cast<int>(base));
  if (result.ptr != all.data() + all.size()) return std::optional<int64_t>();
  if (result.ec == std::errc::result_out_of_range) {
    return InvalidArgument("integer does not fit in 64 bits");
  }
  return std::optional<int64_t>(value);
}

Result<Value> FloatToInt(double d, const Value& fallback) {
  if (!std::isfinite(d)) return fallback;
  const double whole = std::trunc(d);
  if (!(whole >= -9223372036854775808.0 && whole < 9223372036854775808.0)) {
    return InvalidArgument("integer does not fit in 64 bits");
  }
  return Value::Int(static_cast<int64_t>(whole));
}

Result<Value> ToInt(Interpreter&, const Value& self, const BoundArgs& args) {
  const Value fallback = args.Or(0, Value::Int(0));
  TERN_ASSIGN_OR_RETURN(const int64_t base, args.Int(1, 10));
  if (self.is_undefined()) return UndefinedError(self);
  if (self.is_integral()) return Value::Int(self.integer());
  if (self.is_float()) return FloatToInt(self.number(), fallback);
  if (!self.is_string()) return fallback;
  TERN_ASSIGN_OR_RETURN(const auto whole, ParseInt(self.str(), base));
  if (whole) return Value::Int(*whole);
  const auto number = ParseFloat(self.str());
  return number ? FloatToInt(*number, fallback) : fallback;
}

Result<Value> ToFloat(Interpreter&, const Value& self, const BoundArgs& args) {
  const Value fallback = args.Or(0, Value::Float(0));
  if (self.is_undefined()) return UndefinedError(self);
  if (self.is_number()) return Value::Float(self.number());
  if (!self.is_string()) return fallback;
  const auto number = ParseFloat(self.str());
  return number ? Value::Float(*number) : fallback;
}

// round() of an integer to tens, hundreds...: half to even.
Result<Value> RoundInteger(int64_t value, int64_t precision) {
  if (precision >= 0) return Value::Int(value);
  if (precision < -18) return Value::Int(0);
  int64_t unit = 1;
  for (int64_t i = 0; i < -precision; ++i) unit *= 10;
  int64_t down = value / unit, rest = value % unit;
  if (rest < 0) {
    rest += unit;
    --down;
  }
  if (rest > unit - rest || (rest == unit - rest && (down & 1) != 0)) ++down;
  int64_t rounded = 0;
  if (__builtin_mul_overflow(down, unit, &rounded)) {
    return InvalidArgument("integer does not fit in 64 bits");
  }
  return Value::Int(rounded);
}

Result<Value> Round(Interpreter&, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const int64_t precision, args.Int(0, 0));
  const Value method = args.Or(1, Value::Str("common"));
  const bool common = method.is_string() && method.str() == "common";
  const bool ceil = method.is_string() && method.str() == "ceil";
  if (!common && !ceil && !(method.is_string() && method.str() == "floor")) {
    return InvalidArgument("method must be common, ceil or floor");
  }
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_number()) {
    return TypeError(fmt::format("type {} doesn't define __round__ method", self.type_name()));
  }
  if (common && self.is_integral()) return RoundInteger(self.integer(), precision);
  const double d = self.number();
  if (common) {
    if (!std::isfinite(d) || precision > 323) return self;
    if (precision < 0) {
      const double unit = std::pow(10.0, static_cast<double>(-std::max<int64_t>(precision, -309)));
      return Value::Float(std::isinf(unit) ? 0 * d : std::nearbyint(d / unit) * unit);
    }
    // printf rounds the exact binary value, half to even, as Python's round().
    return Value::Float(
        std::strtod(fmt::format("{:.{}f}", d, static_cast<int>(precision)).c_str(), nullptr));
  }
  if (std::abs(precision) > 308) return InvalidArgument("precision is out of range");
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = d * unit;
  if (!std::isfinite(scaled)) return InvalidArgument("cannot round a number that is not finite");
  return Value::Float((ceil ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Result<Value> ToJsonFilter(Interpreter& in, const Value& self, const BoundArgs& args) {
  JsonStyle style;
  style.ensure_ascii = args.Truth(0, false);
  if (const Value* indent = args.Get(1); indent != nullptr && !indent->is_none()) {
    style.item_separator = ",";
    if (indent->is_string()) {
      style.indent = indent->str();
    } else {
      TERN_ASSIGN_OR_RETURN(const int64_t width, args.Int(1, 0));
      if (width > 1024) return InvalidArgument("indent is too large");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
    }
  }
  if (const Value* separators = args.Get(2); separators != nullptr && !separators->is_none()) {
    TERN_ASSIGN_OR_RETURN(const std::vector<Value> pair, ToItems(in.budget(), *separators));
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      return TypeError("separators must be two strings");
    }
    style.item_separator = pair[0].str();
    style.key_separator = pair[1].str();
  }
  style.sort_keys = args.Truth(3, false);
  TERN_ASSIGN_OR_RETURN(std::string text, ToJson(in.budget(), self, style));
  return Value::Str(std::move(text));
}

// Not in transformers, but in templates written for other engines.
Result<Value> FromJsonFilter(Interpreter& in, const Value& self, const BoundArgs&) {
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_string()) {
    return TypeError(fmt::format("from_json needs a str, not {}", self.type_name()));
  }
  TERN_RETURN_IF_ERROR(in.budget().Allocate(static_cast<int64_t>(self.str().size()) * 8));
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJson(self.str()));
  return FromJson(json);
}

constexpr std::array kTable = {
    Builtin{"abs", "", Abs},
    Builtin{"attr", "name", Attr},
    Builtin{"d", "default_value? boolean?", Default},
    Builtin{"default", "default_value? boolean?", Default},
    Builtin{"float", "default?", ToFloat},
    Builtin{"from_json", "", FromJsonFilter},
    Builtin{"int", "default? base?", ToInt},
    Builtin{"round", "precision? method?", Round},
    Builtin{"tojson", "ensure_ascii? indent? separators? sort_keys?", ToJsonFilter},
};

}  // namespace

std::span<const Builtin> GeneralFilters() { return kTable; }

}  // namespace tern::jinja
