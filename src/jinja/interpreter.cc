#include "jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "jinja/builtins.h"
#include "jinja/lexer.h"
#include "jinja/objects.h"
#include "jinja/operators.h"

namespace tern::jinja {

namespace {

Status NotConstant() { return InvalidArgument("not a constant expression"); }

// jinja2's has_safe_repr: what it writes into the code that it makes of a template.
bool IsLiteral(const Value& v) {
  if (v.is_sequence()) return std::all_of(v.items().begin(), v.items().end(), IsLiteral);
  if (v.is_dict()) {
    const auto& entries = v.dict().entries();
    return std::all_of(entries.begin(), entries.end(),
                       [](const Dict::Entry& e) { return IsLiteral(e.key) && IsLiteral(e.value); });
  }
  return v.is_none() || v.is_number() || v.is_string() || v.as<RangeObject>() != nullptr;
}

// Filters that jinja2 gives its context: they run when the template does.
bool NeedsContext(std::string_view filter) {
  return filter == "map" || filter == "select" || filter == "reject" || filter == "selectattr" ||
         filter == "rejectattr";
}

}  // namespace

// Counts nested evaluation. A frame of Eval or Run takes up to a few kB in an unoptimised build.
class Interpreter::Nest {
 public:
  explicit Nest(Interpreter& in) : in_(in) { ++in_.depth_; }
  ~Nest() { --in_.depth_; }
  Status Check() const {
    if (in_.depth_ <= in_.budget_.limits().depth) return OkStatus();
    return InvalidArgument("maximum recursion depth exceeded");
  }

 private:
  Interpreter& in_;
};

const Value* Scope::FindHere(std::string_view name) const {
  for (const auto& [key, value] : names) {
    if (key == name) return &value;
  }
  return nullptr;
}

Status Scope::Charge(int64_t bytes) {
  TERN_RETURN_IF_ERROR(budget.Allocate(bytes));
  charged += bytes;
  return OkStatus();
}

Status Scope::Set(std::string_view name, Value value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = std::move(value);
      return OkStatus();
    }
  }
  if (names.size() == names.capacity()) {
    const size_t more = std::max<size_t>(names.size() * 2, 2);
    TERN_RETURN_IF_ERROR(Charge(static_cast<int64_t>(more * sizeof(names[0]))));
    names.reserve(more);
  }
  names.emplace_back(name, std::move(value));
  return OkStatus();
}

Interpreter::Interpreter(const Dict& inputs, const Limits& limits, const Clock& clock)
    : inputs_(inputs),
      clock_(clock),
      budget_(limits),
      top_(std::make_shared<Scope>(nullptr, budget_)) {}

Interpreter::~Interpreter() {
  // Breaks the cycles that namespaces and closures can form.
  for (const auto& attributes : namespaces_) attributes->Clear();
  for (const ScopePtr& scope : scopes_) scope->names.clear();
  for (const auto& loop : loops_) loop->set_last_changed(std::nullopt);
}

Result<std::string> Interpreter::Render(const Body& body) {
  std::string out;
  out_ = &out;
  const Result<Flow> flow = Run(body, top_);
  out_ = nullptr;
  if (!flow.ok()) return ErrorAt(line_, flow.status().message());
  return out;
}

// ---- statements

