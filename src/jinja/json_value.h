// JSON and values: template inputs from Json, and the tojson and from_json filters.
// Thread: pure functions; the budget is the render's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "jinja/value.h"

namespace tern::jinja {

// Objects become dicts in their order. Invalid UTF-8 becomes U+FFFD.
// Errors: kInvalidArgument for integers that do not fit in 64 bits and for too deep nesting.
Result<Value> FromJson(const Json& json, int depth = 0);

// The keyword arguments of Python's json.dumps that transformers passes on.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // absent: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// json.dumps(value): no HTML escaping. Errors: "Object of type Undefined is not JSON serializable".
Result<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style);

}  // namespace tern::jinja
