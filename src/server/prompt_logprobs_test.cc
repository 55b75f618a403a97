// Log probabilities of the prompt in the shapes of /v1/completions and /generate. The fake engine
// gives position p of a prompt -p / 4, and 'a', 'b', ... as the most likely tokens everywhere.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace tern {
namespace {

class PromptLogprobsTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    Ready();
    engine_.SetAnswer("xyz");
  }
};

// As lm-eval asks: token ids, echo, logprobs 1, and one token or none.
TEST_F(PromptLogprobsTest, CompletionsEchoWithLogprobs) {
  for (const int tokens : {0, 1}) {
    const Json answer = PostOk("/v1/completions", {{"prompt", Json::array({{104, 0xC3, 0xA9}})},
                                                   {"echo", true},
                                                   {"logprobs", 1},
                                                   {"max_tokens", tokens}});
    EXPECT_EQ(engine_.last_request().prompt_logprobs_from, 0);
    const Json& choice = answer["choices"][0];
    EXPECT_EQ(choice["text"], tokens == 0 ? "h\u00e9" : "h\u00e9x");
    EXPECT_EQ(choice["finish_reason"], "length");
    const Json& logprobs = choice["logprobs"];
    Json values = {nullptr, -0.25, -0.5};
    Json texts = {"h", "\uFFFD", "\uFFFD"}, offsets = {0, 1, 2};
    Json tops = {nullptr, Json{{"a", -1.0}}, Json{{"a", -1.0}}};
    if (tokens > 0) {
      values.push_back(-0.5);
      texts.push_back("x");
      offsets.push_back(2);
      tops.push_back({{"a", -1.0}});
    }
    EXPECT_EQ(logprobs["token_logprobs"], values);
    EXPECT_EQ(logprobs["tokens"], texts);
    EXPECT_EQ(logprobs["text_offset"], offsets);
    EXPECT_EQ(logprobs["top_logprobs"], tops);
    EXPECT_EQ(answer["usage"]["completion_tokens"], tokens);
  }
}

TEST_F(PromptLogprobsTest, AStreamHasThemInItsFirstChunk) {
  const std::vector<Json> events = PostStream(
      "/v1/completions", {{"prompt", "hey"}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 2}});
  EXPECT_EQ(events[0]["choices"][0]["text"], "heyx");
  EXPECT_EQ(events[0]["choices"][0]["logprobs"]["token_logprobs"],
            Json({nullptr, -0.25, -0.5, -0.5}));
  EXPECT_EQ(events[1]["choices"][0]["text"], "y");
  EXPECT_EQ(events[1]["choices"][0]["logprobs"]["text_offset"], Json({4}));
}

TEST_F(PromptLogprobsTest, OnlyWhenTheyAreAskedFor) {
  PostOk("/v1/completions", {{"prompt", "hey"}, {"echo", true}});
  EXPECT_FALSE(engine_.last_request().prompt_logprobs_from.has_value());
  PostOk("/v1/completions", {{"prompt", "hey"}, {"logprobs", 1}});
  EXPECT_FALSE(engine_.last_request().prompt_logprobs_from.has_value());
  PostOk("/generate", {{"text", "hey"}, {"return_logprob", true}});
  EXPECT_FALSE(engine_.last_request().prompt_logprobs_from.has_value());
  PostOk("/generate", {{"text", "hey"}, {"logprob_start_len", 0}});
  EXPECT_FALSE(engine_.last_request().prompt_logprobs_from.has_value());
}

TEST_F(PromptLogprobsTest, GenerateGivesTheInputsToo) {
  Json body = {{"text", "hey!"},
               {"return_logprob", true},
               {"logprob_start_len", 1},
               {"top_logprobs_num", 2},
               {"token_ids_logprob", {9}},
               {"return_text_in_logprobs", true},
               {"sampling_params", {{"max_new_tokens", 2}}}};
  const auto expect = [](const Json& meta, size_t outputs) {
    EXPECT_EQ(meta["input_token_logprobs"],
              Json::parse(R"([[null,101,"e"],[-0.5,121,"y"],[-0.75,33,"!"]])"));
    EXPECT_EQ(meta["input_top_logprobs"],
              Json::parse(R"([null,[[-1.0,97,"a"],[-2.0,98,"b"]],[[-1.0,97,"a"],[-2.0,98,"b"]]])"));
    EXPECT_EQ(meta["input_token_ids_logprobs"],
              Json::parse(R"([null,[[-7.0,9,"\t"]],[[-7.0,9,"\t"]]])"));
    EXPECT_EQ(meta["output_token_logprobs"].size(), outputs);
    EXPECT_EQ(meta["output_token_logprobs_length"], outputs);
    EXPECT_EQ(meta["output_token_ids_logprobs"].size(), outputs);
    EXPECT_EQ(meta["output_token_ids_logprobs"][0], Json::parse(R"([[-7.0,9,"\t"]])"));
  };
  expect(PostOk("/generate", body)["meta_info"], 2);
  const std::vector<Json> events = PostStream("/generate", body);
  ASSERT_EQ(events.size(), 3u);
  expect(events[0]["meta_info"], 1);
  expect(events[2]["meta_info"], 2);
  EXPECT_EQ(events[0]["meta_info"]["cached_tokens"], 1);

  body["logprob_start_len"] = 4;  // behind the prompt: nothing
  EXPECT_EQ(PostOk("/generate", body)["meta_info"]["input_token_logprobs"], Json::array());
  body["logprob_start_len"] = 0;
  body["sampling_params"]["max_new_tokens"] = 0;
  const Json answer = PostOk("/generate", body);
  EXPECT_EQ(answer["meta_info"]["input_token_logprobs"].size(), 4u);
  EXPECT_EQ(answer["output_ids"], Json::array());
  EXPECT_EQ(answer["text"], "");
}

TEST_F(PromptLogprobsTest, TheirNumberIsBounded) {
  Json ids = Json::array();
  for (int i = 0; i < 256; ++i) ids.push_back(i);
  // 256 prompts of 20 tokens with 277 values each.
  Json body = {{"input_ids", Json::array()},
               {"return_logprob", true},
               {"logprob_start_len", 0},
               {"top_logprobs_num", 20},
               {"token_ids_logprob", ids}};
  for (int i = 0; i < 256; ++i)
    body["input_ids"].push_back(
        Json::array({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}));
  const HttpResponse response = Post("/generate", body);
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, testing::HasSubstr("1418240 log probabilities"));
  body["top_logprobs_num"] = 0;
  body["token_ids_logprob"] = nullptr;
  EXPECT_EQ(PostOk("/generate", body).size(), 256u);
}

}  // namespace
}  // namespace tern
