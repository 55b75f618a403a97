#include "cmd/gguf_tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cmd/load.h"
#include "text/pre_tokenizer.h"

namespace tern {
namespace {

Json Split(std::string_view pattern) {
  Json json = Json::object();
  json["type"] = "Split";
  json["pattern"]["Regex"] = pattern;
  json["behavior"] = "Isolated";
  json["invert"] = false;
  return json;
}

Json ByteLevel(bool add_prefix_space, bool use_regex) {
  Json json = Json::object();
  json["type"] = "ByteLevel";
  json["add_prefix_space"] = add_prefix_space;
  json["trim_offsets"] = true;
  json["use_regex"] = use_regex;
  return json;
}

Json PreTokenizerJson(const std::vector<std::string_view>& patterns, bool add_prefix_space) {
  Json steps = Json::array();
  for (const std::string_view pattern : patterns) steps.push_back(Split(pattern));
  steps.push_back(ByteLevel(add_prefix_space, false));
  Json json = Json::object();
  json["type"] = "Sequence";
  json["pretokenizers"] = std::move(steps);
  return json;
}

bool IsAdded(GgufTokenType type) {
  return type == GgufTokenType::kControl || type == GgufTokenType::kUserDefined;
}

Json AddedTokens(const GgufTokenizer& tokenizer) {
  Json added = Json::array();
  for (size_t id = 0; id < tokenizer.tokens.size(); ++id) {
    if (!IsAdded(tokenizer.token_types[id])) continue;
    Json token = Json::object();
    token["id"] = id;
    token["content"] = tokenizer.tokens[id];
    for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token[flag] = false;
    token["special"] = tokenizer.token_types[id] == GgufTokenType::kControl;
    added.push_back(std::move(token));
  }
  return added;
}

// The BPE model. By hand: JSON objects of this many keys are slow.
std::string ModelJson(const GgufTokenizer& tokenizer) {
  std::string json = fmt::format(
      R"({{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":{},)"
      R"("vocab":{{)",
      IgnoresMerges(tokenizer.pre));
  for (size_t id = 0; id < tokenizer.tokens.size(); ++id) {
    json += fmt::format("{}{}:{}", id == 0 ? "" : ",", JsonQuote(tokenizer.tokens[id]), id);
  }
  json += R"(},"merges":[)";
  for (size_t i = 0; i < tokenizer.merges.size(); ++i) {
    json += fmt::format("{}{}", i == 0 ? "" : ",", JsonQuote(tokenizer.merges[i]));
  }
  return json + "]}";
}

// A TemplateProcessing, or null when nothing is added to texts.
Json PostProcessor(const GgufTokenizer& tokenizer) {
  const PromptFrame frame = FrameOf(tokenizer);
  if (frame.before.empty() && frame.after.empty()) return nullptr;
  Json known = Json::object(), before = Json::array(), after = Json::array();
  const auto add = [&](const std::vector<TokenId>& ids, Json* pieces) {
    for (const TokenId id : ids) {
      const std::string& text = tokenizer.tokens[static_cast<size_t>(id)];
      known[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
      pieces->push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    }
  };
  add(frame.before, &before);
  add(frame.after, &after);
  const auto part = [&](std::initializer_list<const char*> texts) {
    Json pieces = before;
    for (const char* text : texts) {
      pieces.push_back({{"Sequence", {{"id", text}, {"type_id", 0}}}});
    }
    pieces.insert(pieces.end(), after.begin(), after.end());
    return pieces;
  };
  return {{"type", "TemplateProcessing"},
          {"single", part({"A"})},
          {"pair", part({"A", "B"})},
          {"special_tokens", known}};
}

std::string TokenizerConfigJson(const GgufTokenizer& tokenizer, int64_t context_length) {
  Json json = Json::object();
  json["tokenizer_class"] = "PreTrainedTokenizerFast";
  const auto name = [&](const char* key, const std::optional<int32_t>& id) {
    if (id) json[key] = tokenizer.tokens[static_cast<size_t>(*id)];
  };
  name("bos_token", tokenizer.bos);
  name("eos_token", tokenizer.eos);
  json["clean_up_tokenization_spaces"] = false;
  json["model_max_length"] = context_length;
  if (tokenizer.chat_template) json["chat_template"] = *tokenizer.chat_template;
  return DumpJson(json, 1) + "\n";
}

}  // namespace

Result<TokenizerFiles> TokenizerFilesOf(const GgufTokenizer& tokenizer, int64_t context_length,
                                        const std::string& path) {
  if (tokenizer.model != "gpt2") {
    return Unimplemented(
        fmt::format("{}: tokenizer.ggml.model '{}' is not supported (gpt2, byte-level BPE, is)",
                    path, tokenizer.model));
  }
  const std::string pre = tokenizer.pre.empty() ? "gpt2" : tokenizer.pre;
  const std::vector<std::string_view> patterns = PreTokenizerPatterns(pre);
  if (patterns.empty()) {
    return Unimplemented(fmt::format("{}: the pre-tokenizer '{}' is unknown", path, pre));
  }
  const bool nfc = pre == "qwen2";
  const auto member = [](const char* key, const Json& value) {
    return fmt::format("{}:{},", JsonQuote(key), DumpJson(value));
  };
  TokenizerFiles files;
  Json normalizer = nullptr;
  if (nfc) normalizer = {{"type", "NFC"}};
  files.tokenizer_json =
      "{" + member("version", "1.0") + member("truncation", nullptr) + member("padding", nullptr) +
      member("added_tokens", AddedTokens(tokenizer)) + member("normalizer", normalizer) +
      member("pre_tokenizer", PreTokenizerJson(patterns, tokenizer.add_space_prefix)) +
      member("post_processor", PostProcessor(tokenizer)) +
      member("decoder", ByteLevel(true, true)) + "\"model\":" + ModelJson(tokenizer) + "}\n";
  files.tokenizer_config_json = TokenizerConfigJson(tokenizer, context_length);
  return files;
}

}  // namespace tern
