#include "jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/utf8.h"
#include "jinja/unicode.h"

namespace tern::jinja {
namespace {

// \r\n and \r become \n; one newline at the end goes.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  return out;
}

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

// Longest first, as alternatives of one length exclude each other.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> Run() {
    while (pos_ < source_.size()) TERN_RETURN_IF_ERROR(LexData());
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // The sign after an opening tag or before a closing one.
  enum class Sign { kNone, kMinus, kPlus };

  Status Error(std::string_view message) const { return ErrorAt(line_, message); }

  bool LooksAt(std::string_view text) const {
    return std::string_view(source_).substr(pos_).starts_with(text);
  }

  void Add(Token::Kind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  // Moves to `end`, counting lines.
  void AdvanceTo(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    pos_ = end;
  }

  size_t SkipSpace(size_t pos) const {
    while (pos < source_.size()) {
      size_t length = 0;
      if (!IsSpace(DecodeUtf8(source_, pos, &length))) break;
      pos += length;
    }
    return pos;
  }

  Sign SignAt(size_t pos) const {
    if (pos >= source_.size()) return Sign::kNone;
    return source_[pos] == '-' ? Sign::kMinus : source_[pos] == '+' ? Sign::kPlus : Sign::kNone;
  }

  // Text before a tag, with the whitespace removed that the tag's sign or lstrip_blocks takes.
  std::string_view StripBeforeTag(std::string_view text, Sign sign, bool variable) const {
    if (sign == Sign::kMinus) return StripRight(text, IsSpace);
    if (sign == Sign::kPlus || variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_start == 0 && !line_starting_) return text;
    return StripSpace(text.substr(line_start)).empty() ? text.substr(0, line_start) : text;
  }

  void AddData(std::string_view text) {
    if (!text.empty()) Add(Token::Kind::kData, std::string(text));
  }

  // The end of "{%- raw -%}" when one starts at `pos`.
  std::optional<size_t> MatchRawBegin(size_t pos) const {
    pos += 2;
    if (SignAt(pos) != Sign::kNone) ++pos;
    pos = SkipSpace(pos);
    if (!std::string_view(source_).substr(pos).starts_with("raw")) return std::nullopt;
    pos = SkipSpace(pos + 3);
    const std::string_view rest = std::string_view(source_).substr(pos);
    if (rest.starts_with("-%}")) return SkipSpace(pos + 3);
    if (rest.starts_with("%}")) return pos + 2;
    return std::nullopt;
  }

  // The end of a block tag's close at `pos`: "+%}", "-%}" and whitespace, or "%}" and a newline.
  std::optional<size_t> MatchClose(size_t pos, std::string_view close) const {
    const std::string_view rest = std::string_view(source_).substr(pos);
    const bool variable = close == "}}";
    if (rest.starts_with('-') && rest.substr(1).starts_with(close)) return SkipSpace(pos + 3);
    if (!variable && rest.starts_with('+') && rest.substr(1).starts_with(close)) return pos + 3;
    if (!rest.starts_with(close)) return std::nullopt;
    pos += 2;
    if (!variable && pos < source_.size() && source_[pos] == '\n') ++pos;
    return pos;
  }

  void NoteLineStart() { line_starting_ = pos_ > 0 && source_[pos_ - 1] == '\n'; }

  // Text up to the next tag, and the tag.
  Status LexData() {
    size_t tag = pos_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        AddData(std::string_view(source_).substr(pos_));
        AdvanceTo(source_.size());
        return OkStatus();
      }
      if (const char c = source_[tag + 1]; c == '%' || c == '{' || c == '#') break;
      ++tag;
    }
    const char type = source_[tag + 1];
    const Sign sign = SignAt(tag + 2);
    AddData(StripBeforeTag(std::string_view(source_).substr(pos_, tag - pos_), sign, type == '{'));
    AdvanceTo(tag);
    if (type == '%') {
      if (const auto end = MatchRawBegin(tag)) return LexRaw(*end);
    }
    AdvanceTo(tag + (sign == Sign::kNone ? 2 : 3));
    if (type == '#') return LexComment();
    return LexTag(type == '{');
  }

  Status LexComment() {
    if (pos_ == source_.size()) return OkStatus();  // jinja2 lets an opening tag at the end pass
    const int begin_line = line_;
    size_t hash = source_.find("#}", pos_);
    if (hash == std::string::npos) return ErrorAt(begin_line, "missing end of comment tag");
    // A sign belongs to the closing tag.
    if (hash > pos_ && SignAt(hash - 1) != Sign::kNone) --hash;
    AdvanceTo(*MatchClose(hash, "#}"));
    NoteLineStart();
    return OkStatus();
  }

  Status LexRaw(size_t text_begin) {
    const int begin_line = line_;
    AdvanceTo(text_begin);
    NoteLineStart();
    if (pos_ == source_.size()) return OkStatus();
    for (size_t tag = source_.find("{%", pos_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      const Sign sign = SignAt(tag + 2);
      const size_t name = SkipSpace(tag + (sign == Sign::kNone ? 2 : 3));
      if (!std::string_view(source_).substr(name).starts_with("endraw")) continue;
      const auto end = MatchClose(SkipSpace(name + 6), "%}");
      if (!end) continue;
      AddData(StripBeforeTag(std::string_view(source_).substr(pos_, tag - pos_), sign, false));
      AdvanceTo(*end);
      NoteLineStart();
      return OkStatus();
    }
    return ErrorAt(begin_line, "missing end of raw directive");
  }

  // The inside of {{ }} or {% %}.
  Status LexTag(bool variable) {
    Add(variable ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin, "");
    std::string open;  // brackets that must be closed before the tag may end
    while (pos_ < source_.size()) {
      if (open.empty()) {
        if (const auto end = MatchClose(pos_, variable ? "}}" : "%}")) {
          Add(variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd, "");
          AdvanceTo(*end);
          NoteLineStart();
          return OkStatus();
        }
      }
      if (const size_t end = SkipSpace(pos_); end > pos_) {
        AdvanceTo(end);
        continue;
      }
      if (IsAsciiDigit(source_[pos_])) {
        TERN_RETURN_IF_ERROR(LexNumber());
      } else if (source_[pos_] == '"' || source_[pos_] == '\'') {
        TERN_RETURN_IF_ERROR(LexString());
      } else if (!LexName()) {
        TERN_RETURN_IF_ERROR(LexOperator(&open));
      }
    }
    return OkStatus();  // the parser reports the missing end
  }

  bool LexName() {
    size_t end = pos_;
    while (end < source_.size()) {
      size_t length = 0;
      const char32_t c = DecodeUtf8(source_, end, &length);
      if (end == pos_ ? !IsIdentifierStart(c) : !IsIdentifierPart(c)) break;
      end += length;
    }
    if (end == pos_) return false;
    Add(Token::Kind::kName, source_.substr(pos_, end - pos_));
    pos_ = end;
    return true;
  }

  Status LexOperator(std::string* open) {
    for (const std::string_view op : kOperators) {
      if (!LooksAt(op)) continue;
      if (op == "(" || op == "[" || op == "{") {
        *open += op == "(" ? ')' : op == "[" ? ']' : '}';
      } else if (op == ")" || op == "]" || op == "}") {
        if (open->empty()) return Error(fmt::format("unexpected '{}'", op));
        if (open->back() != op[0]) {
          return Error(fmt::format("unexpected '{}', expected '{}'", op, open->back()));
        }
        open->pop_back();
      }
      Add(Token::Kind::kOperator, std::string(op));
      pos_ += op.size();
      return OkStatus();
    }
    size_t length = 0;
    DecodeUtf8(source_, pos_, &length);
    return Error(fmt::format("unexpected character '{}'", source_.substr(pos_, length)));
  }

  // Digits with single underscores between them, from `pos`; npos when there are none.
  template <typename IsDigit>
  size_t MatchDigits(size_t pos, IsDigit is_digit) const {
    if (pos >= source_.size() || !is_digit(source_[pos])) return std::string::npos;
    while (pos < source_.size()) {
      if (is_digit(source_[pos])) {
        ++pos;
      } else if (source_[pos] == '_' && pos + 1 < source_.size() && is_digit(source_[pos + 1])) {
        ++pos;
      } else {
        break;
      }
    }
    return pos;
  }

  Status LexNumber() {
    size_t end = MatchDigits(pos_, IsAsciiDigit);
    bool is_float = false;
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';  // "x.0.1" has integers only
    if (!after_dot && end < source_.size() && source_[end] == '.') {
      if (const size_t fraction = MatchDigits(end + 1, IsAsciiDigit);
          fraction != std::string::npos) {
        end = fraction;
        is_float = true;
      }
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t digits = end + (SignAt(end + 1) == Sign::kNone ? 1 : 2);
      if (const size_t exponent = MatchDigits(digits, IsAsciiDigit);
          exponent != std::string::npos) {
        end = exponent;
        is_float = true;
      }
    }
    return is_float ? AddFloat(end) : LexInteger(end);
  }

  std::string WithoutUnderscores(size_t begin, size_t end) const {
    std::string text = source_.substr(begin, end - begin);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    return text;
  }

  Status AddFloat(size_t end) {
    const std::string text = WithoutUnderscores(pos_, end);
    Add(Token::Kind::kFloat, text);
    // from_chars leaves the value alone when it is out of range; strtod gives Python's inf and 0.
    tokens_.back().number = std::strtod(text.c_str(), nullptr);
    pos_ = end;
    return OkStatus();
  }

  Status LexInteger(size_t end) {
    int base = 10;
    size_t digits = pos_;
    if (source_[pos_] == '0' && pos_ + 1 < source_.size()) {
      const char prefix = static_cast<char>(source_[pos_ + 1] | 0x20);
      base = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 10;
      const auto is_digit = [base](char c) {
        const int v = IsAsciiDigit(c) ? c - '0' : ((c | 0x20) >= 'a' ? (c | 0x20) - 'a' + 10 : 99);
        return v < base;
      };
      const size_t start = pos_ + 2 + (pos_ + 2 < source_.size() && source_[pos_ + 2] == '_');
      const size_t prefixed = base == 10 ? std::string::npos : MatchDigits(start, is_digit);
      if (prefixed == std::string::npos) {
        // Zeros only: "007" is 00 and then 7, which no grammar accepts.
        base = 10;
        end = MatchDigits(pos_, [](char c) { return c == '0'; });
      } else {
        digits = start;
        end = prefixed;
      }
    }
    const std::string text = WithoutUnderscores(digits, end);
    int64_t value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (result.ec != std::errc()) return Error("integer does not fit in 64 bits");
    Add(Token::Kind::kInteger, source_.substr(pos_, end - pos_));
    tokens_.back().integer = value;
    pos_ = end;
    return OkStatus();
  }

  Status LexString() {
    const char quote = source_[pos_];
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("a string is not closed");
    std::string text;
    TERN_RETURN_IF_ERROR(
        Unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1), &text));
    Add(Token::Kind::kString, std::move(text));
    AdvanceTo(end + 1);
    return OkStatus();
  }

  // Python's unicode-escape codec, after jinja2 wrote non-ASCII characters as escapes.
  Status Unescape(std::string_view in, std::string* out) const {
    for (size_t i = 0; i < in.size();) {
      if (in[i] != '\\' || i + 1 >= in.size()) {
        *out += in[i++];
        continue;
      }
      const char c = in[++i];
      ++i;
      switch (c) {
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          *out += c;
          break;
        case 'a':
          *out += '\a';
          break;
        case 'b':
          *out += '\b';
          break;
        case 'f':
          *out += '\f';
          break;
        case 'n':
          *out += '\n';
          break;
        case 'r':
          *out += '\r';
          break;
        case 't':
          *out += '\t';
          break;
        case 'v':
          *out += '\v';
          break;
        case 'x':
          TERN_RETURN_IF_ERROR(AppendHex(in, 2, &i, out));
          break;
        case 'u':
          TERN_RETURN_IF_ERROR(AppendHex(in, 4, &i, out));
          break;
        case 'U':
          TERN_RETURN_IF_ERROR(AppendHex(in, 8, &i, out));
          break;
        case 'N':
          return Error("\\N{...} escapes are not supported");
        default:
          --i;
          AppendOther(in, &i, out);
      }
    }
    return OkStatus();
  }

  Status AppendHex(std::string_view in, size_t digits, size_t* i, std::string* out) const {
    uint32_t code = 0;
    const std::string_view text = in.substr(*i, digits);
    const auto result = std::from_chars(text.data(), text.data() + text.size(), code, 16);
    if (text.size() != digits || result.ptr != text.data() + digits) {
      return Error("truncated \\x, \\u or \\U escape in a string");
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return Error(fmt::format("U+{:04X} in a string is not a character", code));
    }
    AppendUtf8(code, out);
    *i += digits;
    return OkStatus();
  }

  // Octal, or an unknown escape, which stays as written.
  static void AppendOther(std::string_view in, size_t* i, std::string* out) {
    const char c = in[*i];
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      for (int n = 0; n < 3 && *i < in.size() && in[*i] >= '0' && in[*i] <= '7'; ++n) {
        code = code * 8 + static_cast<char32_t>(in[(*i)++] - '0');
      }
      AppendUtf8(code, out);
      return;
    }
    *out += '\\';
    if (static_cast<unsigned char>(c) < 0x80) {
      *out += c;
      ++*i;
      return;
    }
    // jinja2 turned the character into \xe9, \u20ac or \U0001f600, whose backslash the one in
    // front of it then escapes.
    size_t length = 0;
    const auto code = static_cast<uint32_t>(DecodeUtf8(in, *i, &length));
    *i += length;
    *out += code <= 0xFF     ? fmt::format("x{:02x}", code)
            : code <= 0xFFFF ? fmt::format("u{:04x}", code)
                             : fmt::format("U{:08x}", code);
  }

  const std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last match ended with a newline, or nothing came before
  std::vector<Token> tokens_;
};

}  // namespace

Status ErrorAt(int line, std::string_view message) {
  return InvalidArgument(fmt::format("line {}: {}", line, message));
}

Result<std::vector<Token>> Tokenize(std::string_view source) {
  std::string normalized = NormalizeNewlines(source);
  if (normalized.ends_with('\n')) normalized.pop_back();
  return Lexer(std::move(normalized)).Run();
}

}  // namespace tern::jinja
