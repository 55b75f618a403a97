// ExpressionParser: the expressions of a template, by precedence climbing. The grammar and its
// quirks are jinja2's: "-1 | abs" is 1, "2 ** 3 ** 2" is 64, a name may follow `is` as argument.
// Owner: Parse(). Thread: the one that parses.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/ast.h"
#include "jinja/token_stream.h"

namespace tern::jinja {

class ExpressionParser : protected TokenStream {
 protected:
  using TokenStream::TokenStream;

  struct TupleOptions {
    bool conditional = true;     // `a if b else c` is allowed
    bool target = false;         // names and literals only
    bool namespace_ref = false;  // with `target`: name.attribute
    bool parentheses = false;    // an empty tuple is allowed
    std::string_view end = {};   // a name that ends the tuple
  };

  Result<ExprPtr> ParseExpression();
  // Expressions separated by commas; a single one without a comma stays what it is.
  Result<ExprPtr> ParseTuple(TupleOptions options);
  // What may stand left of `=` or `in`.
  Result<ExprPtr> ParseTarget(TupleOptions options);
  Result<std::string> ParseStoreName();
  // `| f | g(1)`; the first bar is absent in {% filter f | g %}.
  Result<ExprPtr> ParseFilters(ExprPtr input, bool first_bar_absent);

  // Counts brackets in brackets and blocks in blocks.
  class Nest {
   public:
    explicit Nest(int* depth) : depth_(depth) { ++*depth_; }
    ~Nest() { --*depth_; }

   private:
    int* const depth_;
  };
  Status CheckNesting() const;

  // Filters and tests that do not exist are errors, but not in a branch of an `if`: whoever parsed
  // a branch drops what it added, others reject it.
  struct UnknownName {
    int line;
    std::string message;
  };
  Status RejectUnknownSince(size_t start) const;

  struct MacroUse {
    bool caller = false, varargs = false, kwargs = false;
  };

  int depth_ = 0;
  int loops_ = 0;  // loops that a break here would end
  std::vector<UnknownName> unknown_;
  std::vector<MacroUse> macros_;  // which special names the macros being parsed read

 private:
  Result<ExprPtr> ParseBinary(int min_power);
  Result<ExprPtr> ParseComparison(int line, ExprPtr first);
  std::optional<CompareOp> PeekCompare() const;
  Result<ExprPtr> ParseUnary(bool with_filters);
  Result<ExprPtr> ParsePrimary(bool namespace_ref);
  Result<ExprPtr> ParseList();
  Result<ExprPtr> ParseDict();
  Result<ExprPtr> ParsePostfix(ExprPtr expr);
  Result<ExprPtr> ParseDot(ExprPtr object);
  Result<ExprPtr> ParseSubscript(ExprPtr object);
  Result<ExprPtr> ParseSubscriptKey();
  Result<ExprPtr> ParseCall(ExprPtr callee);
  Status ParseCallArgs(CallArgs* args);
  Result<ExprPtr> ParseFilterChain(ExprPtr expr);
  Result<ExprPtr> ParseTest(ExprPtr input);
  bool StartsTestArgument() const;
  Result<std::string> ParseDottedName();
  void NoteNameRead(std::string_view name);

  Result<ExprPtr> MakeSequence(Expr::Kind kind, int line, std::vector<ExprPtr> items);
  Result<ExprPtr> MakeUnary(int line, UnaryExpr::Op op, ExprPtr operand);
  Result<ExprPtr> MakeBinary(Expr::Kind kind, int line, BinaryOp op, ExprPtr left, ExprPtr right);
};

}  // namespace tern::jinja
