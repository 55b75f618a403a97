#include "base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <exception>

#include "base/file.h"

namespace tern {
namespace {

struct TooDeep : std::exception {};

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
  try {
    return Json::parse(text.begin(), text.end(), [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxJsonDepth) throw TooDeep{};
      return true;
    });
  } catch (const TooDeep&) {
    return InvalidArgument(fmt::format("JSON is nested deeper than {} levels", kMaxJsonDepth));
  } catch (const nlohmann::json::parse_error& e) {
    return InvalidArgument(fmt::format("malformed JSON at byte {}", e.byte));
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
