#include "jinja/token_stream.h"

#include <fmt/format.h>

#include <algorithm>

namespace tern::jinja {

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

const Token& TokenStream::Peek(size_t ahead) const {
  return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
}

const Token& TokenStream::Next() {
  const Token& token = Peek();
  if (next_ + 1 < tokens_.size()) ++next_;
  return token;
}

bool TokenStream::IsOp(std::string_view op, size_t ahead) const {
  return Peek(ahead).kind == Token::Kind::kOperator && Peek(ahead).text == op;
}

bool TokenStream::IsName(std::string_view name, size_t ahead) const {
  return Peek(ahead).kind == Token::Kind::kName && Peek(ahead).text == name;
}

bool TokenStream::SkipOp(std::string_view op) {
  if (!IsOp(op)) return false;
  Next();
  return true;
}

bool TokenStream::SkipName(std::string_view name) {
  if (!IsName(name)) return false;
  Next();
  return true;
}

Status TokenStream::ErrorHere(std::string_view message) const {
  return ErrorAt(Peek().line, message);
}
Status TokenStream::Expected(std::string_view what) const {
  return ErrorHere(fmt::format("expected {}, got '{}'", what, Describe(Peek())));
}

Status TokenStream::ExpectOp(std::string_view op) {
  return SkipOp(op) ? OkStatus() : Expected(fmt::format("'{}'", op));
}

Status TokenStream::ExpectName(std::string_view name) {
  return SkipName(name) ? OkStatus() : Expected(fmt::format("'{}'", name));
}

Status TokenStream::Expect(Token::Kind kind, std::string_view what) {
  if (Peek().kind != kind) return Expected(what);
  Next();
  return OkStatus();
}

Result<std::string> TokenStream::ExpectAnyName() {
  if (Peek().kind != Token::Kind::kName) return Expected("a name");
  return Next().text;
}

}  // namespace tern::jinja