Result<Interpreter::Flow> Interpreter::Run(const Body& body, const ScopePtr& scope) {
  for (const StmtPtr& stmt : body) {
    line_ = stmt->line;
    TERN_RETURN_IF_ERROR(budget_.Step());
    TERN_ASSIGN_OR_RETURN(const Flow flow, RunOne(*stmt, scope));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::RunOne(const Stmt& stmt, const ScopePtr& scope) {
  const Nest nest(*this);
  TERN_RETURN_IF_ERROR(nest.Check());
  Flow flow = Flow::kNormal;
  switch (stmt.kind) {
    case Stmt::Kind::kData:
      TERN_RETURN_IF_ERROR(Write(static_cast<const DataStmt&>(stmt).text));
      break;
    case Stmt::Kind::kOutput: {
      const Expr& expr = *static_cast<const OutputStmt&>(stmt).expr;
      // Whatever is printed may have been computed when jinja2 compiled the template.
      if (expr.has_slice) {
        if (const std::optional<Value>& folded = Fold(expr, scope)) {
          TERN_RETURN_IF_ERROR(Write(*folded));
          break;
        }
      }
      TERN_ASSIGN_OR_RETURN(const Value v, Eval(expr, scope));
      TERN_RETURN_IF_ERROR(Write(v));
      break;
    }
    case Stmt::Kind::kFor:
      return RunFor(static_cast<const ForStmt&>(stmt), scope);
    case Stmt::Kind::kIf:
      return RunIf(static_cast<const IfStmt&>(stmt), scope);
    case Stmt::Kind::kSet: {
      const auto& set = static_cast<const SetStmt&>(stmt);
      TERN_ASSIGN_OR_RETURN(Value v, Eval(*set.value, scope));
      TERN_RETURN_IF_ERROR(Assign(*set.target, std::move(v), scope));
      break;
    }
    case Stmt::Kind::kSetBlock:
      TERN_RETURN_IF_ERROR(RunSetBlock(static_cast<const SetBlockStmt&>(stmt), scope, &flow));
      break;
    case Stmt::Kind::kMacro: {
      const MacroBody& macro = static_cast<const MacroStmt&>(stmt).macro;
      TERN_RETURN_IF_ERROR(Adopt(scope));
      TERN_RETURN_IF_ERROR(budget_.Allocate(sizeof(MacroObject)));
      TERN_RETURN_IF_ERROR(
          scope->Set(macro.name, Value::Of(std::make_shared<MacroObject>(macro, scope))));
      break;
    }
    case Stmt::Kind::kCallBlock:
      TERN_RETURN_IF_ERROR(RunCallBlock(static_cast<const CallBlockStmt&>(stmt), scope));
      break;
    case Stmt::Kind::kFilterBlock: {
      const auto& block = static_cast<const FilterBlockStmt&>(stmt);
      std::string text;
      TERN_ASSIGN_OR_RETURN(const ScopePtr inner, Inside(scope));
      TERN_ASSIGN_OR_RETURN(flow, Capture(block.body, inner, &text));
      if (flow != Flow::kNormal) break;
      TERN_ASSIGN_OR_RETURN(const Value v,
                            ApplyFilters(*block.filter, Value::Str(std::move(text)), scope));
      TERN_RETURN_IF_ERROR(Write(v));
      break;
    }
    case Stmt::Kind::kWith:
      return RunWith(static_cast<const WithStmt&>(stmt), scope);
    case Stmt::Kind::kBlock: {
      const auto& block = static_cast<const BlockStmt&>(stmt);
      TERN_ASSIGN_OR_RETURN(const ScopePtr inner, Inside(block.scoped ? scope : top_));
      return Run(block.body, inner);
    }
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
    case Stmt::Kind::kNoLoader:
      return InvalidArgument(fmt::format("'{}' needs other templates; a chat template has none",
                                         static_cast<const NoLoaderStmt&>(stmt).tag));
  }
  return flow;
}

Result<Interpreter::Flow> Interpreter::RunFor(const ForStmt& stmt, const ScopePtr& scope) {
  TERN_ASSIGN_OR_RETURN(const Value items, Eval(*stmt.iterable, scope));
  line_ = stmt.line;
  return RunLoop(stmt, scope, items, 0);
}

Result<Interpreter::Flow> Interpreter::RunLoop(const ForStmt& stmt, const ScopePtr& scope,
                                               const Value& items, int depth) {
  TERN_ASSIGN_OR_RETURN(std::unique_ptr<Cursor> cursor, Iterate(budget_, items));
  Value source = items;
  if (stmt.test) {
    // Tested lazily: the body may change what the test reads.
    std::shared_ptr<Cursor> all = std::move(cursor);
    source = MakeGenerator(items, [this, &stmt, scope, all](Value* out) -> Result<bool> {
      while (true) {
        TERN_ASSIGN_OR_RETURN(const bool more, all->Next(out));
        if (!more) return false;
        TERN_ASSIGN_OR_RETURN(const ScopePtr inner, Inside(scope));
        TERN_RETURN_IF_ERROR(
            inner->Set("loop", Value::Undef("'loop' is undefined in the condition of a for loop")));
        TERN_RETURN_IF_ERROR(Assign(*stmt.target, *out, inner));
        TERN_ASSIGN_OR_RETURN(const Value keep, Eval(*stmt.test, inner));
        if (Truth(keep)) return true;
      }
    });
    cursor = source.object().Iterate();
  }
  // The loop, its cursor, and what its test needs.
  TERN_RETURN_IF_ERROR(budget_.Allocate(sizeof(LoopObject) + (stmt.test ? 640 : 128)));
  // A loop that is left early keeps its test, and that keeps the scope.
  if (stmt.recursive || stmt.test) TERN_RETURN_IF_ERROR(Adopt(scope));
  const auto loop = std::make_shared<LoopObject>(budget_, stmt, stmt.recursive ? scope : nullptr,
                                                 source, std::move(cursor), depth);
  // jinja2 notes a turn at its end: one that `continue` or `break` cut short does not count.
  bool completed = false;
  Value item;
  while (true) {
    line_ = stmt.line;
    TERN_RETURN_IF_ERROR(budget_.Step());
    TERN_ASSIGN_OR_RETURN(const bool more, loop->Next(&item));
    if (!more) break;
    TERN_ASSIGN_OR_RETURN(const ScopePtr turn, Inside(scope));
    TERN_RETURN_IF_ERROR(turn->Set("loop", Value::Of(loop)));
    TERN_RETURN_IF_ERROR(Assign(*stmt.target, item, turn));
    TERN_ASSIGN_OR_RETURN(const Flow flow, Run(stmt.body, turn));
    if (flow == Flow::kBreak) break;
    completed |= flow == Flow::kNormal;
  }
  if (completed || stmt.otherwise.empty()) return Flow::kNormal;
  TERN_ASSIGN_OR_RETURN(const ScopePtr inner, Inside(scope));
  return Run(stmt.otherwise, inner);
}

Result<std::string> Interpreter::CallLoop(LoopObject& loop, const Value& items) {
  const Nest nest(*this);
  TERN_RETURN_IF_ERROR(nest.Check());
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const Result<Flow> flow = RunLoop(loop.stmt(), loop.scope(), items, loop.depth0() + 1);
  out_ = outer;
  if (!flow.ok()) return flow.status();
  return text;
}

Result<Interpreter::Flow> Interpreter::RunIf(const IfStmt& stmt, const ScopePtr& scope) {
  for (const auto& [test, body] : stmt.branches) {
    TERN_ASSIGN_OR_RETURN(const Value v, Eval(*test, scope));
    if (Truth(v)) return Run(body, scope);
  }
  return Run(stmt.otherwise, scope);
}

Status Interpreter::RunSetBlock(const SetBlockStmt& stmt, const ScopePtr& scope, Flow* flow) {
  std::string text;
  TERN_ASSIGN_OR_RETURN(const ScopePtr inner, Inside(scope));
  TERN_ASSIGN_OR_RETURN(*flow, Capture(stmt.body, inner, &text));
  if (*flow != Flow::kNormal) return OkStatus();
  Value v = Value::Str(std::move(text));
  if (stmt.filter) {
    TERN_ASSIGN_OR_RETURN(v, ApplyFilters(*stmt.filter, std::move(v), scope));
  }
  return Assign(*stmt.target, std::move(v), scope);
}

Status Interpreter::RunCallBlock(const CallBlockStmt& stmt, const ScopePtr& scope) {
  const auto& call = static_cast<const CallExpr&>(*stmt.call);
  TERN_ASSIGN_OR_RETURN(const Value callee, Eval(*call.callee, scope));
  TERN_ASSIGN_OR_RETURN(Args args, EvalArgs(call.args, scope));
  TERN_RETURN_IF_ERROR(Adopt(scope));
  TERN_RETURN_IF_ERROR(budget_.Allocate(sizeof(MacroObject)));
  args.keyword.emplace_back("caller", Value::Of(std::make_shared<MacroObject>(stmt.caller, scope)));
  line_ = stmt.line;
  TERN_ASSIGN_OR_RETURN(const Value v, Call(callee, std::move(args)));
  return Write(v);
}

Result<Interpreter::Flow> Interpreter::RunWith(const WithStmt& stmt, const ScopePtr& scope) {
  TERN_ASSIGN_OR_RETURN(const ScopePtr inner, Inside(scope));
  std::vector<Value> values;
  for (const auto& [target, expr] : stmt.assignments) {
    TERN_ASSIGN_OR_RETURN(Value v, Eval(*expr, scope));
    values.push_back(std::move(v));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    TERN_RETURN_IF_ERROR(Assign(*stmt.assignments[i].first, std::move(values[i]), inner));
  }
  return Run(stmt.body, inner);
}

Status Interpreter::Write(const Value& value) {
  if (value.is_string()) return Write(value.str());
  TERN_ASSIGN_OR_RETURN(const std::string text, ToStr(budget_, value));
  return Write(text);
}

Status Interpreter::Write(std::string_view text) {
  if (out_->size() + text.size() > static_cast<size_t>(budget_.limits().output_bytes)) {
    return InvalidArgument(
        fmt::format("the template prints more than {} bytes", budget_.limits().output_bytes));
  }
  *out_ += text;
  return budget_.Scan(static_cast<int64_t>(text.size()));
}

Result<Interpreter::Flow> Interpreter::Capture(const Body& body, const ScopePtr& scope,
                                               std::string* out) {
  std::string* const outer = std::exchange(out_, out);
  Result<Flow> flow = Run(body, scope);
  out_ = outer;
  TERN_RETURN_IF_ERROR(budget_.Allocate(static_cast<int64_t>(out->size())));
  return flow;
}

Status Interpreter::Assign(const Expr& target, Value value, const ScopePtr& scope) {
  if (target.kind == Expr::Kind::kName) {
    return scope->Set(static_cast<const NameExpr&>(target).name, std::move(value));
  }
  if (target.kind == Expr::Kind::kNamespaceRef) {
    const auto& ref = static_cast<const NamespaceRefExpr&>(target);
    TERN_ASSIGN_OR_RETURN(const Value object, EvalName(ref.name, scope));
    auto* ns = object.as<NamespaceObject>();
    if (ns == nullptr) return InvalidArgument("cannot assign attribute on non-namespace object");
    TERN_RETURN_IF_ERROR(NamespaceObject::CheckName(ref.attribute));
    TERN_RETURN_IF_ERROR(budget_.Allocate(Dict::BytesOfNamed(ref.attribute)));
    ns->Set(ref.attribute, std::move(value));
    return OkStatus();
  }
  const auto& names = static_cast<const SequenceExpr&>(target).items;
  if (value.is_undefined() || !IsIterable(value)) {
    if (value.is_undefined() && names.empty()) return OkStatus();
    if (!value.is_undefined()) {
      return TypeError(fmt::format("cannot unpack non-iterable {} object", value.type_name()));
    }
  }
  TERN_ASSIGN_OR_RETURN(std::vector<Value> items, ToItems(budget_, value));
  if (items.size() != names.size()) {
    return InvalidArgument(
        items.size() > names.size()
            ? fmt::format("too many values to unpack (expected {})", names.size())
            : fmt::format("not enough values to unpack (expected {}, got {})", names.size(),
                          items.size()));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    TERN_RETURN_IF_ERROR(Assign(*names[i], std::move(items[i]), scope));
  }
  return OkStatus();
}

// ---- expressions

Result<Value> Interpreter::Charge(Result<Value> value) {
  if (!value.ok()) return value;
  TERN_RETURN_IF_ERROR(CheckDepth(*value));
  TERN_RETURN_IF_ERROR(budget_.Allocate(value->UnsharedBytes()));
  return value;
}

Result<Value> Interpreter::Eval(const Expr& expr, const ScopePtr& scope) {
  const Nest nest(*this);
  TERN_RETURN_IF_ERROR(nest.Check());
  TERN_RETURN_IF_ERROR(budget_.Step());
  if (!expr.has_slice) return EvalKind(expr, scope);
  const std::optional<Value>& folded = Fold(expr, scope);
  if (folding_) return folded ? Result<Value>(*folded) : NotConstant();
  if (folded && IsLiteral(*folded)) return *folded;
  return EvalKind(expr, scope);
}

Result<Value> Interpreter::EvalKind(const Expr& expr, const ScopePtr& scope) {
  line_ = expr.line;
  switch (expr.kind) {
    case Expr::Kind::kConst:
      return static_cast<const ConstExpr&>(expr).value;
    case Expr::Kind::kName:
      if (folding_) return NotConstant();
      return EvalName(static_cast<const NameExpr&>(expr).name, scope);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      const auto& logic = static_cast<const BinaryExpr&>(expr);
      TERN_ASSIGN_OR_RETURN(Value left, Eval(*logic.left, scope));
      if (Truth(left) == (expr.kind == Expr::Kind::kOr)) return left;
      return Eval(*logic.right, scope);
    }
    case Expr::Kind::kConditional:
      return EvalConditional(static_cast<const ConditionalExpr&>(expr), scope);
    case Expr::Kind::kUnary:
      return EvalUnary(static_cast<const UnaryExpr&>(expr), scope);
    case Expr::Kind::kCompare:
      return EvalCompare(static_cast<const CompareExpr&>(expr), scope);
    case Expr::Kind::kGetAttr: {
      const auto& get = static_cast<const GetAttrExpr&>(expr);
      TERN_ASSIGN_OR_RETURN(const Value object, Eval(*get.object, scope));
      line_ = expr.line;
      return Charge(GetAttr(object, get.name));
    }
    case Expr::Kind::kGetItem:
      return EvalGetItem(static_cast<const GetItemExpr&>(expr), scope);
    default:
      return Charge(EvalNode(expr, scope));
  }
}

const std::optional<Value>& Interpreter::Fold(const Expr& expr, const ScopePtr& scope) {
  if (const auto found = folded_.find(&expr); found != folded_.end()) return found->second;
  const bool outer = std::exchange(folding_, true);
  Result<Value> value = EvalKind(expr, scope);
  folding_ = outer;
  std::optional<Value> folded;
  if (value.ok()) folded = std::move(value).value();
  return folded_.emplace(&expr, std::move(folded)).first->second;
}

// The expressions that make new values.
Result<Value> Interpreter::EvalNode(const Expr& expr, const ScopePtr& scope) {
  switch (expr.kind) {
    case Expr::Kind::kList: {
      TERN_ASSIGN_OR_RETURN(auto items,
                            EvalItems(static_cast<const SequenceExpr&>(expr).items, scope));
      return Value::MakeList(std::move(items));
    }
    case Expr::Kind::kTuple: {
      TERN_ASSIGN_OR_RETURN(auto items,
                            EvalItems(static_cast<const SequenceExpr&>(expr).items, scope));
      return Value::MakeTuple(std::move(items));
    }
    case Expr::Kind::kDict:
      return EvalDict(static_cast<const DictExpr&>(expr), scope);
    case Expr::Kind::kConcat:
      return EvalConcat(static_cast<const SequenceExpr&>(expr), scope);
    case Expr::Kind::kBinary: {
      const auto& binary = static_cast<const BinaryExpr&>(expr);
      TERN_ASSIGN_OR_RETURN(const Value left, Eval(*binary.left, scope));
      TERN_ASSIGN_OR_RETURN(const Value right, Eval(*binary.right, scope));
      line_ = expr.line;
      return Arithmetic(budget_, binary.op, left, right);
    }
    case Expr::Kind::kCall: {
      if (folding_) return NotConstant();
      const auto& call = static_cast<const CallExpr&>(expr);
      TERN_ASSIGN_OR_RETURN(const Value callee, Eval(*call.callee, scope));
      TERN_ASSIGN_OR_RETURN(Args args, EvalArgs(call.args, scope));
      line_ = expr.line;
      return Call(callee, std::move(args));
    }
    case Expr::Kind::kFilter:
      return EvalFilter(static_cast<const FilterExpr&>(expr), scope);
    case Expr::Kind::kTest: {
      const auto& test = static_cast<const FilterExpr&>(expr);
      TERN_ASSIGN_OR_RETURN(const Value input, Eval(*test.input, scope));
      TERN_ASSIGN_OR_RETURN(Args args, EvalArgs(test.args, scope));
      line_ = expr.line;
      TERN_ASSIGN_OR_RETURN(const bool holds, ApplyTest(test.name, input, std::move(args)));
      return Value::Bool(holds);
    }
    default:
      return Internal("not an expression");
  }
}

Result<Value> Interpreter::EvalName(std::string_view name, const ScopePtr& scope) {
  for (const Scope* s = scope.get(); s != nullptr; s = s->parent.get()) {
    if (const Value* value = s->FindHere(name)) return *value;
  }
  if (const Value* value = inputs_.Find(name)) return *value;
  if (auto global = FindGlobal(name)) return *std::move(global);
  return Charge(Value::Undef(fmt::format("'{}' is undefined", name)));
}

Result<std::vector<Value>> Interpreter::EvalItems(const std::vector<ExprPtr>& items,
                                                  const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExprPtr& item : items) {
    TERN_ASSIGN_OR_RETURN(Value v, Eval(*item, scope));
    values.push_back(std::move(v));
  }
  return values;
}

