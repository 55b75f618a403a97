#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "base/file.h"

namespace tern {
namespace {

// nlohmann's ordered objects look keys up one by one: an object costs the square of its keys. This
// is some tenths of a second, and far from any request or config.
constexpr uint64_t kMaxKeyComparisons = 100'000'000;

// Refuses, in one pass and without memory, text that would be slow or deep to parse. Text that is
// no JSON passes or not; the parser tells.
Status CheckBounds(std::string_view text) {
  uint64_t items[kMaxJsonDepth + 1] = {};  // commas at each open level
  bool is_object[kMaxJsonDepth + 1] = {};
  uint64_t comparisons = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) {
          if (text[i] == '\\') ++i;
        }
        break;
      case '{':
      case '[':
        if (++depth > kMaxJsonDepth) {
          return InvalidArgument(
              fmt::format("JSON is nested deeper than {} levels", kMaxJsonDepth));
        }
        items[depth] = 0;
        is_object[depth] = text[i] == '{';
        break;
      case '}':
      case ']':
        if (depth > 0) --depth;
        break;
      case ',':
        if (is_object[depth] && (comparisons += ++items[depth]) > kMaxKeyComparisons) {
          return InvalidArgument("JSON has objects with too many keys");
        }
        break;
      default:
        break;
    }
  }
  return OkStatus();
}

Status WrongType(std::string_view where, const char* key, const char* type) {
  return InvalidArgument(fmt::format("{}.{} must be {}", where, key, type));
}

}  // namespace

const Json* JsonMember(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  auto it = object.find(key);
  if (it == object.end() || it->is_null()) return nullptr;
  return &*it;
}

Result<Json> ParseJson(std::string_view text) {
  TERN_RETURN_IF_ERROR(CheckBounds(text));
  // nlohmann takes a NUL byte for the end of the text, whatever follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument(fmt::format("malformed JSON at byte {}", nul + 1));
  }
  try {
    // No callback: nlohmann's callback parser takes time quadratic in the items of an array.
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& e) {
    return InvalidArgument(fmt::format("malformed JSON at byte {}", e.byte));
  } catch (const nlohmann::json::out_of_range&) {
    return InvalidArgument("JSON holds a number that is too large");
  } catch (const std::exception& e) {
    return InvalidArgument(fmt::format("malformed JSON: {}", e.what()));
  }
}

Result<Json> ParseJsonFile(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return json.status().WithContext(path);
  return json;
}

std::string DumpJson(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Result<int64_t> JsonInt(const Json& object, const char* key, int64_t fallback,
                        std::string_view where) {
  const Json* v = JsonMember(object, key);
  if (v == nullptr) return fallback;
  if (v->is_number_unsigned()) {
    const auto u = v->get<uint64_t>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return WrongType(where, key, "a 64-bit integer");
    return static_cast<int64_t>(u);
  }
  if (v->is_number_integer()) return v->get<int64_t>();
  if (v->is_number_float()) {
    const double d = v->get<double>();
    if (std::floor(d) == d && std::fabs(d) < 9.0e15) return static_cast<int64_t>(d);
  }
  return WrongType(where, key, "an integer");
}

Result<double> JsonDouble(const Json& object, const char* key, double fallback,
                          std::string_view where) {
  const Json* v = JsonMember(object, key);
  if (v == nullptr) return fallback;
  if (!v->is_number()) return WrongType(where, key, "a number");
  return v->get<double>();
}

Result<bool> JsonBool(const Json& object, const char* key, bool fallback, std::string_view where) {
  const Json* v = JsonMember(object, key);
  if (v == nullptr) return fallback;
  if (!v->is_boolean()) return WrongType(where, key, "true or false");
  return v->get<bool>();
}

Result<std::string> JsonString(const Json& object, const char* key, std::string fallback,
                               std::string_view where) {
  const Json* v = JsonMember(object, key);
  if (v == nullptr) return fallback;
  if (!v->is_string()) return WrongType(where, key, "a string");
  return v->get<std::string>();
}

std::string JsonQuote(std::string_view text) { return DumpJson(Json(std::string(text))); }

}  // namespace tern
