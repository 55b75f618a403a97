#include "jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "jinja/format.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

std::string_view Symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSub:
      return "-";
    case BinaryOp::kMul:
      return "*";
    case BinaryOp::kDiv:
      return "/";
    case BinaryOp::kFloorDiv:
      return "//";
    case BinaryOp::kMod:
      return "%";
    case BinaryOp::kPow:
      return "** or pow()";
  }
  return "?";
}

Status Unsupported(BinaryOp op, const Value& a, const Value& b) {
  return TypeError(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", Symbol(op),
                               a.type_name(), b.type_name()));
}

Status Overflow() { return InvalidArgument("integer does not fit in 64 bits"); }

Result<Value> FloatArithmetic(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSub:
      return Value::Float(a - b);
    case BinaryOp::kMul:
      return Value::Float(a * b);
    case BinaryOp::kDiv:
      if (b == 0) return InvalidArgument("float division by zero");
      return Value::Float(a / b);
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      if (b == 0) {
        return InvalidArgument(op == BinaryOp::kMod ? "float modulo"
                                                    : "float floor division by zero");
      }
      // As CPython's float_divmod: the remainder takes the sign of the divisor.
      double mod = std::fmod(a, b);
      double div = (a - mod) / b;
      if (mod != 0 && (b < 0) != (mod < 0)) {
        mod += b;
        div -= 1;
      }
      if (mod == 0) mod = std::copysign(0.0, b);
      if (op == BinaryOp::kMod) return Value::Float(mod);
      double floored = div == 0 ? std::copysign(0.0, a / b) : std::floor(div);
      if (div - floored > 0.5) floored += 1;
      return Value::Float(floored);
    }
    case BinaryOp::kPow: {
      if (a == 0 && b < 0) return InvalidArgument("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(b) && b != std::floor(b)) {
        return InvalidArgument("complex numbers are not supported");
      }
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
        return InvalidArgument("(34, 'Numerical result out of range')");
      }
      return Value::Float(power);
    }
  }
  return Internal("unknown operator");
}

Result<Value> IntPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    return FloatArithmetic(BinaryOp::kPow, static_cast<double>(base),
                           static_cast<double>(exponent));
  }
  int64_t result = 1;
  // Squaring overflows only when the square is still needed.
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return Overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value::Int(result);
}

Result<Value> IntArithmetic(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) return Overflow();
      return Value::Int(result);
    case BinaryOp::kSub:
      if (__builtin_sub_overflow(a, b, &result)) return Overflow();
      return Value::Int(result);
    case BinaryOp::kMul:
      if (__builtin_mul_overflow(a, b, &result)) return Overflow();
      return Value::Int(result);
    case BinaryOp::kDiv:
      if (b == 0) return InvalidArgument("division by zero");
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod: {
      if (b == 0) {
        return InvalidArgument(op == BinaryOp::kMod ? "integer modulo by zero"
                                                    : "integer division or modulo by zero");
      }
      if (b == -1)
        return op == BinaryOp::kMod ? Value::Int(0) : IntArithmetic(BinaryOp::kSub, 0, a);
      int64_t quotient = a / b;
      int64_t remainder = a % b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {
        remainder += b;
        --quotient;
      }
      return Value::Int(op == BinaryOp::kMod ? remainder : quotient);
    }
    case BinaryOp::kPow:
      return IntPower(a, b);
  }
  return Internal("unknown operator");
}

Result<Value> Concatenate(const Value& a, const Value& b) {
  if (!a.safe() && !b.safe()) return Value::Str(a.str() + b.str());
  const auto escaped = [](const Value& v) { return v.safe() ? v.str() : EscapeHtml(v.str()); };
  return Value::Str(escaped(a) + escaped(b), true);
}

