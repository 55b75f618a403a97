// Tokenizer::FromTokenizerJson: variants of a small tokenizer against HuggingFace's ids, and files
// that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/testing.h"

namespace tern {
namespace {

using testing::HasSubstr;

TEST(TokenizerJson, EncodesAsHuggingFace) {
  const Json cases = TestJson("text/hf_cases.json");
  ASSERT_EQ(cases["tokenizers"].size(), 9u);
  for (const Json& variant : cases["tokenizers"]) {
    Json file = cases["base"];
    file.update(variant["change"]);
    const auto tokenizer = MustMake(Tokenizer::FromTokenizerJson(file.dump(), ""));
    for (const Json& c : variant["cases"]) {
      EXPECT_EQ(tokenizer->Encode(c[0].get<std::string>()), IdsOf(c[1]))
          << variant["name"] << " " << c[0].dump();
    }
  }
}

Json TinyWith(const Json& post_processor) {
  Json file = TestJson("tiny/tokenizer.json");
  file["post_processor"] = post_processor;
  return file;
}

TEST(TokenizerJson, PutsAroundTextsWhatHuggingFaceDoes) {
  const Json cases = TestJson("text/post_processor_cases.json");
  ASSERT_EQ(cases["good"].size(), 10u);
  for (const Json& variant : cases["good"]) {
    const auto tokenizer =
        MustMake(Tokenizer::FromTokenizerJson(TinyWith(variant["post_processor"]).dump(), ""));
    for (const Json& c : variant["cases"]) {
      EXPECT_EQ(tokenizer->EncodeFramed(c[0].get<std::string>()), IdsOf(c[1]))
          << variant["name"] << " " << c[0].dump();
    }
    // Chat prompts have no frame, whatever the file says.
    EXPECT_EQ(tokenizer->Encode("a"), IdsOf(cases["good"][0]["cases"][1][1]));
  }
  for (const auto& [name, post_processor] : cases["refused"].items()) {
    EXPECT_FALSE(Tokenizer::FromTokenizerJson(TinyWith(post_processor).dump(), "").ok()) << name;
  }
}

// A tokenizer of three tokens, with one member of its JSON changed.
Json Small() {
  return Json::parse(R"({
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

Json Changed(const char* pointer, const char* value) {
  Json json = Small();
  json[Json::json_pointer(pointer)] = Json::parse(value);
  return json;
}

Status StatusOf(const std::string& json, const std::string& config = "") {
  return Tokenizer::FromTokenizerJson(json, config).status();
}

TEST(TokenizerJson, SmallOneLoads) {
  const auto tokenizer = MustMake(Tokenizer::FromTokenizerJson(
      Small().dump(), R"({"bos_token": {"content": "<s>"}, "eos_token": null})"));
  EXPECT_EQ(tokenizer->Encode("abb<s>"), (std::vector<TokenId>{2, 1, 3}));
  EXPECT_EQ(tokenizer->Encode("ab<s>", false), (std::vector<TokenId>{2}));
  EXPECT_EQ(tokenizer->bos(), 3);
  EXPECT_FALSE(tokenizer->eos());
}

// As transformers 4 had it, and SGLang has it for files that rely on it: DeepSeek's among them,
// whose tokenizer.json puts nothing in front.
TEST(TokenizerJson, LlamasClassesPutABosInFront) {
  const auto ids = [](const std::string& config) {
    return MustMake(Tokenizer::FromTokenizerJson(Small().dump(), config))->EncodeFramed("ab");
  };
  const std::vector<TokenId> plain = {2}, with_bos = {3, 2};
  EXPECT_EQ(ids(R"({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>"})"), with_bos);
  EXPECT_EQ(
      ids(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": "<s>"})"),
      with_bos);
  EXPECT_EQ(ids(R"({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false,
                    "bos_token": "<s>"})"),
            plain);
  EXPECT_EQ(ids(R"({"tokenizer_class": "LlamaTokenizerFast"})"), plain);
  EXPECT_EQ(ids(R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": true,
                    "bos_token": "<s>"})"),
            plain);
}

TEST(TokenizerJson, NamesTheFieldThatIsWrong) {
  struct Case {
    const char *pointer, *value, *says;
  };
  const Case cases[] = {
      {"/model", "7", "tokenizer.json.model must be an object"},
      {"/model/vocab", "[]", "model.vocab must be an object"},
      {"/model/vocab", "{\"a\": \"x\"}", "model.vocab['a'] must be an integer"},
      {"/model/vocab", "{\"a\": 1.5}", "model.vocab['a'] must be an integer"},
      {"/model/vocab", "{\"a\": 1099511627776}", "model.vocab['a']: the id 1099511627776"},
      {"/model/vocab", "{\"a\": 18446744073709551615}", "model.vocab['a'] must be an integer"},
      {"/model/vocab", "{\"a\": -1}", "model.vocab['a']: the id -1"},
      {"/model/vocab", "{\"a\": 1, \"b\": 1}", "model.vocab['b'] and 'a' have the same id 1"},
      {"/model/vocab/ab", "100000000", "the id 100000000 is out of range"},
      {"/model/merges", "[\"a c\"]", "model.merges[0]: 'c' is not in the vocabulary"},
      {"/model/merges", "[\"a b\", \"b a\"]", "model.merges[1]: 'ba' is not in the vocabulary"},
      {"/model/merges", "[\"ab\"]", "model.merges[0] must be"},
      {"/model/merges", "[\"a b c\"]", "model.merges[0] must be"},
      {"/model/merges", "[[\"a\"]]", "model.merges[0] must be"},
      {"/model/merges", "[[\"a\", 1]]", "model.merges[0] must be"},
      {"/model/merges", "{}", "model.merges must be an array"},
      {"/post_processor", "{\"type\": \"Unknown\"}", "post_processor: the type 'Unknown'"},
      {"/post_processor",
       R"({"type": "Sequence", "processors": [
           {"type": "BertProcessing", "cls": ["<s>", 3], "sep": ["</s>", 3]},
           {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]}]})",
       "post_processor.processors[1]: a second step that adds tokens"},
      {"/post_processor", "[]", "post_processor must be an object"},
      {"/post_processor", R"({"type": "TemplateProcessing", "single": []})", "single: the text, A"},
      {"/post_processor", R"({"type": "TemplateProcessing", "single": ["$A"]})",
       "post_processor.single[0] must be an object"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}]})",
       "post_processor.single[0]: a template of one text"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "special_tokens": {},
           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]})",
       "special_tokens.<s> must be an object"},
      {"/post_processor", R"({"type": "BertProcessing", "cls": ["<s>", 3], "sep": ["</s>", 77]})",
       "the post-processor's token 77 is not in the vocabulary"},
      {"/post_processor", R"({"type": "BertProcessing", "cls": ["<s>", -1], "sep": ["</s>", 3]})",
       "post_processor: a token id must be"},
      {"/post_processor", R"({"type": "BertProcessing", "cls": ["<s>", 3]})",
       "post_processor.sep must be a token and its id"},
      {"/model/type", "\"Unigram\"", "model: the type 'Unigram' is not supported"},
      {"/model/byte_fallback", "true", "model.byte_fallback"},
      {"/model/ignore_merges", "1", "model.ignore_merges must be true or false"},
      {"/model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/normalizer", "{\"type\": \"Lowercase\"}", "normalizer: the type 'Lowercase'"},
      {"/normalizer", "[]", "normalizer must be an object"},
      {"/pre_tokenizer", "null", "pre_tokenizer must have a ByteLevel step"},
      {"/pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre_tokenizer: the type 'Metaspace'"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
       "pre_tokenizer.pretokenizers[1]: a step after ByteLevel"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a$"}, "behavior": "Isolated"})",
       "pre_tokenizer.pattern: '$' at byte 1"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {}, "behavior": "Isolated"})",
       "pre_tokenizer.pattern must have a Regex or a String"},
      {"/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "No"})",
       "pre_tokenizer.behavior: 'No' is unknown"},
      {"/decoder", "{\"type\": \"WordPiece\"}", "decoder: the type 'WordPiece'"},
      {"/added_tokens", "{}", "tokenizer.json.added_tokens must be an array"},
      {"/added_tokens/0", "5", "added_tokens[0] must be an object"},
      {"/added_tokens/0/id", "1099511627776", "added_tokens[0].id must be"},
      {"/added_tokens/0/id", "2000000000", "added_tokens[0] '<s>': the id 2000000000"},
      {"/added_tokens/0/id", "\"3\"", "added_tokens[0].id must be an integer"},
      {"/added_tokens/0/id", "1", "added_tokens[0] '<s>': the vocabulary has 'b' for the id 1"},
      {"/added_tokens/0/content", "\"\"", "added_tokens[0] '': content must have"},
      {"/added_tokens/0/lstrip", "0", "added_tokens[0].lstrip must be true or false"},
      {"/added_tokens/1", "{\"id\": 3, \"content\": \"<t>\"}", "has the id 3 too"},
      {"/added_tokens/1", "{\"id\": 4, \"content\": \"<s>\"}", "added_tokens[0] is the same"},
  };
  for (const Case& c : cases) {
    const Status status = StatusOf(Changed(c.pointer, c.value).dump());
    EXPECT_FALSE(status.ok()) << c.pointer << " " << c.value;
    EXPECT_THAT(status.message(), HasSubstr("tokenizer.json")) << c.pointer << " " << c.value;
    EXPECT_THAT(status.message(), HasSubstr(c.says)) << c.pointer << " " << c.value;
  }
}

