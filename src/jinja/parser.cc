#include "jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "jinja/builtins.h"
#include "jinja/lexer.h"

namespace tern::jinja {
namespace {

constexpr int kMaxNesting = 100;  // brackets in brackets, blocks in blocks
constexpr int kMaxHeight = 200;   // of an expression: also long chains of + or .

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

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kData:
      return "template data / text";
    case Token::Kind::kBlockBegin:
      return "begin of statement block";
    case Token::Kind::kBlockEnd:
      return "end of statement block";
    case Token::Kind::kVariableBegin:
      return "begin of print statement";
    case Token::Kind::kVariableEnd:
      return "end of print statement";
    case Token::Kind::kEnd:
      return "end of template";
    case Token::Kind::kString:
      return "string";
    case Token::Kind::kInteger:
      return "integer";
    case Token::Kind::kFloat:
      return "float";
    default:
      return token.text;
  }
}

using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Body> Run() {
    TERN_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    TERN_RETURN_IF_ERROR(RejectUnknownSince(0));
    return body;
  }

 private:
  // ---- tokens

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
  }
  const Token& Next() {
    const Token& token = Peek();
    if (next_ + 1 < tokens_.size()) ++next_;
    return token;
  }
  bool IsOp(std::string_view op, size_t ahead = 0) const {
    return Peek(ahead).kind == Token::Kind::kOperator && Peek(ahead).text == op;
  }
  bool IsName(std::string_view name, size_t ahead = 0) const {
    return Peek(ahead).kind == Token::Kind::kName && Peek(ahead).text == name;
  }
  bool SkipOp(std::string_view op) {
    if (!IsOp(op)) return false;
    Next();
    return true;
  }
  bool SkipName(std::string_view name) {
    if (!IsName(name)) return false;
    Next();
    return true;
  }
  Status ErrorHere(std::string_view message) const { return ErrorAt(Peek().line, message); }
  Status Expected(std::string_view what) const {
    return ErrorHere(fmt::format("expected {}, got '{}'", what, Describe(Peek())));
  }
  Status ExpectOp(std::string_view op) {
    return SkipOp(op) ? OkStatus() : Expected(fmt::format("'{}'", op));
  }
  Status ExpectName(std::string_view name) {
    return SkipName(name) ? OkStatus() : Expected(fmt::format("'{}'", name));
  }
  Status Expect(Token::Kind kind, std::string_view what) {
    if (Peek().kind != kind) return Expected(what);
    Next();
    return OkStatus();
  }
  Result<std::string> ExpectAnyName() {
    if (Peek().kind != Token::Kind::kName) return Expected("a name");
    return Next().text;
  }

  // ---- bounds and checks of names

  class Nest {
   public:
    explicit Nest(int* depth) : depth_(depth) { ++*depth_; }
    ~Nest() { --*depth_; }

   private:
    int* depth_;
  };
  Status CheckNesting() const {
    if (depth_ <= kMaxNesting) return OkStatus();
    return ErrorHere(fmt::format("nested deeper than {} levels", kMaxNesting));
  }

  // Sets the height of `expr` from its children's.
  Result<ExprPtr> Finish(ExprPtr expr, std::initializer_list<const Expr*> children) {
    for (const Expr* child : children) {
      if (child != nullptr) expr->height = std::max(expr->height, child->height + 1);
    }
    if (expr->height > kMaxHeight) {
      return ErrorAt(expr->line, fmt::format("an expression of more than {} levels", kMaxHeight));
    }
    return expr;
  }
  static void Raise(Expr* expr, const CallArgs& args) {
    const auto raise = [expr](const Expr* child) {
      if (child != nullptr) expr->height = std::max(expr->height, child->height + 1);
    };
    for (const ExprPtr& arg : args.positional) raise(arg.get());
    for (const auto& [name, arg] : args.keyword) raise(arg.get());
    raise(args.star.get());
    raise(args.double_star.get());
  }

  // Filters and tests that do not exist are errors, but not in a branch of an `if`.
  struct UnknownName {
    int line;
    std::string message;
  };
  Status RejectUnknownSince(size_t start) const {
    if (unknown_.size() <= start) return OkStatus();
    return ErrorAt(unknown_[start].line, unknown_[start].message);
  }

  struct MacroUse {
    bool caller = false, varargs = false, kwargs = false;
  };
  void NoteNameRead(std::string_view name) {
    for (MacroUse& use : macros_) {
      use.caller |= name == "caller";
      use.varargs |= name == "varargs";
      use.kwargs |= name == "kwargs";
    }
  }

  // ---- statements

  // Up to a block tag whose name is one of `ends`; that name is the next token then.
  Result<Body> ParseBody(Names ends) {
    Body body;
    while (true) {
      const Token& token = Peek();
      switch (token.kind) {
        case Token::Kind::kEnd:
          if (ends.size() == 0) return body;
          return ErrorHere(fmt::format("unexpected end of template, looking for '{}'",
                                       fmt::join(ends, "' or '")));
        case Token::Kind::kData:
          body.push_back(std::make_unique<DataStmt>(token.line, token.text));
          Next();
          break;
        case Token::Kind::kVariableBegin: {
          Next();
          TERN_ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple({}));
          TERN_RETURN_IF_ERROR(Expect(Token::Kind::kVariableEnd, "end of print statement"));
          body.push_back(std::make_unique<OutputStmt>(expr->line, std::move(expr)));
          break;
        }
        case Token::Kind::kBlockBegin: {
          Next();
          for (const std::string_view end : ends) {
            if (IsName(end)) return body;
          }
          TERN_RETURN_IF_ERROR(ParseStatement(ends, &body));
          TERN_RETURN_IF_ERROR(Expect(Token::Kind::kBlockEnd, "end of statement block"));
          break;
        }
        default:
          return ErrorHere(fmt::format("unexpected '{}'", Describe(token)));
      }
    }
  }

  // The body after a tag: "%} ... {% end". Leaves the end's name as the next token.
  Result<Body> ParseTagBody(Names ends) {
    SkipOp(":");
    TERN_RETURN_IF_ERROR(Expect(Token::Kind::kBlockEnd, "end of statement block"));
    const Nest nest(&depth_);
    TERN_RETURN_IF_ERROR(CheckNesting());
    return ParseBody(ends);
  }

  // A body that is a scope of its own, and its end tag.
  Result<Body> ParseScope(Names ends, bool keeps_loop = true) {
    const size_t unknown = unknown_.size();
    const int loops = loops_;
    if (!keeps_loop) loops_ = 0;
    TERN_ASSIGN_OR_RETURN(Body body, ParseTagBody(ends));
    loops_ = loops;
    TERN_RETURN_IF_ERROR(RejectUnknownSince(unknown));
    if (ends.size() == 1) Next();
    return body;
  }

  Status ParseStatement(Names ends, Body* body) {
    if (Peek().kind != Token::Kind::kName) return ErrorHere("tag name expected");
    const Token& tag = Next();
    const std::string& name = tag.text;
    const auto add = [body](Result<StmtPtr> statement) -> Status {
      if (!statement.ok()) return statement.status();
      body->push_back(std::move(statement).value());
      return OkStatus();
    };
    if (name == "for") return add(ParseFor(tag.line));
    if (name == "if") return add(ParseIf(tag.line));
    if (name == "set") return add(ParseSet(tag.line));
    if (name == "macro") return add(ParseMacro(tag.line));
    if (name == "call") return add(ParseCallBlock(tag.line));
    if (name == "filter") return add(ParseFilterBlock(tag.line));
    if (name == "with") return add(ParseWith(tag.line));
    if (name == "generation") return add(ParseGeneration(tag.line));
    if (name == "block") return add(ParseBlock(tag.line));
    if (name == "print") return ParsePrint(body);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return ErrorAt(tag.line, fmt::format("'{}' outside a loop", name));
      body->push_back(std::make_unique<FlowStmt>(
          name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue, tag.line));
      return OkStatus();
    }
    if (name == "include" || name == "import" || name == "from" || name == "extends") {
      while (Peek().kind != Token::Kind::kBlockEnd && Peek().kind != Token::Kind::kEnd) Next();
      body->push_back(std::make_unique<NoLoaderStmt>(tag.line, name));
      return OkStatus();
    }
    std::string message = fmt::format("unknown tag '{}'", name);
    if (ends.size() > 0) message += fmt::format(", looking for '{}'", fmt::join(ends, "' or '"));
    return ErrorAt(tag.line, message);
  }

  Result<StmtPtr> ParseFor(int line) {
    auto loop = std::make_unique<ForStmt>(line);
    TERN_ASSIGN_OR_RETURN(loop->target, ParseTarget({.end = "in"}));
    TERN_RETURN_IF_ERROR(ExpectName("in"));
    TERN_ASSIGN_OR_RETURN(loop->iterable, ParseTuple({.conditional = false, .end = "recursive"}));
    const size_t unknown = unknown_.size();
    if (SkipName("if")) {
      TERN_ASSIGN_OR_RETURN(loop->test, ParseExpression());
    }
    loop->recursive = SkipName("recursive");
    ++loops_;
    TERN_ASSIGN_OR_RETURN(loop->body, ParseScope({"endfor", "else"}));
    --loops_;
    TERN_RETURN_IF_ERROR(RejectUnknownSince(unknown));
    if (Next().text == "else") {
      TERN_ASSIGN_OR_RETURN(loop->otherwise, ParseScope({"endfor"}));
    }
    return StmtPtr(std::move(loop));
  }

  Result<StmtPtr> ParseIf(int line) {
    const size_t unknown = unknown_.size();
    auto branch = std::make_unique<IfStmt>(line);
    while (true) {
      TERN_ASSIGN_OR_RETURN(ExprPtr test, ParseTuple({.conditional = false}));
      TERN_ASSIGN_OR_RETURN(Body body, ParseTagBody({"elif", "else", "endif"}));
      branch->branches.emplace_back(std::move(test), std::move(body));
      const std::string& end = Next().text;
      if (end == "elif") continue;
      if (end == "else") {
        TERN_ASSIGN_OR_RETURN(branch->otherwise, ParseTagBody({"endif"}));
        Next();
      }
      break;
    }
    unknown_.resize(unknown);
    return StmtPtr(std::move(branch));
  }

  Result<StmtPtr> ParseSet(int line) {
    TERN_ASSIGN_OR_RETURN(ExprPtr target, ParseTarget({.namespace_ref = true}));
    if (SkipOp("=")) {
      auto set = std::make_unique<SetStmt>(line);
      set->target = std::move(target);
      TERN_ASSIGN_OR_RETURN(set->value, ParseTuple({}));
      return StmtPtr(std::move(set));
    }
    auto block = std::make_unique<SetBlockStmt>(line);
    block->target = std::move(target);
    if (IsOp("|")) {
      TERN_ASSIGN_OR_RETURN(block->filter, ParseFilters(nullptr, false));
    }
    TERN_ASSIGN_OR_RETURN(block->body, ParseScope({"endset"}));
    return StmtPtr(std::move(block));
  }

  Status ParseSignature(MacroBody* macro) {
    TERN_RETURN_IF_ERROR(ExpectOp("("));
    while (!IsOp(")")) {
      if (!macro->parameters.empty()) TERN_RETURN_IF_ERROR(ExpectOp(","));
      TERN_ASSIGN_OR_RETURN(std::string name, ParseStoreName());
      if (SkipOp("=")) {
        TERN_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
        macro->defaults.push_back(std::move(value));
      } else if (!macro->defaults.empty()) {
        return ErrorHere("non-default argument follows default argument");
      }
      macro->parameters.push_back(std::move(name));
    }
    return ExpectOp(")");
  }

  Status ParseMacroBody(std::string_view end, MacroBody* macro) {
    macros_.emplace_back();
    TERN_ASSIGN_OR_RETURN(macro->body, ParseScope({end}, false));
    macro->uses_caller = macros_.back().caller;
    macro->uses_varargs = macros_.back().varargs;
    macro->uses_kwargs = macros_.back().kwargs;
    macros_.pop_back();
    return OkStatus();
  }

  Result<StmtPtr> ParseMacro(int line) {
    auto statement = std::make_unique<MacroStmt>(line);
    TERN_ASSIGN_OR_RETURN(statement->macro.name, ParseStoreName());
    TERN_RETURN_IF_ERROR(ParseSignature(&statement->macro));
    TERN_RETURN_IF_ERROR(ParseMacroBody("endmacro", &statement->macro));
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> ParseCallBlock(int line) {
    auto statement = std::make_unique<CallBlockStmt>(line);
    statement->caller.name = "caller";
    if (IsOp("(")) TERN_RETURN_IF_ERROR(ParseSignature(&statement->caller));
    TERN_ASSIGN_OR_RETURN(statement->call, ParseExpression());
    if (statement->call->kind != Expr::Kind::kCall) return ErrorAt(line, "expected call");
    TERN_RETURN_IF_ERROR(ParseMacroBody("endcall", &statement->caller));
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> ParseFilterBlock(int line) {
    auto statement = std::make_unique<FilterBlockStmt>(line);
    TERN_ASSIGN_OR_RETURN(statement->filter, ParseFilters(nullptr, true));
    TERN_ASSIGN_OR_RETURN(statement->body, ParseScope({"endfilter"}));
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> ParseWith(int line) {
    auto statement = std::make_unique<WithStmt>(line);
    while (Peek().kind != Token::Kind::kBlockEnd) {
      if (!statement->assignments.empty()) TERN_RETURN_IF_ERROR(ExpectOp(","));
      TERN_ASSIGN_OR_RETURN(ExprPtr target, ParseTarget({}));
      TERN_RETURN_IF_ERROR(ExpectOp("="));
      TERN_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      statement->assignments.emplace_back(std::move(target), std::move(value));
    }
    TERN_ASSIGN_OR_RETURN(statement->body, ParseScope({"endwith"}));
    return StmtPtr(std::move(statement));
  }

  // transformers' marker of assistant text, for training masks.
  Result<StmtPtr> ParseGeneration(int line) {
    auto statement = std::make_unique<WithStmt>(line);
    TERN_ASSIGN_OR_RETURN(statement->body, ParseScope({"endgeneration"}, false));
    return StmtPtr(std::move(statement));
  }

  Result<StmtPtr> ParseBlock(int line) {
    auto statement = std::make_unique<BlockStmt>(line);
    TERN_ASSIGN_OR_RETURN(const std::string name, ExpectAnyName());
    if (std::find(blocks_.begin(), blocks_.end(), name) != blocks_.end()) {
      return ErrorAt(line, fmt::format("block '{}' defined twice", name));
    }
    blocks_.push_back(name);
    statement->scoped = SkipName("scoped");
    SkipName("required");
    TERN_ASSIGN_OR_RETURN(statement->body, ParseScope({"endblock"}, false));
    SkipName(name);
    return StmtPtr(std::move(statement));
  }

  Status ParsePrint(Body* body) {
    bool first = true;
    while (Peek().kind != Token::Kind::kBlockEnd) {
      if (!first) TERN_RETURN_IF_ERROR(ExpectOp(","));
      first = false;
      TERN_ASSIGN_OR_RETURN(ExprPtr expr, ParseExpression());
      body->push_back(std::make_unique<OutputStmt>(expr->line, std::move(expr)));
    }
    return OkStatus();
  }

  // ---- targets and tuples

  struct TupleOptions {
    bool conditional = true;     // `a if b else c` is allowed
    bool target = false;         // names and literals only
    bool namespace_ref = false;  // with `target`: name.attribute
    bool parentheses = false;    // an empty tuple is allowed
    std::string_view end = {};   // a name that ends the tuple
  };

  static bool CanAssign(const Expr& expr) {
    if (expr.kind == Expr::Kind::kName || expr.kind == Expr::Kind::kNamespaceRef) return true;
    if (expr.kind != Expr::Kind::kTuple) return false;
    const auto& items = static_cast<const SequenceExpr&>(expr).items;
    return std::all_of(items.begin(), items.end(), [](const ExprPtr& e) { return CanAssign(*e); });
  }

  Result<std::string> ParseStoreName() {
    const Token& token = Peek();
    TERN_ASSIGN_OR_RETURN(std::string name, ExpectAnyName());
    for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
      if (name == reserved) return ErrorAt(token.line, fmt::format("can't assign to '{}'", name));
    }
    return name;
  }

  Result<ExprPtr> ParseTarget(TupleOptions options) {
    options.target = true;
    const int line = Peek().line;
    TERN_ASSIGN_OR_RETURN(ExprPtr target, ParseTuple(options));
    if (!CanAssign(*target)) return ErrorAt(line, "can't assign to this expression");
    return target;
  }

  Result<ExprPtr> ParseTuple(TupleOptions options) {
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

  Result<ExprPtr> MakeSequence(Expr::Kind kind, int line, std::vector<ExprPtr> items) {
    auto sequence = std::make_unique<SequenceExpr>(kind, line, std::move(items));
    for (const ExprPtr& item : sequence->items) {
      sequence->height = std::max(sequence->height, item->height + 1);
    }
    return Finish(std::move(sequence), {});
  }

  // ---- expressions

  Result<ExprPtr> ParseExpression() {
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

  std::optional<CompareOp> PeekCompare() const {
    for (const CompareRule& rule : kCompareRules) {
      if (IsOp(rule.op)) return rule.compare;
    }
    if (IsName("in")) return CompareOp::kIn;
    if (IsName("not") && IsName("in", 1)) return CompareOp::kNotIn;
    return std::nullopt;
  }

  // Operators that bind at least as tightly as `min_power`.
  Result<ExprPtr> ParseBinary(int min_power) {
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
        TERN_ASSIGN_OR_RETURN(left, MakeBinary(Expr::Kind::kOr, line, BinaryOp::kAdd,
                                               std::move(left), std::move(right)));
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

  Result<ExprPtr> ParseComparison(int line, ExprPtr first) {
    auto compare = std::make_unique<CompareExpr>(line, std::move(first));
    compare->height = compare->first->height + 1;
    while (const auto op = PeekCompare()) {
      if (*op == CompareOp::kNotIn) Next();
      Next();
      TERN_ASSIGN_OR_RETURN(ExprPtr right, ParseBinary(kAddPower));
      compare->height = std::max(compare->height, right->height + 1);
      compare->rest.emplace_back(*op, std::move(right));
    }
    return Finish(std::move(compare), {});
  }

  Result<ExprPtr> MakeUnary(int line, UnaryExpr::Op op, ExprPtr operand) {
    const Expr* child = operand.get();
    return Finish(std::make_unique<UnaryExpr>(line, op, std::move(operand)), {child});
  }

  Result<ExprPtr> MakeBinary(Expr::Kind kind, int line, BinaryOp op, ExprPtr left, ExprPtr right) {
    const Expr* l = left.get();
    const Expr* r = right.get();
    return Finish(std::make_unique<BinaryExpr>(kind, line, op, std::move(left), std::move(right)),
                  {l, r});
  }

  Result<ExprPtr> ParseUnary(bool with_filters) {
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

  Result<ExprPtr> ParsePrimary(bool namespace_ref) {
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

  Result<ExprPtr> ParseList() {
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

  Result<ExprPtr> ParseDict() {
    auto dict = std::make_unique<DictExpr>(Next().line);
    while (!IsOp("}")) {
      if (!dict->items.empty()) TERN_RETURN_IF_ERROR(ExpectOp(","));
      if (IsOp("}")) break;
      TERN_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
      TERN_RETURN_IF_ERROR(ExpectOp(":"));
      TERN_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      dict->height = std::max({dict->height, key->height + 1, value->height + 1});
      dict->items.emplace_back(std::move(key), std::move(value));
    }
    TERN_RETURN_IF_ERROR(ExpectOp("}"));
    return Finish(std::move(dict), {});
  }

  Result<ExprPtr> ParsePostfix(ExprPtr expr) {
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

  Result<ExprPtr> ParseDot(ExprPtr object) {
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

  Result<ExprPtr> ParseSubscript(ExprPtr object) {
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

  Result<ExprPtr> ParseSubscriptKey() {
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
    const SliceExpr& s = *slice;
    return Finish(std::move(slice), {s.begin.get(), s.end.get(), s.step.get()});
  }

  Status ParseCallArgs(CallArgs* args) {
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

  Result<ExprPtr> ParseCall(ExprPtr callee) {
    const Expr* child = callee.get();
    auto call = std::make_unique<CallExpr>(Peek().line, std::move(callee));
    TERN_RETURN_IF_ERROR(ParseCallArgs(&call->args));
    Raise(call.get(), call->args);
    return Finish(std::move(call), {child});
  }

  Result<ExprPtr> ParseFilterChain(ExprPtr expr) {
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

  Result<std::string> ParseDottedName() {
    TERN_ASSIGN_OR_RETURN(std::string name, ExpectAnyName());
    while (SkipOp(".")) {
      TERN_ASSIGN_OR_RETURN(const std::string part, ExpectAnyName());
      name += "." + part;
    }
    return name;
  }

  // `| f | g(1)`; the first bar is absent in {% filter f | g %}.
  Result<ExprPtr> ParseFilters(ExprPtr input, bool first_bar_absent) {
    while (first_bar_absent || IsOp("|")) {
      if (!first_bar_absent) Next();
      first_bar_absent = false;
      const int line = Peek().line;
      TERN_ASSIGN_OR_RETURN(std::string name, ParseDottedName());
      if (FindFilter(name) == nullptr) {
        unknown_.push_back({line, fmt::format("no filter named '{}'", name)});
      }
      const Expr* child = input.get();
      auto filter = std::make_unique<FilterExpr>(Expr::Kind::kFilter, line, std::move(input),
                                                 std::move(name));
      if (IsOp("(")) TERN_RETURN_IF_ERROR(ParseCallArgs(&filter->args));
      Raise(filter.get(), filter->args);
      TERN_ASSIGN_OR_RETURN(input, Finish(std::move(filter), {child}));
    }
    return input;
  }

  Result<ExprPtr> ParseTest(ExprPtr input) {
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
    Raise(test.get(), test->args);
    TERN_ASSIGN_OR_RETURN(ExprPtr expr, Finish(std::move(test), {child}));
    return negated ? MakeUnary(line, UnaryExpr::Op::kNot, std::move(expr)) : std::move(expr);
  }

  // `x is divisibleby 3`: one argument without parentheses.
  bool StartsTestArgument() const {
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

  const std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  int loops_ = 0;                     // loops that a break here would end
  std::vector<UnknownName> unknown_;  // not yet known to stand in a branch
  std::vector<MacroUse> macros_;      // macros being parsed, outermost first
  std::vector<std::string> blocks_;
};

}  // namespace

Result<Body> Parse(std::string_view source) {
  TERN_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace tern::jinja