Result<Value> Repeat(Budget& budget, const Value& v, int64_t count) {
  count = std::max<int64_t>(count, 0);
  if (v.is_string()) {
    const auto size = static_cast<int64_t>(v.str().size());
    if (size > 0 && count > budget.limits().memory_bytes / size) {
      return InvalidArgument("the repeated string is too large");
    }
    TERN_RETURN_IF_ERROR(budget.Scan(size * count));
    std::string text;
    text.reserve(static_cast<size_t>(size * count));
    for (int64_t i = 0; size > 0 && i < count; ++i) text += v.str();
    return Value::Str(std::move(text), v.safe());
  }
  const auto size = static_cast<int64_t>(v.items().size());
  if (size > 0 && count > budget.limits().memory_bytes / size / int64_t{sizeof(Value)}) {
    return InvalidArgument("the repeated list is too large");
  }
  TERN_RETURN_IF_ERROR(budget.Step(size * count));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(size * count));
  for (int64_t i = 0; size > 0 && i < count; ++i) {
    items.insert(items.end(), v.items().begin(), v.items().end());
  }
  return v.is_tuple() ? Value::MakeTuple(std::move(items)) : Value::MakeList(std::move(items));
}

Result<Value> AddSequences(Budget& budget, const Value& a, const Value& b) {
  TERN_RETURN_IF_ERROR(budget.Step(static_cast<int64_t>(a.items().size() + b.items().size())));
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is_tuple() ? Value::MakeTuple(std::move(items)) : Value::MakeList(std::move(items));
}

// Compares an int with a float exactly: -1, 0, 1, or 2 when the float is NaN.
int CompareIntFloat(int64_t i, double d) {
  if (std::isnan(d)) return 2;
  if (d >= 9223372036854775808.0) return -1;
  if (d < -9223372036854775808.0) return 1;
  const auto whole = static_cast<int64_t>(d);  // towards zero
  if (i != whole) return i < whole ? -1 : 1;
  const double fraction = d - static_cast<double>(whole);
  return fraction > 0 ? -1 : fraction < 0 ? 1 : 0;
}

// -1, 0, 1, or 2 (unordered).
int CompareNumbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  }
  if (a.is_integral()) return CompareIntFloat(a.integer(), b.number());
  if (b.is_integral()) {
    const int c = CompareIntFloat(b.integer(), a.number());
    return c == 2 ? 2 : -c;
  }
  const double x = a.number(), y = b.number();
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y;
}

std::string_view Symbol(CompareOp op) {
  switch (op) {
    case CompareOp::kLt:
      return "<";
    case CompareOp::kLe:
      return "<=";
    case CompareOp::kGt:
      return ">";
    default:
      return ">=";
  }
}

bool Ordered(CompareOp op, int c) {
  switch (op) {
    case CompareOp::kLt:
      return c == -1;
    case CompareOp::kLe:
      return c == -1 || c == 0;
    case CompareOp::kGt:
      return c == 1;
    default:
      return c == 1 || c == 0;
  }
}

Result<bool> Order(Budget& budget, CompareOp op, const Value& a, const Value& b) {
  TERN_RETURN_IF_ERROR(budget.Step());
  if (a.is_undefined()) return UndefinedError(a);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) return Ordered(op, CompareNumbers(a, b));
  if (a.is_string() && b.is_string()) {
    // UTF-8 sorts bytewise as its code points do.
    const int c = a.str().compare(b.str());
    return Ordered(op, c < 0 ? -1 : c > 0);
  }
  if (a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple()) {
    const size_t common = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < common; ++i) {
      TERN_ASSIGN_OR_RETURN(const bool equal, Equal(budget, a.items()[i], b.items()[i]));
      if (!equal) return Order(budget, op, a.items()[i], b.items()[i]);
    }
    const size_t x = a.items().size(), y = b.items().size();
    return Ordered(op, x < y ? -1 : x > y);
  }
  return TypeError(fmt::format("'{}' not supported between instances of '{}' and '{}'", Symbol(op),
                               a.type_name(), b.type_name()));
}

class ItemsCursor final : public Cursor {
 public:
  ItemsCursor(Budget& budget, Value list) : budget_(budget), list_(std::move(list)) {}
  Result<bool> Next(Value* out) override {
    TERN_RETURN_IF_ERROR(budget_.Step());
    if (i_ == list_.items().size()) return false;
    *out = list_.items()[i_++];
    return true;
  }

