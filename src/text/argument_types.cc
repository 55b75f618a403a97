#include "text/argument_types.h"

#include <algorithm>

#include "text/tool_call_parser.h"

namespace tern {
namespace {

constexpr int kMaxSchemaSteps = 2000;  // visits of schema nodes for one argument
constexpr int kMaxSchemaDepth = 32;

JsonTypes TypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return json_type::kString;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return json_type::kInteger;
    case Json::value_t::number_float:
      return json_type::kNumber;
    case Json::value_t::boolean:
      return json_type::kBoolean;
    case Json::value_t::array:
      return json_type::kArray;
    case Json::value_t::object:
      return json_type::kObject;
    default:
      return json_type::kNull;
  }
}

JsonTypes TypeNamed(std::string_view name) {
  if (name == "string") return json_type::kString;
  if (name == "integer") return json_type::kInteger;
  if (name == "number") return json_type::kNumber | json_type::kInteger;
  if (name == "boolean") return json_type::kBoolean;
  if (name == "null") return json_type::kNull;
  if (name == "array") return json_type::kArray;
  if (name == "object") return json_type::kObject;
  return 0;
}

// Walks a schema: the constraints that it puts on a value, or on the member `key` of a value, met.
class SchemaReader {
 public:
  explicit SchemaReader(const Json& root) : root_(root) {}

  // `key`: of the member; null: of the value itself. None: no constraint.
  std::optional<JsonTypes> Read(const Json& schema, const std::string* key, int depth = 0) {
    if (!schema.is_object() || depth > kMaxSchemaDepth || ++steps_ > kMaxSchemaSteps) return {};
    std::optional<JsonTypes> met;
    const auto meet = [&met](std::optional<JsonTypes> types) {
      if (types) met = met ? *met & *types : *types;
    };
    if (const Json* ref = JsonMember(schema, "$ref")) {
      if (const Json* target = Target(*ref)) meet(Read(*target, key, depth + 1));
    }
    if (key == nullptr) {
      meet(OwnTypes(schema));
    } else if (const Json* member = Member(schema, *key)) {
      meet(Read(*member, nullptr, depth + 1));
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (const Json* branches = JsonMember(schema, keyword)) {
        meet(AnyOf(*branches, key, depth));
      }
    }
    if (const Json* branches = JsonMember(schema, "allOf"); branches && branches->is_array()) {
      for (const Json& branch : *branches) meet(Read(branch, key, depth + 1));
    }
    return met;
  }

  static const Json* Member(const Json& schema, const std::string& key) {
    const Json* properties = JsonMember(schema, "properties");
    if (properties != nullptr && properties->is_object()) {
      if (const auto found = properties->find(key); found != properties->end()) return &*found;
    }
    return JsonMember(schema, "additionalProperties");
  }

 private:
  static std::optional<JsonTypes> OwnTypes(const Json& schema) {
    std::optional<JsonTypes> types;
    if (const Json* type = JsonMember(schema, "type")) {
      JsonTypes named = 0;
      if (type->is_string()) named = TypeNamed(type->get_ref<const std::string&>());
      if (type->is_array()) {
        for (const Json& one : *type) {
          if (one.is_string()) named |= TypeNamed(one.get_ref<const std::string&>());
        }
      }
      if (named != 0) types = named;
    }
    JsonTypes listed = 0;
    if (const Json* values = JsonMember(schema, "enum"); values && values->is_array()) {
      for (const Json& value : *values) listed |= TypeOf(value);
    }
    if (const Json* value = JsonMember(schema, "const")) listed = TypeOf(*value);
    if (listed != 0) types = types ? *types & listed : listed;
    return types;
  }

  std::optional<JsonTypes> AnyOf(const Json& branches, const std::string* key, int depth) {
    if (!branches.is_array() || branches.empty()) return {};
    JsonTypes all = 0;
    for (const Json& branch : branches) {
      const std::optional<JsonTypes> types = Read(branch, key, depth + 1);
      if (!types) return {};
      all |= *types;
    }
    return all;
  }

