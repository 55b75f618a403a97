// ArgumentTypes: which JSON types a tool's schema allows for an argument, and a bare value (as GLM
// writes them: strings raw, others as JSON) as JSON text of such a type.
// Thread: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tern {

// A set of JSON types, as bits.
namespace json_type {
inline constexpr unsigned kString = 1, kInteger = 2, kNumber = 4, kBoolean = 8, kNull = 16,
                          kArray = 32, kObject = 64;
}
using JsonTypes = unsigned;

// The `parameters` of the tool with this name in OpenAI's list, an empty object when it has none;
// null when there is no such tool.
const Json* ParametersOfTool(const Json* tools, std::string_view name);

// What `parameters` (a JSON Schema) allows for the argument; none when it says nothing: of type,
// enum, const, $ref into the schema itself, anyOf, oneOf, allOf and additionalProperties. Bounded
// work, whatever the schema: past the bound it says nothing.
std::optional<JsonTypes> ArgumentTypes(const Json* parameters, const std::string& key);

// `raw` as JSON text. A value that is allowed to be a string only is that string. Otherwise JSON is
// taken as it is, unless its type is not allowed and a string is; a quoted number becomes a number
// where only numbers are allowed, and True, False and None are read as Python writes them where no
// string is allowed. Whatever else is a string.
std::string ArgumentToJson(const Json* parameters, const std::string& key, std::string_view raw);

}  // namespace tern