 private:
  Budget& budget_;
  const Value list_;
  size_t i_ = 0;
};

class KeysCursor final : public Cursor {
 public:
  KeysCursor(Budget& budget, Value dict) : budget_(budget), dict_(std::move(dict)) {}
  Result<bool> Next(Value* out) override {
    TERN_RETURN_IF_ERROR(budget_.Step());
    if (i_ == dict_.dict().size()) return false;
    *out = dict_.dict().entries()[i_++].key;
    return true;
  }

 private:
  Budget& budget_;
  const Value dict_;
  size_t i_ = 0;
};

class CharactersCursor final : public Cursor {
 public:
  CharactersCursor(Budget& budget, Value text) : budget_(budget), text_(std::move(text)) {}
  Result<bool> Next(Value* out) override {
    TERN_RETURN_IF_ERROR(budget_.Step());
    if (pos_ == text_.str().size()) return false;
    size_t length = 0;
    DecodeUtf8(text_.str(), pos_, &length);
    *out = Value::Str(text_.str().substr(pos_, length));
    pos_ += length;
    return true;
  }

 private:
  Budget& budget_;
  const Value text_;
  size_t pos_ = 0;
};

Result<std::optional<int64_t>> SliceIndex(const Value& v) {
  if (v.is_none()) return std::optional<int64_t>();
  if (v.is_integral()) return std::optional<int64_t>(v.integer());
  return TypeError("slice indices must be integers or None or have an __index__ method");
}

}  // namespace

Status TypeError(std::string message) { return InvalidArgument(std::move(message)); }
Status CheckDepth(const Value& v) {
  if (v.depth() <= kMaxValueDepth) return OkStatus();
  return InvalidArgument(fmt::format("a value is nested deeper than {} levels", kMaxValueDepth));
}

Status UndefinedError(const Value& v) { return InvalidArgument(v.undefined().message); }

Result<Value> Arithmetic(Budget& budget, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_undefined()) return UndefinedError(a);
  if (a.is_string() && op == BinaryOp::kMod) return PercentFormat(budget, a, b);
  if (b.is_undefined()) return UndefinedError(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return IntArithmetic(op, a.integer(), b.integer());
    return FloatArithmetic(op, a.number(), b.number());
  }
  if (op == BinaryOp::kAdd) {
    if (a.is_string() && b.is_string()) {
      TERN_RETURN_IF_ERROR(budget.Scan(static_cast<int64_t>(a.str().size() + b.str().size())));
      return Concatenate(a, b);
    }
    if (a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple()) {
      return AddSequences(budget, a, b);
    }
    if (a.is_string() || a.is_sequence()) {
      const std::string_view kind = a.is_string() ? "str" : a.type_name();
      return TypeError(
          fmt::format("can only concatenate {} (not \"{}\") to {}", kind, b.type_name(), kind));
    }
  }
  if (op == BinaryOp::kMul) {
    if (b.is_integral() && (a.is_string() || a.is_sequence())) {
      return Repeat(budget, a, b.integer());
    }
    if (a.is_integral() && (b.is_string() || b.is_sequence())) {
      return Repeat(budget, b, a.integer());
    }
  }
  return Unsupported(op, a, b);
}

Result<Value> Negate(const Value& v) {
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_integral()) return IntArithmetic(BinaryOp::kSub, 0, v.integer());
  if (v.is_float()) return Value::Float(-v.number());
  return TypeError(fmt::format("bad operand type for unary -: '{}'", v.type_name()));
}