Result<Value> Interpreter::EvalDict(const DictExpr& expr, const ScopePtr& scope) {
  Dict dict;
  for (const auto& [key_expr, value_expr] : expr.items) {
    TERN_ASSIGN_OR_RETURN(Value key, Eval(*key_expr, scope));
    TERN_ASSIGN_OR_RETURN(Value value, Eval(*value_expr, scope));
    TERN_RETURN_IF_ERROR(Dict::CheckKey(key));
    dict.Set(std::move(key), std::move(value));
  }
  return Value::MakeDict(std::move(dict));
}

Result<Value> Interpreter::EvalUnary(const UnaryExpr& expr, const ScopePtr& scope) {
  TERN_ASSIGN_OR_RETURN(const Value v, Eval(*expr.operand, scope));
  line_ = expr.line;
  switch (expr.op) {
    case UnaryExpr::Op::kNot:
      return Value::Bool(!Truth(v));
    case UnaryExpr::Op::kMinus:
      return Negate(v);
    case UnaryExpr::Op::kPlus:
      break;
  }
  if (v.is_undefined()) return UndefinedError(v);
  if (v.is_bool()) return Value::Int(v.integer());
  if (v.is_number()) return v;
  return TypeError(fmt::format("bad operand type for unary +: '{}'", v.type_name()));
}

