// Interpreter::GetAttr and GetItem: attributes and items as jinja2's immutable sandbox gives them.
#include <fmt/format.h>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

std::string Describe(const Value& object) {
  return object.is_none() ? "None" : fmt::format("{} object", object.type_name());
}

// What Python's getattr(object, name) finds; absent when it raises AttributeError.
Result<std::optional<Value>> FindAttribute(const Value& object, std::string_view name) {
  bool unsafe = false;
  if (object.is_object()) {
    if (auto value = object.object().Attribute(name)) return value;
    unsafe = name.starts_with("__") && name.ends_with("__");
  } else {
    if (const Builtin* method = FindMethod(object, name)) {
      return std::optional(Value::Of(std::make_shared<FunctionObject>(*method, object)));
    }
    if (object.is_sequence() && object.list().group) {
      if (name == "grouper") return std::optional(object.items()[0]);
      if (name == "list") return std::optional(object.items()[1]);
    }
    if (HasHiddenAttribute(object, name, &unsafe) && !unsafe) {
      return InvalidArgument(fmt::format("{}.{} is not supported", object.type_name(), name));
    }
    unsafe = unsafe && HasHiddenAttribute(object, name, &unsafe);
  }
  if (!unsafe) return std::optional<Value>();
  return std::optional(Value::Undef(
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, object.type_name())));
}

// What object[key] finds; absent where Python raises TypeError or LookupError.
std::optional<Value> FindItem(const Value& object, const Value& key) {
  if (object.is_dict()) {
    if (!Dict::CheckKey(key).ok()) return std::nullopt;
    const Value* value = object.dict().Find(key);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  if (!key.is_integral()) return std::nullopt;
  int64_t i = key.integer();
  if (object.is_object()) return object.object().Item(i);
  if (!object.is_sequence() && !object.is_string()) return std::nullopt;
  const int64_t length = object.is_sequence() ? static_cast<int64_t>(object.items().size())
                                              : CodePointCount(object.str());
  if (i < 0) i += length;
  if (i < 0 || i >= length) return std::nullopt;
  if (object.is_sequence()) return object.items()[static_cast<size_t>(i)];
  return Value::Str(std::string(CodePointRange(object.str(), i, i + 1)), object.safe());
}

}  // namespace

Result<Value> Interpreter::GetAttr(const Value& object, std::string_view name) {
  if (object.is_undefined()) return UndefinedError(object);
  TERN_ASSIGN_OR_RETURN(std::optional<Value> attribute, FindAttribute(object, name));
  if (attribute) return *std::move(attribute);
  if (object.is_dict()) {
    if (const Value* value = object.dict().Find(name)) return *value;
  }
  return Value::Undef(fmt::format("'{}' has no attribute '{}'", Describe(object), name));
}

Result<Value> Interpreter::GetItem(const Value& object, const Value& key) {
  if (object.is_undefined()) return UndefinedError(object);
  if (object.is_string()) {
    TERN_RETURN_IF_ERROR(budget_.Scan(static_cast<int64_t>(object.str().size())));
  }
  if (auto item = FindItem(object, key)) return *std::move(item);
  if (key.is_string()) {
    TERN_ASSIGN_OR_RETURN(std::optional<Value> attribute, FindAttribute(object, key.str()));
    if (attribute) return *std::move(attribute);
    return Value::Undef(fmt::format("'{}' has no attribute '{}'", Describe(object), key.str()));
  }
  std::string shown;
  TERN_RETURN_IF_ERROR(AppendRepr(budget_, key, 0, &shown));
  return Value::Undef(fmt::format("{} has no element {}", Describe(object), shown));
}

}  // namespace tern::jinja
