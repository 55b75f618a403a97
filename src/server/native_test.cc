#include "server/native.h"

#include "server/test_server.h"

namespace tern {
namespace {

using testing::HasSubstr;

class GenerateTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    Ready();
  }
};

TEST_F(GenerateTest, TextAndIdsGiveTextIdsAndMeta) {
  engine_.SetAnswer("abc");
  for (const Json& prompt : {Json{{"text", "hey"}}, Json{{"input_ids", {104, 101, 121}}}}) {
    Json body = prompt;
    body["rid"] = "r1";
    body["model"] = "unknown";             // smg's spelling of no model
    body["return_hidden_states"] = false;  // sent by sglang-router
    body["image_data"] = nullptr;
    const Json answer = PostOk("/generate", body);
    EXPECT_EQ(answer["text"], "abc");
    EXPECT_EQ(answer["output_ids"], Json({97, 98, 99, 256}));
    EXPECT_EQ(answer["meta_info"]["id"], "r1");
    EXPECT_EQ(answer["meta_info"]["finish_reason"], (Json{{"type", "stop"}, {"matched", 256}}));
    EXPECT_EQ(answer["meta_info"]["prompt_tokens"], 3);
    EXPECT_EQ(answer["meta_info"]["completion_tokens"], 4);
    EXPECT_EQ(engine_.last_request().tokens, (std::vector<int32_t>{104, 101, 121}));
    EXPECT_EQ(engine_.last_request().sampling.max_new_tokens, 128);
  }
  EXPECT_EQ(Call("PUT", "/generate", R"({"text":"hey"})").status, 200);
}

TEST_F(GenerateTest, StreamIsCumulative) {
  engine_.SetAnswer("abc");
  Json body = {{"text", "hey"}, {"sampling_params", {{"max_new_tokens", 2}}}};
  const std::vector<Json> events = PostStream("/generate", body);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["text"], "a");
  EXPECT_EQ(events[1]["text"], "ab");
  EXPECT_EQ(events[1]["output_ids"], Json({97, 98}));
  EXPECT_TRUE(events[1]["meta_info"]["finish_reason"].is_null());
  EXPECT_EQ(events[2]["text"], "ab");
  EXPECT_EQ(events[2]["meta_info"]["finish_reason"], (Json{{"type", "length"}, {"length", 2}}));
  EXPECT_FALSE(events[0].contains("index"));
}

TEST_F(GenerateTest, CumulativeEventsGrowIntoTheWholeAnswer) {
  engine_.SetAnswer("a\"\n\\\xC3\xA9\xFF\x01z");
  Json body = {{"text", "hey"},
               {"return_logprob", true},
               {"top_logprobs_num", 1},
               {"return_text_in_logprobs", true},
               {"logprob_start_len", 1},
               {"token_ids_logprob", {97, 98}},
               {"sampling_params", {{"max_new_tokens", 100}}}};
  Json whole = PostOk("/generate", body);
  EXPECT_EQ(whole["text"], "a\"\n\\\u00e9\ufffd\u0001z");
  const std::vector<Json> events = PostStream("/generate", body);
  ASSERT_EQ(events.size(), 10u);  // nine bytes and the end
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["output_ids"].size(), i + 1);
    for (const char* key :
         {"output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"}) {
      const Json& list = events[i]["meta_info"][key];
      ASSERT_EQ(list.size(), i + 1) << key;
      EXPECT_EQ(list, Json(std::vector<Json>(
                          whole["meta_info"][key].begin(),
                          whole["meta_info"][key].begin() + static_cast<std::ptrdiff_t>(i + 1))));
    }
    EXPECT_EQ(events[i]["meta_info"]["output_token_logprobs_length"], i + 1);
    EXPECT_EQ(events[i]["meta_info"]["input_token_logprobs"],
              whole["meta_info"]["input_token_logprobs"]);
  }
  Json last = events.back();
  for (const char* key : {"id", "e2e_latency"}) {
    whole["meta_info"].erase(key);
    last["meta_info"].erase(key);
  }
  EXPECT_EQ(last, whole);
}

