// Helpers of text's tests: reference files and small tokenizers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace tern {

inline std::string TestData(const std::string& name) {
  const std::string path = std::string(TERN_SOURCE_DIR) + "/tests/data/" + name;
  Result<std::string> text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : std::string();
}

inline Json TestJson(const std::string& name) {
  const std::string text = TestData(name);
  // Not ParseJson: objects with 50,000 keys are quadratic there.
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << name;
  return Json(json);
}

inline std::vector<TokenId> IdsOf(const Json& json) { return json.get<std::vector<TokenId>>(); }

// REQUIRES: the tokenizer can be made.
inline std::shared_ptr<const Tokenizer> MustMake(Result<std::shared_ptr<const Tokenizer>> made) {
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *made : nullptr;
}

inline std::shared_ptr<const Tokenizer> TinyTokenizer() {
  return MustMake(Tokenizer::FromTokenizerJson(TestData("tiny/tokenizer.json"),
                                               TestData("tiny/tokenizer_config.json")));
}

// As `cmd` makes it from GGUF metadata.
inline TokenizerSpec SmolLm2Spec() {
  const Json keys = TestJson("text/smollm2_tokenizer.json");
  TokenizerSpec spec;
  spec.vocab = keys["tokens"].get<std::vector<std::string>>();
  spec.merges = keys["merges"].get<std::vector<std::string>>();
  for (const auto& [id, type] : keys["token_type"].items()) {
    constexpr int kControl = 3;
    const auto token = static_cast<TokenId>(std::stol(id));
    spec.added.push_back({.id = token,
                          .content = spec.vocab[static_cast<size_t>(token)],
                          .special = type.get<int>() == kControl});
  }
  spec.pre_tokenizer = keys["pre"].get<std::string>();
  spec.add_prefix_space = keys["add_space_prefix"].get<bool>();
  spec.bos = keys["bos_token_id"].get<TokenId>();
  spec.eos = keys["eos_token_id"].get<TokenId>();
  return spec;
}

}  // namespace tern