TEST(TokenizerJson, ATokenGivenTwiceIsNamed) {
  std::string json = Small().dump();
  json.replace(json.find("\"b\":1"), 5, "\"a\":1");
  EXPECT_THAT(StatusOf(json).message(), HasSubstr("model.vocab['a'] is there twice"));
}

TEST(TokenizerJson, NoPrefixOfTheFileLoadsOrCrashes) {
  const std::string json = Small().dump();
  for (size_t size = 0; size < json.size(); ++size) {
    const Status status = StatusOf(json.substr(0, size));
    EXPECT_THAT(status.message(), HasSubstr("tokenizer.json")) << size;
  }
}

TEST(TokenizerJson, DepthIsBounded) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(StatusOf(deep).message(), HasSubstr("tokenizer.json"));
  EXPECT_THAT(StatusOf("{\"model\":" + deep + "}").message(), HasSubstr("tokenizer.json"));
  std::string nested = R"({"type": "ByteLevel"})";
  for (int i = 0; i < 100; ++i) {
    nested = R"({"type": "Sequence", "pretokenizers": [)" + nested + "]}";
  }
  EXPECT_FALSE(StatusOf(R"({"pre_tokenizer": )" + nested + "}").ok());
}

TEST(TokenizerJson, ConfigErrorsNameTheField) {
  const std::string json = Small().dump();
  EXPECT_THAT(StatusOf(json, "{").message(), HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(StatusOf(json, "[]").message(), HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(StatusOf(json, R"({"bos_token": 5})").message(), HasSubstr("bos_token"));
  EXPECT_THAT(StatusOf(json, R"({"added_tokens_decoder": {"x": {}}})").message(),
              HasSubstr("added_tokens_decoder[x]"));
}

TEST(TokenizerSpec, ErrorsNameTheField) {
  const TokenizerSpec good{.vocab = {"a", "b", "ab"}, .merges = {"a b"}, .pre_tokenizer = "gpt2"};
  EXPECT_TRUE(Tokenizer::FromSpec(good).ok());
  const auto says = [&](auto change) {
    TokenizerSpec spec = good;
    change(&spec);
    return Tokenizer::FromSpec(spec).status().message();
  };
  EXPECT_THAT(says([](TokenizerSpec* s) { s->vocab[1] = "a"; }), HasSubstr("vocab['a']"));
  EXPECT_THAT(says([](TokenizerSpec* s) { s->merges[0] = "ab"; }), HasSubstr("merges[0]"));
  EXPECT_THAT(says([](TokenizerSpec* s) { s->merges[0] = "a x"; }), HasSubstr("merges[0]: 'x'"));
  EXPECT_THAT(says([](TokenizerSpec* s) { s->pre_tokenizer = "no"; }), HasSubstr("'no'"));
  EXPECT_THAT(says([](TokenizerSpec* s) { s->bos = 3; }), HasSubstr("BOS token 3"));
  EXPECT_THAT(says([](TokenizerSpec* s) { s->added.push_back({.id = -1, .content = "x"}); }),
              HasSubstr("added_tokens[0] 'x'"));
}

TEST(Tiktoken, ErrorsNameTheLine) {
  const auto says = [](const char* model) {
    return Tokenizer::FromTiktoken(model, "").status().message();
  };
  EXPECT_TRUE(Tokenizer::FromTiktoken("YQ== 0\nYg== 1\r\nYWI= 2\n", "").ok());
  EXPECT_THAT(says(""), HasSubstr("there are no tokens"));
  EXPECT_THAT(says("YQ== 0\nYg=="), HasSubstr("line 2"));
  EXPECT_THAT(says("YQ= 0"), HasSubstr("line 1"));
  EXPECT_THAT(says("Y!== 0"), HasSubstr("line 1"));
  EXPECT_THAT(says("YQ== x"), HasSubstr("line 1"));
  EXPECT_THAT(says("YQ== 1099511627776"), HasSubstr("the rank 1099511627776"));
  EXPECT_THAT(says("YQ== 0\nYg== 0"), HasSubstr("line 2: rank 0 again"));
  EXPECT_THAT(says("YQ== 0\nYQ== 1"), HasSubstr("rank 1 is there twice"));
}

}  // namespace
}  // namespace tern
