// str() and repr() of operators.h: how Python prints values.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

// Namespaces can hold themselves, so printing is bounded apart from kMaxValueDepth.
constexpr int kMaxReprDepth = kMaxValueDepth + 16;

Status AppendSequence(Budget& budget, const Value& v, int depth, std::string* out) {
  const auto& items = v.items();
  *out += v.is_tuple() ? '(' : '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) *out += ", ";
    TERN_RETURN_IF_ERROR(AppendRepr(budget, items[i], depth + 1, out));
  }
  if (v.is_tuple() && items.size() == 1) *out += ',';
  *out += v.is_tuple() ? ')' : ']';
  return OkStatus();
}

Status AppendDict(Budget& budget, const Dict& dict, int depth, std::string* out) {
  *out += '{';
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) *out += ", ";
    first = false;
    TERN_RETURN_IF_ERROR(AppendRepr(budget, key, depth + 1, out));
    *out += ": ";
    TERN_RETURN_IF_ERROR(AppendRepr(budget, value, depth + 1, out));
  }
  *out += '}';
  return OkStatus();
}

}  // namespace

std::string FloatRepr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[64];
  // Shortest digits that read back as d: "d.ddde+XX".
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  std::string sign;
  if (text[0] == '-') {
    sign = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  if (digits.size() > 1) digits.erase(1, 1);
  int exponent = 0;
  const std::string_view exponent_text = text.substr(e + (text[e + 1] == '+' ? 2 : 1));
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  // Python switches to an exponent below 1e-4 and from 1e16 on.
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa += "." + digits.substr(1);
    return fmt::format("{}{}e{}{:02}", sign, mantissa, exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  if (exponent < 0) {
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string StringRepr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    const char32_t c = DecodeUtf8(text, pos, &length);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      out += text.substr(pos, length);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out += c <= 0xFF     ? fmt::format("\\x{:02x}", code)
             : c <= 0xFFFF ? fmt::format("\\u{:04x}", code)
                           : fmt::format("\\U{:08x}", code);
    }
    pos += length;
  }
  out += quote;
  return out;
}

Status AppendRepr(Budget& budget, const Value& v, int depth, std::string* out) {
  if (depth > kMaxReprDepth) return InvalidArgument("a value is nested too deeply to print");
  const size_t before = out->size();
  TERN_RETURN_IF_ERROR(budget.Step());
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      *out += "Undefined";
      break;
    case Value::Kind::kNone:
      *out += "None";
      break;
    case Value::Kind::kBool:
      *out += v.boolean() ? "True" : "False";
      break;
    case Value::Kind::kInt:
      *out += fmt::format("{}", v.integer());
      break;
    case Value::Kind::kFloat:
      *out += FloatRepr(v.number());
      break;
    case Value::Kind::kString:
      *out += v.safe() ? "Markup(" + StringRepr(v.str()) + ")" : StringRepr(v.str());
      break;
    case Value::Kind::kList:
      return AppendSequence(budget, v, depth, out);
    case Value::Kind::kDict:
      return AppendDict(budget, v.dict(), depth, out);
    case Value::Kind::kObject:
      return v.object().AppendRepr(budget, depth, out);
  }
  return budget.Allocate(static_cast<int64_t>(out->size() - before));
}

Status AppendStr(Budget& budget, const Value& v, std::string* out) {
  if (v.is_undefined()) return OkStatus();
  if (!v.is_string()) return AppendRepr(budget, v, 0, out);
  *out += v.str();
  return budget.Scan(static_cast<int64_t>(v.str().size()));
}

Result<std::string> ToStr(Budget& budget, const Value& v) {
  std::string out;
  TERN_RETURN_IF_ERROR(AppendStr(budget, v, &out));
  return out;
}

}  // namespace tern::jinja