TEST_F(GenerateTest, BatchesAndChoicesAreLists) {
  engine_.SetAnswer("abc");
  Json answer = PostOk("/generate",
                       {{"text", Json::array({"a", "bb"})},
                        {"rid", Json::array({"x", "y"})},
                        {"sampling_params",
                         Json::array({Json{{"max_new_tokens", 1}}, Json{{"max_new_tokens", 2}}})}});
  ASSERT_EQ(answer.size(), 2u);
  EXPECT_EQ(answer[0]["text"], "a");
  EXPECT_EQ(answer[1]["text"], "ab");
  EXPECT_EQ(answer[1]["meta_info"]["prompt_tokens"], 2);
  EXPECT_EQ(answer[1]["meta_info"]["id"], "y");
  answer = PostOk("/generate", {{"input_ids", Json::array({Json::array({1})})}});
  EXPECT_TRUE(answer.is_array());
  answer = PostOk("/generate", {{"text", "a"}, {"sampling_params", {{"n", 2}}}});
  EXPECT_EQ(answer.size(), 2u);
  const std::vector<Json> events = PostStream("/generate", {{"text", Json::array({"a", "b"})}});
  std::map<int, std::string> last;
  for (const Json& event : events) last[event["index"]] = event["text"];
  EXPECT_EQ(last, (std::map<int, std::string>{{0, "abc"}, {1, "abc"}}));
}

TEST_F(GenerateTest, LogprobsAndStopString) {
  engine_.SetScript({ByteTokenizer().Encode("abcdef", true), false, OkStatus()});
  const Json answer = PostOk("/generate", {{"text", "hey"},
                                           {"return_logprob", true},
                                           {"top_logprobs_num", 1},
                                           {"return_text_in_logprobs", true},
                                           {"sampling_params", {{"stop", "cd"}}}});
  EXPECT_EQ(answer["text"], "ab");
  const Json& meta = answer["meta_info"];
  EXPECT_EQ(meta["finish_reason"], (Json{{"type", "stop"}, {"matched", "cd"}}));
  EXPECT_EQ(meta["completion_tokens"], 4);
  EXPECT_EQ(meta["cached_tokens"], 1);
  EXPECT_EQ(meta["reasoning_tokens"], 0);
  ASSERT_EQ(meta["output_token_logprobs"].size(), 4u);
  EXPECT_EQ(meta["output_token_logprobs"][0], Json::array({-0.5, 97, "a"}));
  EXPECT_EQ(meta["output_top_logprobs"][3], Json::array({Json::array({-1.0, 97, "a"})}));
  EXPECT_EQ(meta["input_token_logprobs"], Json::array());
}

TEST_F(GenerateTest, AConversationIsNamedByFieldOrHeader) {
  engine_.SetAnswer("x");
  const HttpHeaders header = {{"X-Session-Affinity", "one"}};
  EXPECT_EQ(Call("POST", "/generate", R"({"text":"a"})", header).status, 200);
  EXPECT_EQ(engine_.last_request().session, "one");
  PostOk("/generate", {{"text", "a"}, {"prompt_cache_key", "two"}});
  EXPECT_EQ(engine_.last_request().session, "two");
}

