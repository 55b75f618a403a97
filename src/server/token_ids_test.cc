// Token ids of prompts and answers: the tokenizer's frame around prompts that no template has made,
// and the ids that requests ask for.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace tern {
namespace {

constexpr TokenId kBos = ByteTokenizer::kAb;

class FramedTokenizer final : public ByteTokenizer {
 public:
  const PromptFrame& frame() const override { return frame_; }

 private:
  const PromptFrame frame_{{kBos}, {'.'}};
};

class TokenIdsTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    ServedModel model = Model();
    model.tokenizer = std::make_shared<FramedTokenizer>();
    api_->SetReady(std::move(model));
    engine_.SetAnswer("xyz");
  }
  std::vector<int32_t> Asked() { return engine_.last_request().tokens; }
};

const std::vector<int32_t> kFramed = {kBos, 'h', 'i', '.'};
const std::vector<int32_t> kAnswer = {'x', 'y', 'z', ByteTokenizer::kEnd};

TEST_F(TokenIdsTest, RawPromptsAreFramedAndOthersAreNot) {
  PostOk("/v1/completions", {{"prompt", "hi"}});
  EXPECT_EQ(Asked(), kFramed);
  PostOk("/v1/completions", {{"prompt", Json::array({"no", "hi"})}});
  EXPECT_EQ(Asked(), kFramed);
  PostOk("/generate", {{"text", "hi"}});
  EXPECT_EQ(Asked(), kFramed);
  PostOk("/v1/completions", {{"prompt", ""}});
  EXPECT_EQ(Asked(), (std::vector<int32_t>{kBos, '.'}));

  const std::vector<int32_t> ids = {'h', 'i'};
  PostOk("/v1/completions", {{"prompt", ids}});
  EXPECT_EQ(Asked(), ids);
  PostOk("/generate", {{"input_ids", ids}});
  EXPECT_EQ(Asked(), ids);
  PostOk("/v1/chat/completions", ChatBody());
  EXPECT_EQ(Asked(), ByteTokenizer().Encode("user:hi;assistant:", true));

  EXPECT_EQ(PostOk("/tokenize", {{"prompt", "hi"}})["tokens"], kFramed);
  const Json plain = PostOk("/tokenize", {{"prompt", "hi"}, {"add_special_tokens", false}});
  EXPECT_EQ(plain["tokens"], ids);
  EXPECT_EQ(plain["count"], 2);
}

TEST_F(TokenIdsTest, AnEchoIsTheTextThatWasGiven) {
  Json body = {{"prompt", "hi"}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 1}};
  const Json answer = PostOk("/v1/completions", body);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], "hix");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"ab", "h", "i", ".", "x"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 0, 1, 2, 2}));
  body["prompt"] = kFramed;  // ids are echoed as they are
  EXPECT_EQ(PostOk("/v1/completions", body)["choices"][0]["text"], "abhi.x");
}

TEST_F(TokenIdsTest, CompletionsReturnThem) {
  const Json body = {{"prompt", "hi"}, {"return_token_ids", true}, {"n", 2}};
  const Json whole = PostOk("/v1/completions", body);
  for (const Json& choice : whole["choices"]) {
    EXPECT_EQ(choice["prompt_token_ids"], kFramed);
    EXPECT_EQ(choice["token_ids"], kAnswer);
  }
  std::vector<int32_t> ids[2];
  int firsts = 0;
  for (const Json& event : PostStream("/v1/completions", body)) {
    for (const Json& choice : event["choices"]) {
      std::vector<int32_t>& own = ids[choice["index"].get<size_t>()];
      if (choice.contains("prompt_token_ids")) {
        EXPECT_TRUE(own.empty());
        EXPECT_EQ(choice["prompt_token_ids"], kFramed);
        ++firsts;
      }
      for (const Json& id : choice["token_ids"]) own.push_back(id.get<int32_t>());
    }
  }
  EXPECT_EQ(firsts, 2);
  EXPECT_EQ(ids[0], kAnswer);
  EXPECT_EQ(ids[1], kAnswer);
  const Json none = PostOk("/v1/completions", {{"prompt", "hi"}});
  EXPECT_FALSE(none["choices"][0].contains("token_ids"));
  EXPECT_FALSE(none["choices"][0].contains("prompt_token_ids"));
}

// As SGLang: under another name, and not in streams.
TEST_F(TokenIdsTest, ChatReturnsThem) {
  const std::vector<int32_t> prompt = ByteTokenizer().Encode("user:hi;assistant:", true);
  Json body = ChatBody();
  body["return_prompt_token_ids"] = true;
  const Json first = PostOk("/v1/chat/completions", body);
  EXPECT_EQ(first["choices"][0]["prompt_token_ids"], prompt);
  EXPECT_FALSE(first["choices"][0].contains("response_token_ids"));
  body["return_token_ids"] = true;
  const Json both = PostOk("/v1/chat/completions", body);
  EXPECT_EQ(both["choices"][0]["prompt_token_ids"], prompt);
  EXPECT_EQ(both["choices"][0]["response_token_ids"], kAnswer);
  for (const char* key : {"return_token_ids", "return_prompt_token_ids"}) {
    Json stream = ChatBody();
    stream[key] = true;
    stream["stream"] = true;
    const HttpResponse response = Post("/v1/chat/completions", stream);
    EXPECT_EQ(response.status, 400);
    EXPECT_THAT(response.body,
                testing::HasSubstr(std::string("body.") + key + " is not supported"));
  }
}

TEST_F(TokenIdsTest, WhatAnswersCannotBringIsRefused) {
  for (const char* key : {"return_meta_info", "return_cached_tokens_details",
                          "return_spec_tokens_details", "return_hidden_states", "lora_path"}) {
    Json chat = ChatBody(), text = {{"prompt", "hi"}};
    for (const Json& nothing : {Json(), Json(false), Json(""), Json::array({nullptr})}) {
      chat[key] = text[key] = nothing;
      PostOk("/v1/chat/completions", chat);
      PostOk("/v1/completions", text);
    }
    chat[key] = text[key] = true;
    for (const HttpResponse& response :
         {Post("/v1/chat/completions", chat), Post("/v1/completions", text)}) {
      EXPECT_EQ(response.status, 400);
      EXPECT_THAT(response.body, testing::HasSubstr(std::string("body.") + key));
    }
  }
}

TEST_F(TokenIdsTest, GenerateReturnsThePrompts) {
  const Json body = {{"text", Json::array({"hi", ""})}, {"return_prompt_token_ids", true}};
  const Json answers = PostOk("/generate", body);
  EXPECT_EQ(answers[0]["prompt_token_ids"], kFramed);
  EXPECT_EQ(answers[0]["output_ids"], kAnswer);
  EXPECT_EQ(answers[1]["prompt_token_ids"], Json({kBos, '.'}));
  for (const Json& event : PostStream("/generate", body)) {
    EXPECT_TRUE(event.contains("prompt_token_ids"));
  }
  EXPECT_FALSE(PostOk("/generate", {{"text", "hi"}}).contains("prompt_token_ids"));
}

}  // namespace
}  // namespace tern
