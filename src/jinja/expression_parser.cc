#include "jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/builtins.h"

namespace tern::jinja {
namespace {

constexpr int kMaxNesting = 100;
constexpr int kMaxHeight = 200;  // of an expression: also long chains of + or .

// Binding powers of binary operators; `not` stands between `and` and the comparisons.
enum Power {
  kOrPower = 1,
  kAndPower,
  kNotPower,
  kComparePower,
  kAddPower,
  kConcatPower,
  kMulPower,
  kPowPower
};

struct BinaryRule {
  std::string_view op;
  Power power;
  BinaryOp binary;
};

constexpr BinaryRule kBinaryRules[] = {
    {"+", kAddPower, BinaryOp::kAdd},       {"-", kAddPower, BinaryOp::kSub},
    {"*", kMulPower, BinaryOp::kMul},       {"/", kMulPower, BinaryOp::kDiv},
    {"//", kMulPower, BinaryOp::kFloorDiv}, {"%", kMulPower, BinaryOp::kMod},
    {"**", kPowPower, BinaryOp::kPow},
};

struct CompareRule {
  std::string_view op;
  CompareOp compare;
};

constexpr CompareRule kCompareRules[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                         {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                         {">", CompareOp::kGt},  {">=", CompareOp::kGe}};

bool CanAssign(const Expr& expr) {
  if (expr.kind == Expr::Kind::kName || expr.kind == Expr::Kind::kNamespaceRef) return true;
  if (expr.kind != Expr::Kind::kTuple) return false;
  const auto& items = static_cast<const SequenceExpr&>(expr).items;
  return std::all_of(items.begin(), items.end(), [](const ExprPtr& e) { return CanAssign(*e); });
}

bool Assigns(const Expr& target, std::string_view name) {
  if (target.kind == Expr::Kind::kName) return static_cast<const NameExpr&>(target).name == name;
  if (target.kind != Expr::Kind::kTuple) return false;
  const auto& items = static_cast<const SequenceExpr&>(target).items;
  return std::any_of(items.begin(), items.end(),
                     [name](const ExprPtr& e) { return Assigns(*e, name); });
}

// `child` may be null.
void AddChild(Expr* expr, const Expr* child) {
  if (child == nullptr) return;
  expr->height = std::max(expr->height, child->height + 1);
  expr->has_slice |= child->has_slice;
}

// `children` may be null.
Result<ExprPtr> Finish(ExprPtr expr, std::initializer_list<const Expr*> children) {
  for (const Expr* child : children) AddChild(expr.get(), child);
  if (expr->height > kMaxHeight) {
    return ErrorAt(expr->line, fmt::format("an expression of more than {} levels", kMaxHeight));
  }
  return expr;
}

// The same for the arguments of a call.
void AddChildren(Expr* expr, const CallArgs& args) {
  const auto raise = [expr](const Expr* child) { AddChild(expr, child); };
  for (const ExprPtr& arg : args.positional) raise(arg.get());
  for (const auto& [name, arg] : args.keyword) raise(arg.get());
  raise(args.star.get());
  raise(args.double_star.get());
}

}  // namespace

Status ExpressionParser::CheckNesting() const {
  if (depth_ <= kMaxNesting) return OkStatus();
  return ErrorHere(fmt::format("nested deeper than {} levels", kMaxNesting));
}

Status ExpressionParser::RejectUnknownSince(size_t start) const {
  if (unknown_.size() <= start) return OkStatus();
  return ErrorAt(unknown_[start].line, unknown_[start].message);
}

void ExpressionParser::NoteNameRead(std::string_view name) {
  for (MacroUse& use : macros_) {
    use.caller |= name == "caller";
    use.varargs |= name == "varargs";
    use.kwargs |= name == "kwargs";
  }
}

Result<std::string> ExpressionParser::ParseStoreName() {
  const Token& token = Peek();
  TERN_ASSIGN_OR_RETURN(std::string name, ExpectAnyName());
  for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
    if (name == reserved) return ErrorAt(token.line, fmt::format("can't assign to '{}'", name));
  }
  return name;
}

Result<ExprPtr> ExpressionParser::ParseTarget(TupleOptions options) {
  options.target = true;
  const int line = Peek().line;
  TERN_ASSIGN_OR_RETURN(ExprPtr target, ParseTuple(options));
  if (!CanAssign(*target)) return ErrorAt(line, "can't assign to this expression");
  if (loops_ > 0 && Assigns(*target, "loop")) {
    return ErrorAt(line, "can't assign to the special variable 'loop' in a for loop");
  }
  return target;
}

Result<ExprPtr> ExpressionParser::ParseTuple(TupleOptions options) {
  const int line = Peek().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) TERN_RETURN_IF_ERROR(ExpectOp(","));
    const Token::Kind kind = Peek().kind;
    if (kind == Token::Kind::kVariableEnd || kind == Token::Kind::kBlockEnd || IsOp(")") ||
        (!options.end.empty() && IsName(options.end))) {
      break;
    }
    Result<ExprPtr> item = options.target        ? ParsePrimary(options.namespace_ref)
                           : options.conditional ? ParseExpression()
                                                 : ParseBinary(kOrPower);
    if (!item.ok()) return item;
    items.push_back(std::move(item).value());
    if (!IsOp(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && items.size() == 1) return std::move(items[0]);
  if (!is_tuple && !options.parentheses) return Expected("an expression");
  return MakeSequence(Expr::Kind::kTuple, line, std::move(items));
}

Result<ExprPtr> ExpressionParser::MakeSequence(Expr::Kind kind, int line,
                                               std::vector<ExprPtr> items) {
  auto sequence = std::make_unique<SequenceExpr>(kind, line, std::move(items));
  for (const ExprPtr& item : sequence->items) {
    AddChild(sequence.get(), item.get());
  }
  return Finish(std::move(sequence), {});
}

Result<ExprPtr> ExpressionParser::ParseExpression() {
  const Nest nest(&depth_);
  TERN_RETURN_IF_ERROR(CheckNesting());
  const size_t unknown = unknown_.size();
  const int line = Peek().line;
  TERN_ASSIGN_OR_RETURN(ExprPtr expr, ParseBinary(kOrPower));
  while (SkipName("if")) {
    auto conditional = std::make_unique<ConditionalExpr>(line);
    conditional->then = std::move(expr);
    TERN_ASSIGN_OR_RETURN(conditional->test, ParseBinary(kOrPower));
    if (SkipName("else")) {
      TERN_ASSIGN_OR_RETURN(conditional->otherwise, ParseExpression());
    }
    unknown_.resize(unknown);
    const ConditionalExpr& c = *conditional;
    TERN_ASSIGN_OR_RETURN(
        expr, Finish(std::move(conditional), {c.test.get(), c.then.get(), c.otherwise.get()}));
  }
  return expr;
}

std::optional<CompareOp> ExpressionParser::PeekCompare() const {
  for (const CompareRule& rule : kCompareRules) {
    if (IsOp(rule.op)) return rule.compare;
  }
  if (IsName("in")) return CompareOp::kIn;
  if (IsName("not") && IsName("in", 1)) return CompareOp::kNotIn;
  return std::nullopt;
}

// Operators that bind at least as tightly as `min_power`.
Result<ExprPtr> ExpressionParser::ParseBinary(int min_power) {
  const int line = Peek().line;
  ExprPtr left;
  if (min_power <= kNotPower && IsName("not")) {
    Next();
    const Nest nest(&depth_);
    TERN_RETURN_IF_ERROR(CheckNesting());
    TERN_ASSIGN_OR_RETURN(ExprPtr operand, ParseBinary(kNotPower));
    TERN_ASSIGN_OR_RETURN(left, MakeUnary(line, UnaryExpr::Op::kNot, std::move(operand)));
  } else {
    TERN_ASSIGN_OR_RETURN(left, ParseUnary(true));
  }
  while (true) {
    if (min_power <= kOrPower && SkipName("or")) {
      TERN_ASSIGN_OR_RETURN(ExprPtr right, ParseBinary(kAndPower));
      TERN_ASSIGN_OR_RETURN(left, MakeBinary(Expr::Kind::kOr, line, BinaryOp::kAdd, std::move(left),
                                             std::move(right)));
    } else if (min_power <= kAndPower && SkipName("and")) {
      TERN_ASSIGN_OR_RETURN(ExprPtr right, ParseBinary(kNotPower));
      TERN_ASSIGN_OR_RETURN(left, MakeBinary(Expr::Kind::kAnd, line, BinaryOp::kAdd,
                                             std::move(left), std::move(right)));
    } else if (min_power <= kComparePower && PeekCompare()) {
      TERN_ASSIGN_OR_RETURN(left, ParseComparison(line, std::move(left)));
    } else if (min_power <= kConcatPower && IsOp("~")) {
      std::vector<ExprPtr> items;
      items.push_back(std::move(left));
      while (SkipOp("~")) {
        TERN_ASSIGN_OR_RETURN(ExprPtr item, ParseBinary(kMulPower));
        items.push_back(std::move(item));
      }
      TERN_ASSIGN_OR_RETURN(left, MakeSequence(Expr::Kind::kConcat, line, std::move(items)));
    } else {
      const auto* rule = std::find_if(std::begin(kBinaryRules), std::end(kBinaryRules),
                                      [&](const BinaryRule& r) { return IsOp(r.op); });
      if (rule == std::end(kBinaryRules) || rule->power < min_power) return left;
      Next();
      TERN_ASSIGN_OR_RETURN(ExprPtr right, ParseBinary(rule->power + 1));
      TERN_ASSIGN_OR_RETURN(left, MakeBinary(Expr::Kind::kBinary, line, rule->binary,
                                             std::move(left), std::move(right)));
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseComparison(int line, ExprPtr first) {
  auto compare = std::make_unique<CompareExpr>(line, std::move(first));
  AddChild(compare.get(), compare->first.get());
  while (const auto op = PeekCompare()) {
    if (*op == CompareOp::kNotIn) Next();
    Next();
    TERN_ASSIGN_OR_RETURN(ExprPtr right, ParseBinary(kAddPower));
    AddChild(compare.get(), right.get());
    compare->rest.emplace_back(*op, std::move(right));
  }
  return Finish(std::move(compare), {});
}

Result<ExprPtr> ExpressionParser::MakeUnary(int line, UnaryExpr::Op op, ExprPtr operand) {
  const Expr* child = operand.get();
  return Finish(std::make_unique<UnaryExpr>(line, op, std::move(operand)), {child});
}

Result<ExprPtr> ExpressionParser::MakeBinary(Expr::Kind kind, int line, BinaryOp op, ExprPtr left,
                                             ExprPtr right) {
  const Expr* l = left.get();
  const Expr* r = right.get();
  return Finish(std::make_unique<BinaryExpr>(kind, line, op, std::move(left), std::move(right)),
                {l, r});
}

Result<ExprPtr> ExpressionParser::ParseUnary(bool with_filters) {
  const Nest nest(&depth_);
  TERN_RETURN_IF_ERROR(CheckNesting());
  const int line = Peek().line;
  ExprPtr expr;
  if (IsOp("-") || IsOp("+")) {
    const auto op = Next().text == "-" ? UnaryExpr::Op::kMinus : UnaryExpr::Op::kPlus;
    TERN_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(false));
    TERN_ASSIGN_OR_RETURN(expr, MakeUnary(line, op, std::move(operand)));
  } else {
    TERN_ASSIGN_OR_RETURN(expr, ParsePrimary(false));
  }
  TERN_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  return with_filters ? ParseFilterChain(std::move(expr)) : std::move(expr);
}

Result<ExprPtr> ExpressionParser::ParsePrimary(bool namespace_ref) {
  const Token& token = Peek();
  const auto constant = [&](Value v) { return ExprPtr(new ConstExpr(token.line, std::move(v))); };
  switch (token.kind) {
    case Token::Kind::kName: {
      Next();
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(Value::Bool(true));
      if (name == "false" || name == "False") return constant(Value::Bool(false));
      if (name == "none" || name == "None") return constant(Value::None());
      if (namespace_ref && SkipOp(".")) {
        TERN_ASSIGN_OR_RETURN(std::string attribute, ExpectAnyName());
        return ExprPtr(new NamespaceRefExpr(token.line, name, std::move(attribute)));
      }
      NoteNameRead(name);
      return ExprPtr(new NameExpr(token.line, name));
    }
    case Token::Kind::kString: {
      std::string text;
      while (Peek().kind == Token::Kind::kString) text += Next().text;
      return constant(Value::Str(std::move(text)));
    }
    case Token::Kind::kInteger:
      Next();
      return constant(Value::Int(token.integer));
    case Token::Kind::kFloat:
      Next();
      return constant(Value::Float(token.number));
    case Token::Kind::kOperator:
      if (token.text == "(") {
        Next();
        TERN_ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple({.parentheses = true}));
        TERN_RETURN_IF_ERROR(ExpectOp(")"));
        return expr;
      }
      if (token.text == "[") return ParseList();
      if (token.text == "{") return ParseDict();
      [[fallthrough]];
    default:
      return ErrorHere(fmt::format("unexpected '{}'", Describe(token)));
  }
}

Result<ExprPtr> ExpressionParser::ParseList() {
  const int line = Next().line;
  std::vector<ExprPtr> items;
  while (!IsOp("]")) {
    if (!items.empty()) TERN_RETURN_IF_ERROR(ExpectOp(","));
    if (IsOp("]")) break;
    TERN_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    items.push_back(std::move(item));
  }
  TERN_RETURN_IF_ERROR(ExpectOp("]"));
  return MakeSequence(Expr::Kind::kList, line, std::move(items));
}

Result<ExprPtr> ExpressionParser::ParseDict() {
  auto dict = std::make_unique<DictExpr>(Next().line);
  while (!IsOp("}")) {
    if (!dict->items.empty()) TERN_RETURN_IF_ERROR(ExpectOp(","));
    if (IsOp("}")) break;
    TERN_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    TERN_RETURN_IF_ERROR(ExpectOp(":"));
    TERN_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    AddChild(dict.get(), key.get());
    AddChild(dict.get(), value.get());
    dict->items.emplace_back(std::move(key), std::move(value));
  }
  TERN_RETURN_IF_ERROR(ExpectOp("}"));
  return Finish(std::move(dict), {});
}

Result<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr expr) {
  while (true) {
    if (IsOp(".")) {
      TERN_ASSIGN_OR_RETURN(expr, ParseDot(std::move(expr)));
    } else if (IsOp("[")) {
      TERN_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (IsOp("(")) {
      TERN_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseDot(ExprPtr object) {
  const int line = Next().line;
  const Expr* child = object.get();
  const Token& token = Peek();
  if (token.kind == Token::Kind::kName) {
    Next();
    return Finish(std::make_unique<GetAttrExpr>(line, std::move(object), token.text), {child});
  }
  if (token.kind != Token::Kind::kInteger) return ErrorHere("expected name or number");
  Next();
  ExprPtr key(new ConstExpr(line, Value::Int(token.integer)));
  return Finish(std::make_unique<GetItemExpr>(line, std::move(object), std::move(key)), {child});
}

Result<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr object) {
  const int line = Next().line;
  std::vector<ExprPtr> keys;
  while (!IsOp("]")) {
    if (!keys.empty()) TERN_RETURN_IF_ERROR(ExpectOp(","));
    TERN_ASSIGN_OR_RETURN(ExprPtr key, ParseSubscriptKey());
    keys.push_back(std::move(key));
  }
  TERN_RETURN_IF_ERROR(ExpectOp("]"));
  ExprPtr key;
  if (keys.size() == 1) {
    key = std::move(keys[0]);
  } else {
    TERN_ASSIGN_OR_RETURN(key, MakeSequence(Expr::Kind::kTuple, line, std::move(keys)));
  }
  const Expr* o = object.get();
  const Expr* k = key.get();
  return Finish(std::make_unique<GetItemExpr>(line, std::move(object), std::move(key)), {o, k});
}

Result<ExprPtr> ExpressionParser::ParseSubscriptKey() {
  auto slice = std::make_unique<SliceExpr>(Peek().line);
  if (!IsOp(":")) {
    TERN_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    if (!IsOp(":")) return key;
    slice->begin = std::move(key);
  }
  Next();
  const auto absent = [&] { return IsOp(":") || IsOp("]") || IsOp(","); };
  if (!absent()) {
    TERN_ASSIGN_OR_RETURN(slice->end, ParseExpression());
  }
  if (SkipOp(":") && !absent()) {
    TERN_ASSIGN_OR_RETURN(slice->step, ParseExpression());
  }
  slice->has_slice = true;
  const SliceExpr& s = *slice;
  return Finish(std::move(slice), {s.begin.get(), s.end.get(), s.step.get()});
}

Status ExpressionParser::ParseCallArgs(CallArgs* args) {
  const int line = Peek().line;
  TERN_RETURN_IF_ERROR(ExpectOp("("));
  const auto invalid = [line] { return ErrorAt(line, "invalid syntax in call arguments"); };
  bool first = true;
  while (!IsOp(")")) {
    if (!first) TERN_RETURN_IF_ERROR(ExpectOp(","));
    first = false;
    if (IsOp(")")) break;
    if (SkipOp("*")) {
      if (args->star || args->double_star) return invalid();
      TERN_ASSIGN_OR_RETURN(args->star, ParseExpression());
    } else if (SkipOp("**")) {
      if (args->double_star) return invalid();
      TERN_ASSIGN_OR_RETURN(args->double_star, ParseExpression());
    } else if (Peek().kind == Token::Kind::kName && IsOp("=", 1)) {
      if (args->double_star) return invalid();
      std::string name = Next().text;
      Next();
      TERN_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      args->keyword.emplace_back(std::move(name), std::move(value));
    } else {
      if (args->star || args->double_star || !args->keyword.empty()) return invalid();
      TERN_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      args->positional.push_back(std::move(value));
    }
  }
  return ExpectOp(")");
}

Result<ExprPtr> ExpressionParser::ParseCall(ExprPtr callee) {
  const Expr* child = callee.get();
  auto call = std::make_unique<CallExpr>(Peek().line, std::move(callee));
  TERN_RETURN_IF_ERROR(ParseCallArgs(&call->args));
  AddChildren(call.get(), call->args);
  return Finish(std::move(call), {child});
}

Result<ExprPtr> ExpressionParser::ParseFilterChain(ExprPtr expr) {
  while (true) {
    if (IsOp("|")) {
      TERN_ASSIGN_OR_RETURN(expr, ParseFilters(std::move(expr), false));
    } else if (IsName("is")) {
      TERN_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (IsOp("(")) {
      TERN_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Result<std::string> ExpressionParser::ParseDottedName() {
  TERN_ASSIGN_OR_RETURN(std::string name, ExpectAnyName());
  while (SkipOp(".")) {
    TERN_ASSIGN_OR_RETURN(const std::string part, ExpectAnyName());
    name += "." + part;
  }
  return name;
}

// `| f | g(1)`; the first bar is absent in {% filter f | g %}.
Result<ExprPtr> ExpressionParser::ParseFilters(ExprPtr input, bool first_bar_absent) {
  while (first_bar_absent || IsOp("|")) {
    if (!first_bar_absent) Next();
    first_bar_absent = false;
    const int line = Peek().line;
    TERN_ASSIGN_OR_RETURN(std::string name, ParseDottedName());
    if (FindFilter(name) == nullptr) {
      unknown_.push_back({line, fmt::format("no filter named '{}'", name)});
    }
    const Expr* child = input.get();
    auto filter =
        std::make_unique<FilterExpr>(Expr::Kind::kFilter, line, std::move(input), std::move(name));
    if (IsOp("(")) TERN_RETURN_IF_ERROR(ParseCallArgs(&filter->args));
    AddChildren(filter.get(), filter->args);
    TERN_ASSIGN_OR_RETURN(input, Finish(std::move(filter), {child}));
  }
  return input;
}

Result<ExprPtr> ExpressionParser::ParseTest(ExprPtr input) {
  const int line = Next().line;
  const bool negated = SkipName("not");
  TERN_ASSIGN_OR_RETURN(std::string name, ParseDottedName());
  if (FindTest(name) == nullptr) {
    unknown_.push_back({line, fmt::format("no test named '{}'", name)});
  }
  const Expr* child = input.get();
  auto test =
      std::make_unique<FilterExpr>(Expr::Kind::kTest, line, std::move(input), std::move(name));
  if (IsOp("(")) {
    TERN_RETURN_IF_ERROR(ParseCallArgs(&test->args));
  } else if (StartsTestArgument()) {
    if (IsName("is")) return ErrorHere("you cannot chain multiple tests with is");
    TERN_ASSIGN_OR_RETURN(ExprPtr arg, ParsePrimary(false));
    TERN_ASSIGN_OR_RETURN(arg, ParsePostfix(std::move(arg)));
    test->args.positional.push_back(std::move(arg));
  }
  AddChildren(test.get(), test->args);
  TERN_ASSIGN_OR_RETURN(ExprPtr expr, Finish(std::move(test), {child}));
  return negated ? MakeUnary(line, UnaryExpr::Op::kNot, std::move(expr)) : std::move(expr);
}

// `x is divisibleby 3`: one argument without parentheses.
bool ExpressionParser::StartsTestArgument() const {
  switch (Peek().kind) {
    case Token::Kind::kName:
      return !IsName("else") && !IsName("or") && !IsName("and");
    case Token::Kind::kString:
    case Token::Kind::kInteger:
    case Token::Kind::kFloat:
      return true;
    case Token::Kind::kOperator:
      return IsOp("[") || IsOp("{");
    default:
      return false;
  }
}

}  // namespace tern::jinja
