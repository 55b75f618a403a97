// Objects: the values with behaviour of their own that templates meet.
// Thread: the one that renders.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/value.h"

namespace tern::jinja {

// range(start, stop, step). REQUIRES: step != 0
class RangeObject final : public Object {
 public:
  RangeObject(Budget& budget, int64_t start, int64_t stop, int64_t step)
      : budget_(budget), start_(start), stop_(stop), step_(step) {}
  // At most 100000 elements, as the sandbox. Errors: "Range too big...".
  static Result<Value> Make(Budget& budget, int64_t start, int64_t stop, int64_t step);
  std::string_view type_name() const override { return "range"; }
  Status AppendRepr(Budget& budget, int depth, std::string* out) const override;
  std::optional<int64_t> Length() override;
  std::unique_ptr<Cursor> Iterate() override;
  std::optional<Value> Attribute(std::string_view name) override;
  std::optional<Value> Item(int64_t index) override;
  std::optional<Value> Slice(int64_t from, int64_t to, int64_t step) override;

 private:
  Budget& budget_;
  const int64_t start_, stop_, step_;
};

// What dict.keys(), .values() and .items() give.
class DictView final : public Object {
 public:
  enum class Part { kKeys, kValues, kItems };
  DictView(Budget& budget, Value dict, Part part)
      : budget_(budget), dict_(std::move(dict)), part_(part) {}
  std::string_view type_name() const override;
  Status AppendRepr(Budget& budget, int depth, std::string* out) const override;
  std::optional<int64_t> Length() override;
  std::unique_ptr<Cursor> Iterate() override;
  int depth() const override { return dict_.depth() + 1; }
  Value At(size_t i) const;

 private:
  Budget& budget_;
  const Value dict_;
  const Part part_;
};

// A Python iterator: gives each item once, makes it when it is asked for.
class Generator final : public Object {
 public:
  using NextFunction = std::function<Result<bool>(Value*)>;
  // `type`: "generator", "list_reverseiterator"... `source`: what the items come from.
  Generator(std::string_view type, const Value& source, NextFunction next)
      : type_(type), depth_(source.depth() + 1), next_(std::move(next)) {}
  std::string_view type_name() const override { return type_; }
  std::unique_ptr<Cursor> Iterate() override;
  int depth() const override { return depth_; }
  Result<bool> Next(Value* out);
  // The items are made with the help of values nested that deep.
  void KeepsValuesOf(int depth) { depth_ = std::max(depth_, depth + 1); }

 private:
  const std::string_view type_;
  int depth_;
  NextFunction next_;
  bool running_ = false;
};

Value MakeGenerator(const Value& source, Generator::NextFunction next,
                    std::string_view type = "generator");

class NamespaceObject final : public Object {
 public:
  explicit NamespaceObject(std::shared_ptr<Dict> attributes) : attributes_(std::move(attributes)) {}
  // Errors: names that start with an underscore, as transformers.
  static Status CheckName(std::string_view name);
  std::string_view type_name() const override { return "Namespace"; }
  Status AppendRepr(Budget& budget, int depth, std::string* out) const override;
  std::optional<Value> Attribute(std::string_view name) override;
  void Set(std::string_view name, Value value) {
    attributes_->Set(Value::Str(std::string(name)), std::move(value));
  }

 private:
  const std::shared_ptr<Dict> attributes_;
};

class MacroObject final : public Object {
 public:
  MacroObject(const MacroBody& macro, ScopePtr closure)
      : macro_(macro), closure_(std::move(closure)) {}
  std::string_view type_name() const override { return "Macro"; }
  Status AppendRepr(Budget& budget, int depth, std::string* out) const override;
  std::optional<Value> Attribute(std::string_view name) override;
  bool callable() const override { return true; }
  Result<Value> Call(Interpreter& interpreter, Args args) override {
    return interpreter.CallMacro(macro_, closure_, std::move(args));
  }

 private:
  const MacroBody& macro_;  // in the template's tree, which outlives the render
  const ScopePtr closure_;
};

// A method with its object, or a global function (self is none).
class FunctionObject final : public Object {
 public:
  FunctionObject(const Builtin& builtin, Value self) : builtin_(builtin), self_(std::move(self)) {}
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Result<Value> Call(Interpreter& interpreter, Args args) override;
  std::optional<Value> Attribute(std::string_view name) override;
  int depth() const override { return self_.depth() + 1; }

 private:
  const Builtin& builtin_;  // in a constant table
  const Value self_;
};

// The `loop` variable.
class LoopObject final : public Object {
 public:
  // `scope` is set for recursive loops only.
  LoopObject(Budget& budget, const ForStmt& stmt, ScopePtr scope, const Value& items,
             std::unique_ptr<Cursor> cursor, int depth0);
  std::string_view type_name() const override { return "LoopContext"; }
  std::optional<Value> Attribute(std::string_view name) override;
  std::optional<int64_t> Length() override;
  bool callable() const override { return true; }
  Result<Value> Call(Interpreter& interpreter, Args args) override;
  int depth() const override {
    return std::max(depth_, last_changed_ ? last_changed_->depth() + 1 : 0);
  }

  // Moves to the next item.
  Result<bool> Next(Value* out);
  // An error of the iterable met while looking ahead for an attribute; reported by the next use.
  const Status& status() const { return status_; }
  const ForStmt& stmt() const { return stmt_; }
  const ScopePtr& scope() const { return scope_; }
  int depth0() const { return depth0_; }
  Value Cycle(const std::vector<Value>& items) const {
    return items[static_cast<size_t>(index0_) % items.size()];
  }
  const std::optional<Value>& last_changed() const { return last_changed_; }
  void set_last_changed(std::optional<Value> values) { last_changed_ = std::move(values); }

 private:
  bool Peek();
  int64_t CountItems();

  Budget& budget_;
  const ForStmt& stmt_;
  const ScopePtr scope_;
  const int depth0_;
  const int depth_;
  std::unique_ptr<Cursor> cursor_;
  std::optional<int64_t> length_;
  std::optional<Value> before_, current_, after_;
  std::optional<Value> last_changed_;
  std::vector<Value> buffered_;  // read ahead by `length`, in reverse
  int64_t index0_ = -1;
  Status status_;
};

class CyclerObject final : public Object {
 public:
  explicit CyclerObject(std::vector<Value> items) : items_(Value::MakeTuple(std::move(items))) {}
  std::string_view type_name() const override { return "Cycler"; }
  std::optional<Value> Attribute(std::string_view name) override;
  int depth() const override { return items_.depth() + 1; }
  Value Next();
  void Reset() { pos_ = 0; }

 private:
  const Value items_;
  size_t pos_ = 0;
};

class JoinerObject final : public Object {
 public:
  explicit JoinerObject(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  int depth() const override { return separator_.depth() + 1; }
  Result<Value> Call(Interpreter& interpreter, Args args) override;

 private:
  const Value separator_;
  bool used_ = false;
};

}  // namespace tern::jinja
