// The syntax tree of a template. Made by the parser, then read-only and shared by all renders.
// Each node knows its line and its height, which the parser bounds: walking and freeing a tree
// recurse.
// Thread: any, once built.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/operators.h"
#include "jinja/value.h"

namespace tern::jinja {

struct Expr {
  enum class Kind {
    kConst,
    kName,
    kList,
    kTuple,
    kDict,
    kUnary,
    kBinary,
    kAnd,
    kOr,
    kConcat,
    kCompare,
    kConditional,
    kGetAttr,
    kGetItem,
    kSlice,
    kCall,
    kFilter,
    kTest,
    kNamespaceRef,
  };
  Expr(Kind k, int l) : kind(k), line(l) {}
  virtual ~Expr() = default;
  const Kind kind;
  const int line;
  int height = 1;
  bool has_slice = false;  // it or one of its operands is one
};

using ExprPtr = std::unique_ptr<Expr>;

struct ConstExpr : Expr {
  ConstExpr(int line, Value v) : Expr(Kind::kConst, line), value(std::move(v)) {}
  Value value;
};

struct NameExpr : Expr {
  NameExpr(int line, std::string n) : Expr(Kind::kName, line), name(std::move(n)) {}
  std::string name;
};

// [a, b], (a, b), and a ~ b ~ c.
struct SequenceExpr : Expr {
  SequenceExpr(Kind kind, int line, std::vector<ExprPtr> i)
      : Expr(kind, line), items(std::move(i)) {}
  std::vector<ExprPtr> items;
};

struct DictExpr : Expr {
  explicit DictExpr(int line) : Expr(Kind::kDict, line) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

struct UnaryExpr : Expr {
  enum class Op { kNot, kMinus, kPlus };
  UnaryExpr(int line, Op o, ExprPtr e) : Expr(Kind::kUnary, line), op(o), operand(std::move(e)) {}
  Op op;
  ExprPtr operand;
};

struct BinaryExpr : Expr {  // also kAnd and kOr, whose op is not used
  BinaryExpr(Kind kind, int line, BinaryOp o, ExprPtr l, ExprPtr r)
      : Expr(kind, line), op(o), left(std::move(l)), right(std::move(r)) {}
  BinaryOp op;
  ExprPtr left, right;
};

struct CompareExpr : Expr {  // a < b <= c
  CompareExpr(int line, ExprPtr f) : Expr(Kind::kCompare, line), first(std::move(f)) {}
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};

struct ConditionalExpr : Expr {  // then if test else otherwise
  explicit ConditionalExpr(int line) : Expr(Kind::kConditional, line) {}
  ExprPtr test, then, otherwise;  // otherwise may be null
};

struct GetAttrExpr : Expr {  // object.name
  GetAttrExpr(int line, ExprPtr o, std::string n)
      : Expr(Kind::kGetAttr, line), object(std::move(o)), name(std::move(n)) {}
  ExprPtr object;
  std::string name;
};

struct GetItemExpr : Expr {  // object[key]
  GetItemExpr(int line, ExprPtr o, ExprPtr k)
      : Expr(Kind::kGetItem, line), object(std::move(o)), key(std::move(k)) {}
  ExprPtr object, key;
};

struct SliceExpr : Expr {  // begin:end:step as a key; parts may be null
  explicit SliceExpr(int line) : Expr(Kind::kSlice, line) {}
  ExprPtr begin, end, step;
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star, double_star;  // *args, **kwargs; may be null
};

struct CallExpr : Expr {
  CallExpr(int line, ExprPtr c) : Expr(Kind::kCall, line), callee(std::move(c)) {}
  ExprPtr callee;
  CallArgs args;
};

struct FilterExpr : Expr {  // also kTest
  FilterExpr(Kind kind, int line, ExprPtr i, std::string n)
      : Expr(kind, line), input(std::move(i)), name(std::move(n)) {}
  ExprPtr input;  // null in {% filter %} and {% set x | f %}: the text of the block
  std::string name;
  CallArgs args;
};

struct NamespaceRefExpr : Expr {  // the target of {% set name.attribute = ... %}
  NamespaceRefExpr(int line, std::string n, std::string a)
      : Expr(Kind::kNamespaceRef, line), name(std::move(n)), attribute(std::move(a)) {}
  std::string name, attribute;
};

struct Stmt {
  enum class Kind {
    kData,
    kOutput,
    kFor,
    kIf,
    kSet,
    kSetBlock,
    kMacro,
    kCallBlock,
    kFilterBlock,
    kWith,
    kBlock,
    kBreak,
    kContinue,
    kNoLoader,
  };
  Stmt(Kind k, int l) : kind(k), line(l) {}
  virtual ~Stmt() = default;
  const Kind kind;
  const int line;
};

using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct DataStmt : Stmt {
  DataStmt(int line, std::string t) : Stmt(Kind::kData, line), text(std::move(t)) {}
  std::string text;
};

struct OutputStmt : Stmt {  // {{ expr }}
  OutputStmt(int line, ExprPtr e) : Stmt(Kind::kOutput, line), expr(std::move(e)) {}
  ExprPtr expr;
};

struct ForStmt : Stmt {
  explicit ForStmt(int line) : Stmt(Kind::kFor, line) {}
  ExprPtr target, iterable, test;  // test may be null
  Body body, otherwise;
  bool recursive = false;
};

struct IfStmt : Stmt {
  explicit IfStmt(int line) : Stmt(Kind::kIf, line) {}
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};

struct SetStmt : Stmt {
  explicit SetStmt(int line) : Stmt(Kind::kSet, line) {}
  ExprPtr target, value;
};

struct SetBlockStmt : Stmt {
  explicit SetBlockStmt(int line) : Stmt(Kind::kSetBlock, line) {}
  ExprPtr target, filter;  // filter may be null
  Body body;
};

// What a macro and a call block share: parameters and body.
struct MacroBody {
  std::string name;  // "caller" for a call block
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  // Which special names the body reads: only then may the call give more than is declared.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct MacroStmt : Stmt {
  explicit MacroStmt(int line) : Stmt(Kind::kMacro, line) {}
  MacroBody macro;
};

struct CallBlockStmt : Stmt {
  explicit CallBlockStmt(int line) : Stmt(Kind::kCallBlock, line) {}
  MacroBody caller;
  ExprPtr call;  // a CallExpr
};

struct FilterBlockStmt : Stmt {
  explicit FilterBlockStmt(int line) : Stmt(Kind::kFilterBlock, line) {}
  ExprPtr filter;
  Body body;
};

struct WithStmt : Stmt {  // also {% generation %}: a scope without names of its own
  explicit WithStmt(int line) : Stmt(Kind::kWith, line) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;
  Body body;
};

struct BlockStmt : Stmt {  // {% block name %}: rendered in place, there is no inheritance
  explicit BlockStmt(int line) : Stmt(Kind::kBlock, line) {}
  bool scoped = false;
  Body body;
};

struct FlowStmt : Stmt {  // break, continue
  using Stmt::Stmt;
};

struct NoLoaderStmt : Stmt {  // include, import, from, extends: fails when reached
  NoLoaderStmt(int line, std::string t) : Stmt(Kind::kNoLoader, line), tag(std::move(t)) {}
  std::string tag;
};

}  // namespace tern::jinja