Result<bool> Equal(Budget& budget, const Value& a, const Value& b) {
  TERN_RETURN_IF_ERROR(budget.Step());
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) {
    TERN_RETURN_IF_ERROR(budget.Scan(static_cast<int64_t>(a.str().size())));
    return a.str() == b.str();
  }
  if (a.SameAs(b)) return true;
  if (a.is_sequence()) {
    if (a.is_tuple() != b.is_tuple() || a.items().size() != b.items().size()) return false;
    for (size_t i = 0; i < a.items().size(); ++i) {
      TERN_ASSIGN_OR_RETURN(const bool equal, Equal(budget, a.items()[i], b.items()[i]));
      if (!equal) return false;
    }
    return true;
  }
  if (a.is_dict()) {
    if (a.dict().size() != b.dict().size()) return false;
    for (const auto& [key, value] : a.dict().entries()) {
      const Value* other = b.dict().Find(key);
      if (other == nullptr) return false;
      TERN_ASSIGN_OR_RETURN(const bool equal, Equal(budget, value, *other));
      if (!equal) return false;
    }
    return true;
  }
  return false;
}

Result<bool> Less(Budget& budget, const Value& a, const Value& b) {
  return Order(budget, CompareOp::kLt, a, b);
}

Result<bool> Compare(Budget& budget, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return Equal(budget, a, b);
    case CompareOp::kNe: {
      TERN_ASSIGN_OR_RETURN(const bool equal, Equal(budget, a, b));
      return !equal;
    }
    case CompareOp::kIn:
      return Contains(budget, b, a);
    case CompareOp::kNotIn: {
      TERN_ASSIGN_OR_RETURN(const bool contained, Contains(budget, b, a));
      return !contained;
    }
    default:
      return Order(budget, op, a, b);
  }
}

Result<bool> Contains(Budget& budget, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (item.is_undefined()) {
      return TypeError("'in <string>' requires string as left operand, not Undefined");
    }
    if (!item.is_string()) {
      return TypeError(
          fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
    }
    TERN_RETURN_IF_ERROR(budget.Scan(static_cast<int64_t>(container.str().size())));
    return container.str().find(item.str()) != std::string::npos;
  }
  if (container.is_dict()) {
    TERN_RETURN_IF_ERROR(Dict::CheckKey(item));
    return container.dict().Find(item) != nullptr;
  }
  if (!IsIterable(container)) {
    return TypeError(fmt::format("argument of type '{}' is not iterable", container.type_name()));
  }
  TERN_ASSIGN_OR_RETURN(const std::unique_ptr<Cursor> cursor, Iterate(budget, container));
  Value candidate;
  while (true) {
    TERN_ASSIGN_OR_RETURN(const bool more, cursor->Next(&candidate));
    if (!more) return false;
    TERN_ASSIGN_OR_RETURN(const bool equal, Equal(budget, candidate, item));
    if (equal) return true;
  }
}

bool Truth(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return v.integer() != 0;
    case Value::Kind::kFloat:
      return v.number() != 0;
    case Value::Kind::kString:
      return !v.str().empty();
    case Value::Kind::kList:
      return !v.items().empty();
    case Value::Kind::kDict:
      return v.dict().size() != 0;
    case Value::Kind::kObject:
      return v.object().Length().value_or(1) != 0;
  }
  return false;
}

Result<int64_t> Length(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      return 0;
    case Value::Kind::kString:
      return CodePointCount(v.str());
    case Value::Kind::kList:
      return static_cast<int64_t>(v.items().size());
    case Value::Kind::kDict:
      return static_cast<int64_t>(v.dict().size());
    case Value::Kind::kObject:
      if (const auto length = v.object().Length()) return *length;
      [[fallthrough]];
    default:
      return TypeError(fmt::format("object of type '{}' has no len()", v.type_name()));
  }
}

bool IsIterable(const Value& v) {
  switch (v.kind()) {
    case Value::Kind::kUndefined:
    case Value::Kind::kString:
    case Value::Kind::kList:
    case Value::Kind::kDict:
      return true;
    case Value::Kind::kObject:
      return v.object().Iterate() != nullptr;
    default:
      return false;
  }
}