TEST_F(GenerateTest, BadBodiesAre400AndNameTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"7", "JSON object"},
      {"{}", "text and input_ids"},
      {R"({"text":"a","input_ids":[1]})", "text and input_ids"},
      {R"({"text":5})", "body.text"},
      {R"({"text":[]})", "prompts"},
      {R"({"text":["a",1]})", "body.text"},
      {R"({"text":""})", "empty"},
      {R"({"input_ids":[]})", "empty"},
      {R"({"input_ids":"a"})", "body.input_ids"},
      {R"({"input_ids":[1,"a"]})", "body.input_ids"},
      {R"({"input_ids":[18446744073709551615]})", "token id"},
      {R"({"input_ids":[[1],2]})", "body.input_ids"},
      {R"({"text":"a","sampling_params":5})", "body.sampling_params"},
      {R"({"text":["a","b"],"sampling_params":[{}]})", "body.sampling_params has 1"},
      {R"({"text":"a","sampling_params":{"max_new_tokens":-1}})", "max_new_tokens"},
      {R"({"text":"a","sampling_params":{"max_new_tokens":200}})", "200"},
      {R"({"text":"a","sampling_params":{"n":0}})", "sampling_params.n"},
      {R"({"text":"a","sampling_params":{"regex":"a+"}})", "sampling_params.regex"},
      {R"({"text":"a","rid":5})", "body.rid"},
      {R"({"text":"a","stream":1})", "body.stream"},
      {R"({"text":"a","return_logprob":true,"logprob_start_len":-2})", "logprob_start_len"},
      {R"({"text":"a","return_logprob":true,"logprob_start_len":2})",
       "logprob_start_len 2 is more"},
      {R"({"text":"a","return_logprob":true,"token_ids_logprob":["a"]})", "token_ids_logprob"},
      {R"({"text":"a","require_reasoning":1})", "body.require_reasoning"},
      {R"({"text":"a","sampling_params":{"stop_regex":"a("}})", "stop_regex 'a(' is wrong"},
      {R"({"text":"a","sampling_params":{"stop_regex":[1]}})", "stop_regex"},
      {R"({"text":"a","top_logprobs_num":-1})", "top_logprobs_num"},
      {R"({"text":"a","image_data":"https://example.org/a.png"})", "body.image_data"},
      {R"({"text":"a","return_hidden_states":true})", "body.return_hidden_states"},
      {R"({"text":"a","lora_path":"x"})", "body.lora_path"},
      {R"({"text":"a","session_params":{"id":"s"}})", "body.session_params"},
      {R"({"text":"a","max_thinking_tokens":5})", "body.max_thinking_tokens"},
      {R"({"text":"a","return_prompt_token_ids":1})", "body.return_prompt_token_ids"},
  };
  for (const auto& [body, message] : cases) {
    const HttpResponse response = Call("POST", "/generate", body);
    EXPECT_EQ(response.status, 400) << body;
    const Json answer = ParseJson(response.body).value();
    const Json& error = answer.contains("error") ? answer["error"] : answer;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message)) << body;
  }
}

TEST_F(GenerateTest, ChoicesAreBoundedBeforeAnyTextIsTokenized) {
  // What would become 1024 x 128 copies of prompts is refused by the prompts alone.
  Json body = {{"text", Json::array()}, {"sampling_params", {{"n", 128}, {"max_new_tokens", 1}}}};
  for (int i = 0; i < 1024; ++i) body["text"].push_back(std::string(100, 'a'));
  HttpResponse response = Post("/generate", body);
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("1024 answers"));
  EXPECT_THAT(response.body, HasSubstr("256"));
  EXPECT_EQ(tokenizer_->encodes(), 0);
  // Parameters may differ from prompt to prompt: their sum counts.
  body = {{"text", Json::array({"a", "b", "c"})},
          {"sampling_params", Json::array({Json{{"n", 128}}, Json{{"n", 128}}, Json{{"n", 1}}})}};
  response = Post("/generate", body);
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("257"));
  body["sampling_params"][2]["n"] = 0;
  EXPECT_EQ(Post("/generate", body).status, 400);
  EXPECT_EQ(tokenizer_->encodes(), 0);
  engine_.SetAnswer("a");
  body = {{"text", Json::array({"a", "b"})}, {"sampling_params", {{"n", 128}}}};
  EXPECT_EQ(PostOk("/generate", body).size(), 256u);
}

TEST_F(GenerateTest, ATextThatCannotFitIsNotTokenized) {
  // The context has 200 tokens, the longest of them ("<|end|>") 7 bytes.
  const HttpResponse response = Post("/generate", {{"text", std::string(1401, 'a')}});
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("1401 bytes"));
  EXPECT_THAT(response.body, HasSubstr("1400"));
  EXPECT_EQ(tokenizer_->encodes(), 0);
  EXPECT_EQ(Post("/generate", {{"text", std::string(1400, 'a')}}).status, 400);
  EXPECT_EQ(tokenizer_->encodes(), 1);
}

}  // namespace
}  // namespace tern
