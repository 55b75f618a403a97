// Python's operators on values: arithmetic, comparison, containment, truth, length, iteration,
// text. Errors carry Python's message (kInvalidArgument); the interpreter adds the line. Thread:
// the one that renders.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "jinja/value.h"

namespace tern::jinja {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

Result<Value> Arithmetic(Budget& budget, BinaryOp op, const Value& left, const Value& right);
Result<Value> Negate(const Value& v);
Result<bool> Compare(Budget& budget, CompareOp op, const Value& left, const Value& right);
Result<bool> Equal(Budget& budget, const Value& a, const Value& b);
Result<bool> Less(Budget& budget, const Value& a, const Value& b);
// `item in container`.
Result<bool> Contains(Budget& budget, const Value& container, const Value& item);

bool Truth(const Value& v);
Result<int64_t> Length(const Value& v);
// Errors: "'int' object is not iterable".
Result<std::unique_ptr<Cursor>> Iterate(Budget& budget, const Value& v);
bool IsIterable(const Value& v);
// All items; counted against the budget.
Result<std::vector<Value>> ToItems(Budget& budget, const Value& v);
// v[begin:end:step]; absent bounds are none.
Result<Value> Slice(Budget& budget, const Value& v, const Value& begin, const Value& end,
                    const Value& step);

// str(v) and repr(v).
Result<std::string> ToStr(Budget& budget, const Value& v);
Status AppendStr(Budget& budget, const Value& v, std::string* out);
Status AppendRepr(Budget& budget, const Value& v, int depth, std::string* out);
std::string FloatRepr(double d);
std::string StringRepr(std::string_view text);

// Stable sort by `less`; the first error ends it.
Status StableSort(std::vector<size_t>* order,
                  const std::function<Result<bool>(size_t, size_t)>& less);

// Errors: nested deeper than kMaxValueDepth.
Status CheckDepth(const Value& v);
Status UndefinedError(const Value& undefined);
// "'x' object is not iterable" and the like.
Status TypeError(std::string message);

}  // namespace tern::jinja