Result<Value> Interpreter::EvalConcat(const SequenceExpr& expr, const ScopePtr& scope) {
  std::string text;
  for (const ExprPtr& item : expr.items) {
    TERN_ASSIGN_OR_RETURN(const Value v, Eval(*item, scope));
    TERN_RETURN_IF_ERROR(AppendStr(budget_, v, &text));
  }
  return Value::Str(std::move(text));
}

Result<Value> Interpreter::EvalCompare(const CompareExpr& expr, const ScopePtr& scope) {
  TERN_ASSIGN_OR_RETURN(Value left, Eval(*expr.first, scope));
  for (const auto& [op, right_expr] : expr.rest) {
    TERN_ASSIGN_OR_RETURN(Value right, Eval(*right_expr, scope));
    line_ = expr.line;
    TERN_ASSIGN_OR_RETURN(const bool holds, Compare(budget_, op, left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Result<Value> Interpreter::EvalConditional(const ConditionalExpr& expr, const ScopePtr& scope) {
  TERN_ASSIGN_OR_RETURN(const Value test, Eval(*expr.test, scope));
  if (Truth(test)) return Eval(*expr.then, scope);
  if (expr.otherwise) return Eval(*expr.otherwise, scope);
  if (folding_) return NotConstant();
  return Value::Undef(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined",
      expr.line));
}

Result<Value> Interpreter::EvalGetItem(const GetItemExpr& expr, const ScopePtr& scope) {
  TERN_ASSIGN_OR_RETURN(const Value object, Eval(*expr.object, scope));
  if (expr.key->kind != Expr::Kind::kSlice) {
    TERN_ASSIGN_OR_RETURN(const Value key, Eval(*expr.key, scope));
    line_ = expr.line;
    return Charge(GetItem(object, key));
  }
  const auto& slice = static_cast<const SliceExpr&>(*expr.key);
  Value bounds[3];
  const ExprPtr* parts[3] = {&slice.begin, &slice.end, &slice.step};
  for (int i = 0; i < 3; ++i) {
    if (*parts[i] == nullptr) continue;
    TERN_ASSIGN_OR_RETURN(bounds[i], Eval(**parts[i], scope));
  }
  line_ = expr.line;
  if (object.is_undefined()) return UndefinedError(object);
  const bool sliceable =
      object.is_string() || object.is_sequence() || object.as<RangeObject>() != nullptr;
  const bool indices = std::all_of(std::begin(bounds), std::end(bounds),
                                   [](const Value& v) { return v.is_none() || v.is_integral(); });
  if (folding_ && !(sliceable && indices)) {
    return Value::Undef(fmt::format("{} object has no element of a slice", object.type_name()));
  }
  if (!sliceable) {
    return TypeError(fmt::format("'{}' object cannot be sliced", object.type_name()));
  }
  return Charge(Slice(budget_, object, bounds[0], bounds[1], bounds[2]));
}

Result<Value> Interpreter::EvalFilter(const FilterExpr& expr, const ScopePtr& scope) {
  if (folding_ && NeedsContext(expr.name)) return NotConstant();
  TERN_ASSIGN_OR_RETURN(Value input, Eval(*expr.input, scope));
  return ApplyFilterExpr(expr, std::move(input), scope);
}

Result<Value> Interpreter::ApplyFilterExpr(const FilterExpr& expr, Value input,
                                           const ScopePtr& scope) {
  TERN_ASSIGN_OR_RETURN(Args args, EvalArgs(expr.args, scope));
  line_ = expr.line;
  return ApplyFilter(expr.name, input, std::move(args));
}

Result<Value> Interpreter::ApplyFilters(const Expr& chain, Value text, const ScopePtr& scope) {
  const auto& filter = static_cast<const FilterExpr&>(chain);
  if (filter.input) {
    TERN_ASSIGN_OR_RETURN(text, ApplyFilters(*filter.input, std::move(text), scope));
  }
  return Charge(ApplyFilterExpr(filter, std::move(text), scope));
}

Result<Args> Interpreter::EvalArgs(const CallArgs& exprs, const ScopePtr& scope) {
  Args args;
  TERN_ASSIGN_OR_RETURN(args.positional, EvalItems(exprs.positional, scope));
  for (const auto& [name, expr] : exprs.keyword) {
    TERN_ASSIGN_OR_RETURN(Value v, Eval(*expr, scope));
    args.keyword.emplace_back(name, std::move(v));
  }
  if (exprs.star) {
    TERN_ASSIGN_OR_RETURN(const Value v, Eval(*exprs.star, scope));
    TERN_ASSIGN_OR_RETURN(const std::vector<Value> items, ToItems(budget_, v));
    args.positional.insert(args.positional.end(), items.begin(), items.end());
  }
  if (exprs.double_star) {
    TERN_ASSIGN_OR_RETURN(const Value v, Eval(*exprs.double_star, scope));
    if (!v.is_dict()) return TypeError("argument after ** must be a mapping");
    const auto written = static_cast<std::ptrdiff_t>(args.keyword.size());
    const auto spread = static_cast<int64_t>(v.dict().size());
    TERN_RETURN_IF_ERROR(budget_.Step(spread * (written + 1)));
    TERN_RETURN_IF_ERROR(budget_.Allocate(spread * static_cast<int64_t>(sizeof(args.keyword[0]))));
    for (const auto& [key, value] : v.dict().entries()) {
      if (!key.is_string()) return TypeError("keywords must be strings");
      const bool repeated =
          std::any_of(args.keyword.begin(), args.keyword.begin() + written,
                      [&name = key.str()](const auto& k) { return k.first == name; });
      if (repeated) {
        return TypeError(fmt::format("got multiple values for keyword argument '{}'", key.str()));
      }
      args.keyword.emplace_back(key.str(), value);
    }
  }
  return args;
}

// ---- calls

Result<Value> Interpreter::Call(const Value& callee, Args args) {
  if (callee.is_undefined()) return UndefinedError(callee);
  if (!callee.is_object()) {
    return TypeError(fmt::format("'{}' object is not callable", callee.type_name()));
  }
  // The object stays alive even if the call drops the last name for it.
  const std::shared_ptr<Object> object = callee.object_ptr();
  return object->Call(*this, std::move(args));
}

Result<Value> Interpreter::ApplyFilter(std::string_view name, const Value& input, Args args) {
  const Builtin* filter = FindFilter(name);
  if (filter == nullptr) return InvalidArgument(fmt::format("no filter named '{}'", name));
  int depth = 0;  // of the arguments
  for (const Value& v : args.positional) depth = std::max(depth, v.depth());
  for (const auto& [key, v] : args.keyword) depth = std::max(depth, v.depth());
  TERN_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(name, filter->params, std::move(args)));
  TERN_ASSIGN_OR_RETURN(Value result, filter->run(*this, input, bound));
  if (auto* lazy = result.as<Generator>()) lazy->KeepsValuesOf(depth);
  return result;
}

Result<bool> Interpreter::ApplyTest(std::string_view name, const Value& input, Args args) {
  const Builtin* test = FindTest(name);
  if (test == nullptr) return InvalidArgument(fmt::format("no test named '{}'", name));
  TERN_ASSIGN_OR_RETURN(const BoundArgs bound, Bind(name, test->params, std::move(args)));
  TERN_ASSIGN_OR_RETURN(const Value holds, test->run(*this, input, bound));
  return Truth(holds);
}

Result<Value> Interpreter::CallMacro(const MacroBody& macro, const ScopePtr& closure, Args args) {
  const Nest nest(*this);
  TERN_RETURN_IF_ERROR(nest.Check());
  TERN_ASSIGN_OR_RETURN(const ScopePtr scope, Inside(closure));
  const size_t count = macro.parameters.size();
  const size_t given = std::min(args.positional.size(), count);
  const auto take = [&args](std::string_view name) -> std::optional<Value> {
    const auto it = std::find_if(args.keyword.begin(), args.keyword.end(),
                                 [&](const auto& k) { return k.first == name; });
    if (it == args.keyword.end()) return std::nullopt;
    Value value = std::move(it->second);
    args.keyword.erase(it);
    return value;
  };
  // Each parameter may look at all the keywords.
  TERN_RETURN_IF_ERROR(budget_.Step(static_cast<int64_t>(args.keyword.size() * (count + 1))));
  std::vector<size_t> missing;
  bool found_caller = false;
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    found_caller |= name == "caller";
    if (i < given) {
      TERN_RETURN_IF_ERROR(scope->Set(name, args.positional[i]));
    } else if (auto value = take(name)) {
      TERN_RETURN_IF_ERROR(scope->Set(name, *std::move(value)));
    } else {
      missing.push_back(i);
    }
  }
  if (macro.uses_caller && !found_caller) {
    TERN_RETURN_IF_ERROR(
        scope->Set("caller", take("caller").value_or(Value::Undef("no caller defined"))));
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : args.keyword) {
      TERN_RETURN_IF_ERROR(budget_.Allocate(Dict::BytesOfNamed(name)));
      rest.Set(Value::Str(name), std::move(value));
    }
    TERN_RETURN_IF_ERROR(scope->Set("kwargs", Value::MakeDict(std::move(rest))));
  } else if (!args.keyword.empty()) {
    return TypeError(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name,
                                 args.keyword[0].first));
  }
  if (macro.uses_varargs) {
    const auto begin = args.positional.begin() + static_cast<std::ptrdiff_t>(given);
    TERN_ASSIGN_OR_RETURN(Value varargs, Charge(Value::MakeTuple({begin, args.positional.end()})));
    TERN_RETURN_IF_ERROR(scope->Set("varargs", std::move(varargs)));
  } else if (args.positional.size() > count) {
    return TypeError(
        fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, count));
  }
  // Defaults see the parameters before them.
  const size_t first_default = count - macro.defaults.size();
  for (const size_t i : missing) {
    Value value = Value::Undef(fmt::format("parameter '{}' was not provided", macro.parameters[i]));
    if (i >= first_default) {
      TERN_ASSIGN_OR_RETURN(value, Eval(*macro.defaults[i - first_default], scope));
    }
    TERN_RETURN_IF_ERROR(scope->Set(macro.parameters[i], std::move(value)));
  }
  std::string text;
  TERN_ASSIGN_OR_RETURN(const Flow flow, Capture(macro.body, scope, &text));
  static_cast<void>(flow);  // break and continue do not leave a macro
  return Value::Str(std::move(text));
}

}  // namespace tern::jinja
