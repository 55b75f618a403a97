#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "base/json.h"
#include "text/byte_level_tokenizer.h"

namespace tern {
namespace {

constexpr std::string_view kFile = "tokenizer_config.json";

// A token is given as its text or as {"content": text, ...}.
Result<std::string> TokenText(const Json& config, const char* key) {
  const auto it = config.find(key);
  if (it != config.end() && it->is_object()) {
    return JsonString(*it, "content", "", fmt::format("{}: {}", kFile, key));
  }
  return JsonString(config, key, "", kFile);
}

Result<AddedToken> ParseAdded(const std::string& id, const Json& json) {
  const std::string where = fmt::format("{}: added_tokens_decoder[{}]", kFile, id);
  AddedToken token;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token.id);
  if (error != std::errc() || end != id.data() + id.size()) {
    return InvalidArgument(fmt::format("{}: the id must be a 32-bit integer", where));
  }
  if (!json.is_object()) return InvalidArgument(fmt::format("{} must be an object", where));
  TERN_ASSIGN_OR_RETURN(token.content, JsonString(json, "content", "", where));
  TERN_ASSIGN_OR_RETURN(token.special, JsonBool(json, "special", false, where));
  TERN_ASSIGN_OR_RETURN(token.lstrip, JsonBool(json, "lstrip", false, where));
  TERN_ASSIGN_OR_RETURN(token.rstrip, JsonBool(json, "rstrip", false, where));
  TERN_ASSIGN_OR_RETURN(token.single_word, JsonBool(json, "single_word", false, where));
  TERN_ASSIGN_OR_RETURN(token.normalized, JsonBool(json, "normalized", false, where));
  return token;
}

}  // namespace

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view json) {
  TokenizerConfig config;
  if (json.empty()) return config;
  Result<Json> parsed = ParseJson(json);
  if (!parsed.ok()) return parsed.status().WithContext(kFile);
  if (!parsed->is_object()) return InvalidArgument(fmt::format("{} must be an object", kFile));
  TERN_ASSIGN_OR_RETURN(config.bos_token, TokenText(*parsed, "bos_token"));
  TERN_ASSIGN_OR_RETURN(config.eos_token, TokenText(*parsed, "eos_token"));
  TERN_ASSIGN_OR_RETURN(const std::string type, JsonString(*parsed, "tokenizer_class", "", kFile));
  TERN_ASSIGN_OR_RETURN(const bool add_bos, JsonBool(*parsed, "add_bos_token", true, kFile));
  config.adds_bos = add_bos && (type == "LlamaTokenizer" || type == "LlamaTokenizerFast");
  const auto added = parsed->find("added_tokens_decoder");
  if (added == parsed->end() || added->is_null()) return config;
  if (!added->is_object()) {
    return InvalidArgument(fmt::format("{}: added_tokens_decoder must be an object", kFile));
  }
  for (const auto& [id, token] : added->items()) {
    TERN_ASSIGN_OR_RETURN(AddedToken parsed_token, ParseAdded(id, token));
    config.added.push_back(std::move(parsed_token));
  }
  return config;
}

std::optional<TokenId> FindToken(std::string_view text, const TokenizerParts& parts) {
  if (text.empty()) return std::nullopt;
  for (const AddedToken& token : parts.added) {
    if (token.content == text) return token.id;
  }
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    if (parts.tokens[id] && parts.tokens[id]->text == text) return static_cast<TokenId>(id);
  }
  return std::nullopt;
}

}  // namespace tern
