#include "jinja/builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "jinja/operators.h"

namespace tern::jinja {
namespace {

const Builtin* FindIn(std::span<const Builtin> table, std::string_view name) {
  const auto it =
      std::find_if(table.begin(), table.end(), [name](const Builtin& b) { return b.name == name; });
  return it == table.end() ? nullptr : &*it;
}

bool IsOneOf(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 8> kMutatingList = {"append", "clear", "pop",    "reverse",
                                                           "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 5> kMutatingDict = {"clear", "pop", "popitem", "setdefault",
                                                           "update"};
constexpr std::array<std::string_view, 5> kOtherStr = {"casefold", "encode", "expandtabs",
                                                       "maketrans", "translate"};
constexpr std::array<std::string_view, 1> kOtherDict = {"fromkeys"};
constexpr std::array<std::string_view, 10> kOtherInt = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "imag",      "numerator",  "real",      "to_bytes"};
constexpr std::array<std::string_view, 7> kOtherFloat = {
    "as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"};

struct Parameter {
  std::string_view name;
  bool optional;
};

}  // namespace

bool BoundArgs::Truth(size_t i, bool fallback) const {
  return slots_[i] ? jinja::Truth(*slots_[i]) : fallback;
}

Result<int64_t> BoundArgs::Int(size_t i, int64_t fallback) const {
  if (!slots_[i]) return fallback;
  if (slots_[i]->is_undefined()) return UndefinedError(*slots_[i]);
  if (slots_[i]->is_integral()) return slots_[i]->integer();
  return TypeError(
      fmt::format("'{}' object cannot be interpreted as an integer", slots_[i]->type_name()));
}

Result<std::optional<std::string>> BoundArgs::Text(size_t i) const {
  if (!slots_[i] || slots_[i]->is_none()) return std::optional<std::string>();
  if (slots_[i]->is_string()) return std::optional<std::string>(slots_[i]->str());
  return TypeError(fmt::format("a str is needed here, not {}", slots_[i]->type_name()));
}

Result<BoundArgs> Bind(std::string_view function, std::string_view params, Args args) {
  std::vector<Parameter> parameters;
  bool star = false, double_star = false, positional_only = false;
  while (!params.empty()) {
    const size_t space = std::min(params.find(' '), params.size());
    std::string_view word = params.substr(0, space);
    params.remove_prefix(std::min(space + 1, params.size()));
    if (word == "/") {
      positional_only = true;
    } else if (word == "*") {
      star = true;
    } else if (word == "**") {
      double_star = true;
    } else {
      const bool optional = word.ends_with('?');
      if (optional) word.remove_suffix(1);
      parameters.push_back({word, optional});
    }
  }
  BoundArgs bound;
  bound.slots_.resize(parameters.size());
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < parameters.size()) {
      bound.slots_[i] = std::move(args.positional[i]);
    } else if (star) {
      bound.rest_.positional.push_back(std::move(args.positional[i]));
    } else {
      return TypeError(fmt::format("{}() takes at most {} arguments ({} given)", function,
                                   parameters.size(), args.positional.size()));
    }
  }
  for (auto& [name, value] : args.keyword) {
    const auto it = std::find_if(parameters.begin(), parameters.end(),
                                 [&key = name](const Parameter& p) { return p.name == key; });
    if (it != parameters.end() && !positional_only) {
      std::optional<Value>& slot = bound.slots_[static_cast<size_t>(it - parameters.begin())];
      if (slot) {
        return TypeError(fmt::format("{}() got multiple values for argument '{}'", function, name));
      }
      slot = std::move(value);
    } else if (double_star) {
      bound.rest_.keyword.emplace_back(std::move(name), std::move(value));
    } else {
      return TypeError(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!bound.slots_[i] && !parameters[i].optional) {
      return TypeError(
          fmt::format("{}() missing required argument: '{}'", function, parameters[i].name));
    }
  }
  return bound;
}

const Builtin* FindFilter(std::string_view name) {
  for (const auto table : {TextFilters(), SequenceFilters(), GeneralFilters()}) {
    if (const Builtin* filter = FindIn(table, name)) return filter;
  }
  return nullptr;
}

const Builtin* FindTest(std::string_view name) { return FindIn(Tests(), name); }

const Builtin* FindMethod(const Value& object, std::string_view name) {
  if (object.is_string()) return FindIn(StringMethods(), name);
  if (object.is_sequence()) return FindIn(ListMethods(), name);
  if (object.is_dict()) return FindIn(DictMethods(), name);
  return nullptr;
}

bool HasHiddenAttribute(const Value& object, std::string_view name, bool* unsafe) {
  *unsafe = name.starts_with('_') || (object.is_list() && IsOneOf(name, kMutatingList)) ||
            (object.is_dict() && IsOneOf(name, kMutatingDict));
  if (*unsafe) return !name.starts_with('_') || (name.starts_with("__") && name.ends_with("__"));
  return (object.is_string() && IsOneOf(name, kOtherStr)) ||
         (object.is_dict() && IsOneOf(name, kOtherDict)) ||
         (object.is_integral() && IsOneOf(name, kOtherInt)) ||
         (object.is_float() && IsOneOf(name, kOtherFloat));
}

}  // namespace tern::jinja
