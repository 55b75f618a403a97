// TokenStream: the tokens of a template with the look-ahead and the complaints a parser needs.
// Owner: the parser. Thread: the one that parses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "jinja/lexer.h"

namespace tern::jinja {

class TokenStream {
 public:
  // REQUIRES: the last token is kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const;
  // Never moves past the end.
  const Token& Next();
  bool IsOp(std::string_view op, size_t ahead = 0) const;
  bool IsName(std::string_view name, size_t ahead = 0) const;
  bool SkipOp(std::string_view op);
  bool SkipName(std::string_view name);

  // Errors at the next token: "line N: expected ',', got 'x'".
  Status ErrorHere(std::string_view message) const;
  Status Expected(std::string_view what) const;
  Status ExpectOp(std::string_view op);
  Status ExpectName(std::string_view name);
  Status Expect(Token::Kind kind, std::string_view what);
  Result<std::string> ExpectAnyName();

 private:
  const std::vector<Token> tokens_;
  size_t next_ = 0;
};

// The token as messages call it.
std::string Describe(const Token& token);

}  // namespace tern::jinja
