#include "jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "jinja/expression_parser.h"

namespace tern::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class StatementParser : private ExpressionParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<Body> Run() {
    TERN_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    TERN_RETURN_IF_ERROR(RejectUnknownSince(0));
    return body;
  }

 private:
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
      } else if (name == "caller") {
        return ErrorHere("the parameter 'caller' must have a default");
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

  std::vector<std::string> blocks_;  // names of the {% block %}s so far
};

}  // namespace

Result<Body> Parse(std::string_view source) {
  TERN_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return StatementParser(std::move(tokens)).Run();
}

}  // namespace tern::jinja
