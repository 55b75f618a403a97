// Interpreter: walks a syntax tree once and writes text. One per render.
// Owner: Template::Render. Thread: the one that renders.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "jinja/ast.h"
#include "jinja/budget.h"
#include "jinja/value.h"

namespace tern::jinja {

class LoopObject;

// Names of one block, loop turn or macro call, and the scope around it. Macros and loops may keep
// it until the render ends, so it is charged to the budget, which outlives it, while it lives.
struct Scope {
  Scope(std::shared_ptr<Scope> p, Budget& b) : parent(std::move(p)), budget(b) {}
  ~Scope() { budget.Release(charged); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  const Value* FindHere(std::string_view name) const;
  Status Charge(int64_t bytes);
  // `name` is the template's, which outlives the render. Errors: those of the budget.
  Status Set(std::string_view name, Value value);

  const std::shared_ptr<Scope> parent;
  Budget& budget;
  int64_t charged = 0;                                    // bytes
  std::vector<std::pair<std::string_view, Value>> names;  // few: searched one by one
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  // `inputs` and `clock` outlive the interpreter.
  Interpreter(const Dict& inputs, const Limits& limits, const Clock& clock);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Errors: kInvalidArgument "line N: ...".
  Result<std::string> Render(const Body& body);

  // ---- for builtins

  Budget& budget() { return budget_; }
  const Clock& clock() const { return clock_; }
  // object.name and object[key] as the sandbox resolves them; what is absent is undefined.
  Result<Value> GetAttr(const Value& object, std::string_view name);
  Result<Value> GetItem(const Value& object, const Value& key);
  Result<Value> Call(const Value& callee, Args args);
  Result<Value> ApplyFilter(std::string_view name, const Value& input, Args args);
  Result<bool> ApplyTest(std::string_view name, const Value& input, Args args);
  Result<Value> CallMacro(const MacroBody& macro, const ScopePtr& closure, Args args);
  Result<std::string> CallLoop(LoopObject& loop, const Value& items);
  // A namespace can hold itself: it is emptied when the render ends.
  void AdoptNamespace(std::shared_ptr<Dict> attributes) {
    namespaces_.push_back(std::move(attributes));
  }
  // So can a loop, through what it has seen in `changed`.
  void AdoptLoop(std::shared_ptr<LoopObject> loop) { loops_.push_back(std::move(loop)); }

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  Result<Flow> Run(const Body& body, const ScopePtr& scope);
  Result<Flow> RunOne(const Stmt& stmt, const ScopePtr& scope);
  Result<Flow> RunFor(const ForStmt& stmt, const ScopePtr& scope);
  // The turns of a loop over `items`; `depth`: how many calls of a recursive loop it is inside.
  Result<Flow> RunLoop(const ForStmt& stmt, const ScopePtr& scope, const Value& items, int depth);
  Result<Flow> RunIf(const IfStmt& stmt, const ScopePtr& scope);
  Status RunSetBlock(const SetBlockStmt& stmt, const ScopePtr& scope, Flow* flow);
  Status RunCallBlock(const CallBlockStmt& stmt, const ScopePtr& scope);
  Result<Flow> RunWith(const WithStmt& stmt, const ScopePtr& scope);
  Status Write(const Value& value);
  Status Write(std::string_view text);
  // Runs `body` with its output going to `out`.
  Result<Flow> Capture(const Body& body, const ScopePtr& scope, std::string* out);
  Status Assign(const Expr& target, Value value, const ScopePtr& scope);

  Result<Value> Eval(const Expr& expr, const ScopePtr& scope);
  // jinja2 computes what it can when it compiles a template. It is the same but for slices: of what
  // can't be sliced, they are then undefined instead of an error. Null: not without names or calls.
  // Once for each expression of a render.
  const std::optional<Value>& Fold(const Expr& expr, const ScopePtr& scope);
  Result<Value> EvalKind(const Expr& expr, const ScopePtr& scope);
  Result<Value> EvalNode(const Expr& expr, const ScopePtr& scope);
  Result<Value> EvalName(std::string_view name, const ScopePtr& scope);
  Result<std::vector<Value>> EvalItems(const std::vector<ExprPtr>& items, const ScopePtr& scope);
  Result<Value> EvalDict(const DictExpr& expr, const ScopePtr& scope);
  Result<Value> EvalUnary(const UnaryExpr& expr, const ScopePtr& scope);
  Result<Value> EvalConcat(const SequenceExpr& expr, const ScopePtr& scope);
  Result<Value> EvalCompare(const CompareExpr& expr, const ScopePtr& scope);
  Result<Value> EvalConditional(const ConditionalExpr& expr, const ScopePtr& scope);
  Result<Value> EvalGetItem(const GetItemExpr& expr, const ScopePtr& scope);
  Result<Value> EvalFilter(const FilterExpr& expr, const ScopePtr& scope);
  Result<Value> ApplyFilterExpr(const FilterExpr& expr, Value input, const ScopePtr& scope);
  Result<Value> ApplyFilters(const Expr& chain, Value text, const ScopePtr& scope);
  Result<Args> EvalArgs(const CallArgs& args, const ScopePtr& scope);
  // Counts a value just made.
  Result<Value> Charge(Result<Value> value);

  // A new scope in `scope`.
  Result<ScopePtr> Inside(const ScopePtr& scope) {
    auto inner = std::make_shared<Scope>(scope, budget_);
    TERN_RETURN_IF_ERROR(inner->Charge(sizeof(Scope) + 32));
    return inner;
  }
  // A scope that a macro or loop object keeps: such a scope can come to hold itself.
  Status Adopt(const ScopePtr& scope) {
    scopes_.push_back(scope);
    return budget_.Allocate(2 * sizeof(ScopePtr));
  }

  class Nest;
  class LineMark;

  const Dict& inputs_;
  const Clock& clock_;
  Budget budget_;
  int depth_ = 0;
  int line_ = 1;  // of the node being evaluated
  bool folding_ = false;
  std::unordered_map<const Expr*, std::optional<Value>> folded_;
  std::string* out_ = nullptr;
  ScopePtr top_;
  std::vector<std::shared_ptr<Dict>> namespaces_;
  std::vector<ScopePtr> scopes_;
  std::vector<std::shared_ptr<LoopObject>> loops_;
};

}  // namespace tern::jinja
