// Tests: what may follow `is`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "jinja/builtins.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

// Wraps a predicate on the value alone.
template <bool (*Holds)(const Value&)>
Result<Value> Check(Interpreter&, const Value& self, const BoundArgs&) {
  return Value::Bool(Holds(self));
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsBoolean(const Value& v) { return v.is_bool(); }
bool IsTrue(const Value& v) { return v.is_bool() && v.boolean(); }
bool IsFalse(const Value& v) { return v.is_bool() && !v.boolean(); }
bool IsInteger(const Value& v) { return v.is_int(); }
bool IsFloat(const Value& v) { return v.is_float(); }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsString(const Value& v) { return v.is_string(); }
bool IsMapping(const Value& v) { return v.is_dict(); }
bool IsEscaped(const Value& v) { return v.is_string() && v.safe(); }
bool IsCallable(const Value& v) {
  return v.is_undefined() || (v.is_object() && v.object().callable());
}
bool IsSequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is_dict() ||
         v.as<RangeObject>() != nullptr;
}

template <bool (*Is)(char32_t), bool (*IsNot)(char32_t)>
Result<Value> CheckCase(Interpreter& in, const Value& self, const BoundArgs&) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(in.budget(), self));
  const std::u32string code_points = ToCodePoints(text);
  return Value::Bool(std::any_of(code_points.begin(), code_points.end(), Is) &&
                     std::none_of(code_points.begin(), code_points.end(),
                                  [](char32_t c) { return IsNot(c) || IsTitle(c); }));
}

Result<Value> Remainder(Interpreter& in, const Value& self, const Value& divisor,
                        int64_t expected) {
  TERN_ASSIGN_OR_RETURN(const Value rest, Arithmetic(in.budget(), BinaryOp::kMod, self, divisor));
  TERN_ASSIGN_OR_RETURN(const bool equal, Equal(in.budget(), rest, Value::Int(expected)));
  return Value::Bool(equal);
}

Result<Value> Odd(Interpreter& in, const Value& self, const BoundArgs&) {
  return Remainder(in, self, Value::Int(2), 1);
}
Result<Value> Even(Interpreter& in, const Value& self, const BoundArgs&) {
  return Remainder(in, self, Value::Int(2), 0);
}
Result<Value> DivisibleBy(Interpreter& in, const Value& self, const BoundArgs& args) {
  return Remainder(in, self, *args.Get(0), 0);
}

template <CompareOp kOp>
Result<Value> Compares(Interpreter& in, const Value& self, const BoundArgs& args) {
  TERN_ASSIGN_OR_RETURN(const bool holds, Compare(in.budget(), kOp, self, *args.Get(0)));
  return Value::Bool(holds);
}

Result<Value> SameAs(Interpreter&, const Value& self, const BoundArgs& args) {
  return Value::Bool(self.SameAs(*args.Get(0)));
}

Result<Value> Iterable(Interpreter&, const Value& self, const BoundArgs&) {
  return Value::Bool(IsIterable(self));
}

Result<Value> IsFilterName(Interpreter&, const Value& self, const BoundArgs&) {
  return Value::Bool(self.is_string() && FindFilter(self.str()) != nullptr);
}

Result<Value> IsTestName(Interpreter&, const Value& self, const BoundArgs&) {
  return Value::Bool(self.is_string() && FindTest(self.str()) != nullptr);
}

constexpr std::array kTable = {
    Builtin{"!=", "other", Compares<CompareOp::kNe>},
    Builtin{"<", "other", Compares<CompareOp::kLt>},
    Builtin{"<=", "other", Compares<CompareOp::kLe>},
    Builtin{"==", "other", Compares<CompareOp::kEq>},
    Builtin{">", "other", Compares<CompareOp::kGt>},
    Builtin{">=", "other", Compares<CompareOp::kGe>},
    Builtin{"boolean", "", Check<IsBoolean>},
    Builtin{"callable", "", Check<IsCallable>},
    Builtin{"defined", "", Check<IsDefined>},
    Builtin{"divisibleby", "num", DivisibleBy},
    Builtin{"eq", "other", Compares<CompareOp::kEq>},
    Builtin{"equalto", "other", Compares<CompareOp::kEq>},
    Builtin{"escaped", "", Check<IsEscaped>},
    Builtin{"even", "", Even},
    Builtin{"false", "", Check<IsFalse>},
    Builtin{"filter", "", IsFilterName},
    Builtin{"float", "", Check<IsFloat>},
    Builtin{"ge", "other", Compares<CompareOp::kGe>},
    Builtin{"greaterthan", "other", Compares<CompareOp::kGt>},
    Builtin{"gt", "other", Compares<CompareOp::kGt>},
    Builtin{"in", "seq", Compares<CompareOp::kIn>},
    Builtin{"integer", "", Check<IsInteger>},
    Builtin{"iterable", "", Iterable},
    Builtin{"le", "other", Compares<CompareOp::kLe>},
    Builtin{"lessthan", "other", Compares<CompareOp::kLt>},
    Builtin{"lower", "", CheckCase<IsLower, IsUpper>},
    Builtin{"lt", "other", Compares<CompareOp::kLt>},
    Builtin{"mapping", "", Check<IsMapping>},
    Builtin{"ne", "other", Compares<CompareOp::kNe>},
    Builtin{"none", "", Check<IsNone>},
    Builtin{"number", "", Check<IsNumber>},
    Builtin{"odd", "", Odd},
    Builtin{"sameas", "other", SameAs},
    Builtin{"sequence", "", Check<IsSequence>},
    Builtin{"string", "", Check<IsString>},
    Builtin{"test", "", IsTestName},
    Builtin{"true", "", Check<IsTrue>},
    Builtin{"undefined", "", Check<IsUndefined>},
    Builtin{"upper", "", CheckCase<IsUpper, IsLower>},
};

}  // namespace

std::span<const Builtin> Tests() { return kTable; }

}  // namespace tern::jinja