Result<std::unique_ptr<Cursor>> Iterate(Budget& budget, const Value& v) {
  std::unique_ptr<Cursor> cursor;
  switch (v.kind()) {
    case Value::Kind::kUndefined:
      cursor = std::make_unique<ItemsCursor>(budget, Value::MakeList({}));
      break;
    case Value::Kind::kString:
      cursor = std::make_unique<CharactersCursor>(budget, v);
      break;
    case Value::Kind::kList:
      cursor = std::make_unique<ItemsCursor>(budget, v);
      break;
    case Value::Kind::kDict:
      cursor = std::make_unique<KeysCursor>(budget, v);
      break;
    case Value::Kind::kObject:
      cursor = v.object().Iterate();
      break;
    default:
      break;
  }
  if (cursor == nullptr) {
    return TypeError(fmt::format("'{}' object is not iterable", v.type_name()));
  }
  return cursor;
}

Result<std::vector<Value>> ToItems(Budget& budget, const Value& v) {
  TERN_ASSIGN_OR_RETURN(const std::unique_ptr<Cursor> cursor, Iterate(budget, v));
  std::vector<Value> items;
  Value item;
  while (true) {
    TERN_ASSIGN_OR_RETURN(const bool more, cursor->Next(&item));
    if (!more) return items;
    TERN_RETURN_IF_ERROR(budget.Step());
    items.push_back(std::move(item));
  }
}

Result<Value> Slice(Budget& budget, const Value& v, const Value& begin, const Value& end,
                    const Value& step_value) {
  TERN_ASSIGN_OR_RETURN(const std::optional<int64_t> first, SliceIndex(begin));
  TERN_ASSIGN_OR_RETURN(const std::optional<int64_t> last, SliceIndex(end));
  TERN_ASSIGN_OR_RETURN(const std::optional<int64_t> step_index, SliceIndex(step_value));
  TERN_ASSIGN_OR_RETURN(const int64_t length, Length(v));
  // A step past either end does the same as one just past it, and cannot overflow.
  const int64_t step = std::clamp(step_index.value_or(1), -length - 1, length + 1);
  if (step == 0) return InvalidArgument("slice step cannot be zero");
  TERN_RETURN_IF_ERROR(v.is_string() ? budget.Scan(length) : budget.Step(length));
  // PySlice_AdjustIndices.
  const auto adjust = [&](std::optional<int64_t> index, int64_t absent) {
    if (!index) return absent;
    int64_t i = *index;
    if (i < 0) {
      i += length;
      if (i < 0) return step < 0 ? int64_t{-1} : int64_t{0};
      return i;
    }
    return i >= length ? (step < 0 ? length - 1 : length) : i;
  };
  const int64_t from = adjust(first, step < 0 ? length - 1 : 0);
  const int64_t to = adjust(last, step < 0 ? -1 : length);
  if (v.is_string() && step == 1) {
    return Value::Str(std::string(CodePointRange(v.str(), from, std::max(from, to))), v.safe());
  }
  if (v.is_object()) {
    auto slice = v.object().Slice(from, to, step);
    if (!slice) return TypeError(fmt::format("'{}' object cannot be sliced", v.type_name()));
    return *std::move(slice);
  }
  std::vector<int64_t> indices;
  if (step > 0) {
    for (int64_t i = from; i < to; i += step) indices.push_back(i);
  } else {
    for (int64_t i = from; i > to; i += step) indices.push_back(i);
  }
  if (v.is_string()) {
    const std::u32string code_points = ToCodePoints(v.str());
    std::u32string out;
    for (const int64_t i : indices) out.push_back(code_points[static_cast<size_t>(i)]);
    return Value::Str(FromCodePoints(out), v.safe());
  }
  std::vector<Value> items;
  items.reserve(indices.size());
  for (const int64_t i : indices) items.push_back(v.items()[static_cast<size_t>(i)]);
  return v.is_tuple() ? Value::MakeTuple(std::move(items)) : Value::MakeList(std::move(items));
}

Status StableSort(std::vector<size_t>* order,
                  const std::function<Result<bool>(size_t, size_t)>& less) {
  Status status;
  // Once a comparison failed all answer "not less": the sort ends at once, in any order.
  std::stable_sort(order->begin(), order->end(), [&](size_t a, size_t b) {
    if (!status.ok()) return false;
    const Result<bool> result = less(a, b);
    if (!result.ok()) status = result.status();
    return result.ok() && result.value();
  });
  return status;
}

}  // namespace tern::jinja
