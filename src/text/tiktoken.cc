// Tokenizer::FromTiktoken: a line of tiktoken.model is a token's bytes in base64 and its rank.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "text/byte_level_tokenizer.h"
#include "text/scanners.h"
#include "text/tokenizer_config.h"

namespace tern {
namespace {

// As moonshotai's tokenization_kimi.py has it.
constexpr size_t kReservedTokens = 256;
// The merges of a token take time in the square of its length; real ones have up to 128 bytes.
constexpr size_t kMaxTokenBytes = 512;

bool DecodeBase64(std::string_view text, std::string* bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : (text.ends_with("=") ? 1 : 0);
  bytes->clear();
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = i + padding >= text.size() ? 0 : kDigits.find(text[i]);
    if (digit == std::string_view::npos) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes->push_back(static_cast<char>(bits >> shift & 0xFF));
    bits = 0;
  }
  bytes->resize(bytes->size() - padding);
  return true;
}

Status ParseLine(std::string_view line, std::string_view where, size_t lines,
                 TokenizerParts* parts) {
  const size_t space = line.find(' ');
  const std::string_view rank = line.substr(std::min(space, line.size() - 1) + 1);
  TokenizerParts::Token token;
  size_t id = 0;
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), id);
  if (space == std::string_view::npos || error != std::errc() || end != rank.data() + rank.size() ||
      !DecodeBase64(line.substr(0, space), &token.bytes)) {
    return InvalidArgument(fmt::format("{} must be base64, a space and a rank", where));
  }
  if (token.bytes.empty() || token.bytes.size() > kMaxTokenBytes) {
    return InvalidArgument(
        fmt::format("{}: a token must have 1 to {} bytes", where, kMaxTokenBytes));
  }
  if (id >= 2 * lines + kMaxUnusedIds) {
    return InvalidArgument(
        fmt::format("{}: the rank {} is out of range for {} tokens", where, id, lines));
  }
  token.text = token.bytes;
  token.plain = true;
  if (id >= parts->tokens.size()) parts->tokens.resize(id + 1);
  if (parts->tokens[id]) return InvalidArgument(fmt::format("{}: rank {} again", where, id));
  parts->tokens[id] = std::move(token);
  return OkStatus();
}

Status ParseModel(std::string_view model, TokenizerParts* parts) {
  const auto lines = static_cast<size_t>(std::count(model.begin(), model.end(), '\n')) + 1;
  for (size_t number = 1, pos = 0; pos < model.size(); ++number) {
    const size_t end = std::min(model.find('\n', pos), model.size());
    std::string_view line = model.substr(pos, end - pos);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) {
      const std::string where = fmt::format("tiktoken.model: line {}", number);
      TERN_RETURN_IF_ERROR(ParseLine(line, where, lines, parts));
    }
    pos = end + 1;
  }
  if (parts->tokens.empty()) return InvalidArgument("tiktoken.model: there are no tokens");
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < parts->tokens.size(); ++id) {
    if (parts->tokens[id] && !seen.insert(parts->tokens[id]->bytes).second) {
      return InvalidArgument(
          fmt::format("tiktoken.model: the token of rank {} is there twice", id));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromTiktoken(std::string_view model,
                                                                 std::string_view config_json) {
  TokenizerParts parts;
  TERN_RETURN_IF_ERROR(ParseModel(model, &parts));
  TERN_ASSIGN_OR_RETURN(TokenizerConfig config, ParseTokenizerConfig(config_json));
  Bpe::Vocabulary vocabulary;
  for (const auto& token : parts.tokens) {
    vocabulary.push_back(token ? std::optional<std::string_view>(token->bytes) : std::nullopt);
  }
  parts.merges = Bpe::MergesByRank(vocabulary);
  parts.bpe.ignore_merges = true;
  parts.added = std::move(config.added);

  std::unordered_set<TokenId> named;
  for (const AddedToken& token : parts.added) named.insert(token.id);
  const auto first = static_cast<TokenId>(parts.tokens.size());
  for (TokenId id = first; id < first + static_cast<TokenId>(kReservedTokens); ++id) {
    if (named.contains(id)) continue;
    parts.added.push_back(
        {.id = id, .content = fmt::format("<|reserved_token_{}|>", id), .special = true});
  }
  TERN_RETURN_IF_ERROR(
      parts.pre_tokenizer.AddSplitByRegex(kKimiPattern, SplitBehavior::kIsolated, false));
  parts.bos = FindToken(config.bos_token, parts);
  parts.eos = FindToken(config.eos_token, parts);
  Result<std::shared_ptr<const Tokenizer>> tokenizer = MakeByteLevelTokenizer(std::move(parts));
  if (!tokenizer.ok()) return tokenizer.status().WithContext("tiktoken.model");
  return tokenizer;
}

}  // namespace tern