  // "#/$defs/Name" and the like.
  const Json* Target(const Json& ref) const {
    if (!ref.is_string()) return nullptr;
    std::string_view rest = ref.get_ref<const std::string&>();
    if (rest == "#") return &root_;
    if (!rest.starts_with("#/")) return nullptr;
    rest.remove_prefix(2);
    const Json* at = &root_;
    while (at != nullptr) {
      const size_t end = std::min(rest.find('/'), rest.size());
      at = at->is_object() ? JsonMember(*at, std::string(rest.substr(0, end)).c_str()) : nullptr;
      if (end == rest.size()) break;
      rest.remove_prefix(end + 1);
    }
    return at;
  }

  const Json& root_;
  int steps_ = 0;
};

bool ListsString(const Json* parameters, const std::string& key, std::string_view raw) {
  const Json* member = parameters == nullptr ? nullptr : SchemaReader::Member(*parameters, key);
  const Json* values =
      member == nullptr || !member->is_object() ? nullptr : JsonMember(*member, "enum");
  if (values == nullptr || !values->is_array()) return false;
  return std::any_of(values->begin(), values->end(), [raw](const Json& value) {
    return value.is_string() && value.get_ref<const std::string&>() == raw;
  });
}

// A quoted number, where numbers are allowed and strings are not: the number.
std::optional<std::string> NumberInString(const Json& text, JsonTypes allowed) {
  if (!text.is_string() || (allowed & json_type::kInteger) == 0) return {};
  const std::string number(TrimSpace(text.get_ref<const std::string&>()));
  const Result<Json> parsed = ParseJson(number);
  if (!parsed.ok() || !parsed->is_number() || (TypeOf(*parsed) & allowed) == 0) return {};
  return number;
}

}  // namespace

const Json* ParametersOfTool(const Json* tools, std::string_view name) {
  static const Json none = Json::object();
  if (tools == nullptr || !tools->is_array()) return nullptr;
  for (const Json& tool : *tools) {
    const Json* function = tool.is_object() ? JsonMember(tool, "function") : nullptr;
    if (function == nullptr || !function->is_object()) continue;
    const Json* own = JsonMember(*function, "name");
    if (own == nullptr || !own->is_string() || own->get_ref<const std::string&>() != name) continue;
    const Json* parameters = JsonMember(*function, "parameters");
    return parameters != nullptr && parameters->is_object() ? parameters : &none;
  }
  return nullptr;
}

std::optional<JsonTypes> ArgumentTypes(const Json* parameters, const std::string& key) {
  if (parameters == nullptr) return {};
  return SchemaReader(*parameters).Read(*parameters, &key);
}

std::string ArgumentToJson(const Json* parameters, const std::string& key, std::string_view raw) {
  const std::optional<JsonTypes> types = ArgumentTypes(parameters, key);
  if (types == json_type::kString || ListsString(parameters, key, raw)) return JsonQuote(raw);
  const bool string_allowed = !types || (*types & json_type::kString) != 0;
  const std::string value(TrimSpace(raw));
  const Result<Json> parsed = ParseJson(value);
  // The reader skips a byte-order mark, others need not.
  if (!parsed.ok() || value.starts_with("\xEF\xBB\xBF")) {
    if (types && !string_allowed) {
      if ((*types & json_type::kBoolean) != 0 && value == "True") return "true";
      if ((*types & json_type::kBoolean) != 0 && value == "False") return "false";
      if ((*types & json_type::kNull) != 0 && value == "None") return "null";
    }
    return JsonQuote(raw);
  }
  if (types && (TypeOf(*parsed) & *types) == 0) {
    if (string_allowed) return JsonQuote(raw);
    if (const auto number = NumberInString(*parsed, *types)) return *number;
  }
  return value;
}

}  // namespace tern
