// Builtins: the filters, tests, methods and global functions that templates may use, as tables.
// Each table is in a file of its own; the tables are constant.
// Thread: tables from any thread; functions from the one that renders.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/interpreter.h"
#include "jinja/value.h"

namespace tern::jinja {

// Arguments matched to parameters.
class BoundArgs {
 public:
  // Null when the call did not give parameter `i`.
  const Value* Get(size_t i) const { return slots_[i] ? &*slots_[i] : nullptr; }
  Value Or(size_t i, Value fallback) const { return slots_[i] ? *slots_[i] : fallback; }
  bool Truth(size_t i, bool fallback) const;
  // Errors: "'str' object cannot be interpreted as an integer".
  Result<int64_t> Int(size_t i, int64_t fallback) const;
  // None counts as not given. Errors: "<function>: <parameter> must be a str, not int".
  Result<std::optional<std::string>> Text(size_t i) const;
  const Args& rest() const { return rest_; }  // what `*` and `**` took

 private:
  friend Result<BoundArgs> Bind(std::string_view, std::string_view, Args);
  std::vector<std::optional<Value>> slots_;
  Args rest_;
};

// `params`: names separated by spaces. "name?" may be left out; "*" takes further positional
// arguments and "**" further keywords; a leading "/" makes all of them positional only.
// Errors: Python's TypeError texts, naming `function`.
Result<BoundArgs> Bind(std::string_view function, std::string_view params, Args args);

struct Builtin {
  std::string_view name;
  std::string_view params;
  // `self`: the filtered or tested value, or the object of a method.
  Result<Value> (*run)(Interpreter& interpreter, const Value& self, const BoundArgs& args);
};

// Null when there is none.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindMethod(const Value& object, std::string_view name);
std::optional<Value> FindGlobal(std::string_view name);

// Whether Python's type has this attribute though tern does not offer it; `unsafe`: the sandbox
// forbids it (it would change the object, or is internal).
bool HasHiddenAttribute(const Value& object, std::string_view name, bool* unsafe);

// The tables, one per file.
std::span<const Builtin> TextFilters();
std::span<const Builtin> SequenceFilters();
std::span<const Builtin> GeneralFilters();
std::span<const Builtin> Tests();
std::span<const Builtin> StringMethods();
std::span<const Builtin> ListMethods();
std::span<const Builtin> DictMethods();

}  // namespace tern::jinja
