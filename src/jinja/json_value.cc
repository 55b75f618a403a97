#include "jinja/json_value.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "base/utf8.h"
#include "jinja/operators.h"

namespace tern::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style) {}

  Status Write(const Value& v, int level) {
    TERN_RETURN_IF_ERROR(budget_.Step());
    const size_t before = out_.size();
    switch (v.kind()) {
      case Value::Kind::kNone:
        out_ += "null";
        break;
      case Value::Kind::kBool:
        out_ += v.boolean() ? "true" : "false";
        break;
      case Value::Kind::kInt:
        out_ += fmt::format("{}", v.integer());
        break;
      case Value::Kind::kFloat:
        out_ += FloatText(v.number());
        break;
      case Value::Kind::kString:
        WriteString(v.str());
        break;
      case Value::Kind::kList:
        return WriteList(v.items(), level);
      case Value::Kind::kDict:
        return WriteDict(v.dict(), level);
      default:
        return TypeError(fmt::format("Object of type {} is not JSON serializable", v.type_name()));
    }
    return budget_.Allocate(static_cast<int64_t>(out_.size() - before));
  }

  std::string Take() { return std::move(out_); }

 private:
  static std::string FloatText(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(d);
  }

  void WriteString(std::string_view text) {
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      size_t length = 0;
      const char32_t c = DecodeUtf8(text, pos, &length);
      switch (c) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        case '\f':
          out_ += "\\f";
          break;
        case '\b':
          out_ += "\\b";
          break;
        default:
          if (c < 0x20 || (style_.ensure_ascii && c > 0x7F)) {
            WriteEscape(c);
          } else {
            out_ += text.substr(pos, length);
          }
      }
      pos += length;
    }
    out_ += '"';
  }

  void WriteEscape(char32_t c) {
    const auto code = static_cast<uint32_t>(c);
    if (code < 0x10000) {
      out_ += fmt::format("\\u{:04x}", code);
    } else {
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                          0xDC00 + ((code - 0x10000) & 0x3FF));
    }
  }

  Status NewLine(int level) {
    if (!style_.indent) return OkStatus();
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
    return budget_.Allocate(1 + level * static_cast<int64_t>(style_.indent->size()));
  }

  Status WriteList(const std::vector<Value>& items, int level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      TERN_RETURN_IF_ERROR(NewLine(level + 1));
      TERN_RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    if (!items.empty()) TERN_RETURN_IF_ERROR(NewLine(level));
    out_ += ']';
    return OkStatus();
  }

  Status WriteKey(const Value& key) {
    switch (key.kind()) {
      case Value::Kind::kString:
        WriteString(key.str());
        return OkStatus();
      case Value::Kind::kNone:
        out_ += "\"null\"";
        return OkStatus();
      case Value::Kind::kBool:
        out_ += key.boolean() ? "\"true\"" : "\"false\"";
        return OkStatus();
      case Value::Kind::kInt:
        out_ += fmt::format("\"{}\"", key.integer());
        return OkStatus();
      case Value::Kind::kFloat:
        out_ += '"' + FloatText(key.number()) + '"';
        return OkStatus();
      default:
        return TypeError(
            fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
    }
  }

  Status WriteDict(const Dict& dict, int level) {
    std::vector<size_t> order(dict.size());
    std::iota(order.begin(), order.end(), 0);
    if (style_.sort_keys) {
      TERN_RETURN_IF_ERROR(StableSort(&order, [&](size_t a, size_t b) {
        return Less(budget_, dict.entries()[a].key, dict.entries()[b].key);
      }));
    }
    out_ += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      const auto& [key, value] = dict.entries()[order[i]];
      if (i > 0) out_ += style_.item_separator;
      TERN_RETURN_IF_ERROR(NewLine(level + 1));
      TERN_RETURN_IF_ERROR(WriteKey(key));
      out_ += style_.key_separator;
      TERN_RETURN_IF_ERROR(Write(value, level + 1));
    }
    if (!order.empty()) TERN_RETURN_IF_ERROR(NewLine(level));
    out_ += '}';
    return OkStatus();
  }

  Budget& budget_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Result<Value> FromJson(const Json& json, int depth) {
  if (depth > kMaxJsonDepth) return InvalidArgument("JSON is nested too deeply");
  switch (json.type()) {
    case Json::value_t::null:
    case Json::value_t::discarded:
      return Value::None();
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto u = json.get<uint64_t>();
      if (u > static_cast<uint64_t>(INT64_MAX)) {
        return InvalidArgument(fmt::format("integer {} does not fit in 64 bits", u));
      }
      return Value::Int(static_cast<int64_t>(u));
    }
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      return Value::Str(IsValidUtf8(text) ? text : ReplaceInvalidUtf8(text));
    }
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) {
        TERN_ASSIGN_OR_RETURN(Value v, FromJson(item, depth + 1));
        items.push_back(std::move(v));
      }
      return Value::MakeList(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        TERN_ASSIGN_OR_RETURN(Value v, FromJson(item, depth + 1));
        dict.Set(Value::Str(IsValidUtf8(key) ? key : ReplaceInvalidUtf8(key)), std::move(v));
      }
      return Value::MakeDict(std::move(dict));
    }
    case Json::value_t::binary:
      break;
  }
  return InvalidArgument("binary JSON values are not supported");
}

Result<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style) {
  JsonWriter writer(budget, style);
  TERN_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace tern::jinja
