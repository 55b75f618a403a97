#include <gmock/gmock.h>

#include "server/test_server.h"

namespace tern {
namespace {

using testing::HasSubstr;

class ChatTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    Ready();
  }
  static constexpr const char* kPath = "/v1/chat/completions";
};

TEST_F(ChatTest, WholeAnswer) {
  engine_.SetAnswer("Paris.");
  const Json answer = PostOk(kPath, ChatBody());
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "fake");
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "Paris.");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["matched_stop"], ByteTokenizer::kEnd);
  EXPECT_TRUE(choice["logprobs"].is_null());
  // "user:hi;assistant:" is 18 bytes, so tokens; the answer is 6 and the end token.
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 18);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 7);
  EXPECT_EQ(answer["usage"]["total_tokens"], 25);
  const GenerateRequest request = engine_.last_request();
  EXPECT_EQ(std::string(request.tokens.begin(), request.tokens.end()), "user:hi;assistant:");
  EXPECT_EQ(request.sampling.temperature, 1.0);
  EXPECT_EQ(request.sampling.top_k, 7);             // the model's default
  EXPECT_EQ(request.sampling.max_new_tokens, 182);  // what the context of 200 leaves
}

TEST_F(ChatTest, PassesSamplingOn) {
  engine_.SetAnswer("x");
  Json body = ChatBody();
  body.update({{"temperature", 0.25},
               {"top_p", 0.5},
               {"top_k", 3},
               {"min_p", 0.125},
               {"seed", 42},
               {"max_completion_tokens", 9},
               {"stop_token_ids", {5, 6}},
               {"ignore_eos", true},
               {"rid", "my-rid"},
               {"cache_salt", "salt"},
               {"extra_key", "key"},
               {"prompt_cache_key", "talk"},
               {"bootstrap_host", nullptr},
               {"unknown_key", {1, 2}},
               {"model", nullptr}});
  const Json answer = PostOk(kPath, body);
  EXPECT_EQ(answer["id"], "my-rid");
  EXPECT_EQ(answer["model"], "fake");
  const GenerateRequest request = engine_.last_request();
  EXPECT_EQ(request.sampling.temperature, 0.25);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.min_p, 0.125);
  EXPECT_EQ(request.sampling.seed, 42u);
  EXPECT_EQ(request.sampling.max_new_tokens, 9);
  EXPECT_EQ(request.sampling.stop_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_TRUE(request.sampling.ignore_eos);
  EXPECT_EQ(request.rid, "my-rid");
  EXPECT_EQ(request.cache_salt, "salt");
  EXPECT_EQ(request.extra_key, "key");
  EXPECT_EQ(request.session, "talk");
}

// The body's field comes first: routers drop the header.
TEST_F(ChatTest, AHeaderNamesTheConversation) {
  engine_.SetAnswer("x");
  Json body = ChatBody();
  PostOk(kPath, body);
  EXPECT_EQ(engine_.last_request().session, "");
  const HttpHeaders header = {{"X-Session-Affinity", "one"}};
  EXPECT_EQ(Call("POST", kPath, DumpJson(body), header).status, 200);
  EXPECT_EQ(engine_.last_request().session, "one");
  body["prompt_cache_key"] = "two";
  body["n"] = 2;
  EXPECT_EQ(Call("POST", kPath, DumpJson(body), header).status, 200);
  EXPECT_EQ(engine_.last_request().session, "two");
  body["prompt_cache_key"] = 2;
  const HttpResponse refused = Post(kPath, body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("body.prompt_cache_key"));
  const Json text = {{"prompt", "a"}, {"max_tokens", 1}};
  EXPECT_EQ(Call("POST", "/v1/completions", DumpJson(text), header).status, 200);
  EXPECT_EQ(engine_.last_request().session, "one");
}

TEST_F(ChatTest, StreamHasTheChunksInOrder) {
  engine_.SetAnswer("h\xE2\x82\xAC!");  // "h", a euro sign in three tokens, "!"
  Json body = ChatBody();
  body["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> events = PostStream(kPath, body);
  ASSERT_EQ(events.size(), 6u);
  for (const Json& event : events) EXPECT_EQ(event["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["content"], "");
  EXPECT_TRUE(events[0]["choices"][0]["delta"]["reasoning_content"].is_null());
  EXPECT_TRUE(events[0]["usage"].is_null());
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "h");
  EXPECT_EQ(events[2]["choices"][0]["delta"]["content"], "\xE2\x82\xAC");
  EXPECT_EQ(events[3]["choices"][0]["delta"]["content"], "!");
  EXPECT_TRUE(events[3]["choices"][0]["finish_reason"].is_null());
  EXPECT_EQ(events[4]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(events[5]["choices"].empty());
  EXPECT_EQ(events[5]["usage"]["completion_tokens"], 6);
  EXPECT_EQ(events[5]["usage"]["prompt_tokens"], 18);
}

TEST_F(ChatTest, StopStringAcrossTokensEndsTextAndUsageThere) {
  engine_.SetScript({ByteTokenizer().Encode("one\n\nUser: two", true), false, OkStatus()});
  Json body = ChatBody();
  body["stop"] = Json::array({"\n\nUser:", "never"});
  const Json answer = PostOk(kPath, body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "one");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["matched_stop"], "\n\nUser:");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 10);  // o n e \n \n U s e r :
  ASSERT_EQ(engine_.cancels().size(), 1u);
  EXPECT_EQ(engine_.cancels()[0].second, 10);

  std::string text;
  for (const Json& event : PostStream(kPath, body)) {
    const Json& delta = event["choices"][0]["delta"];
    if (delta["content"].is_string()) text += delta["content"].get<std::string>();
  }
  EXPECT_EQ(text, "one");

  body["no_stop_trim"] = true;
  EXPECT_EQ(PostOk(kPath, body)["choices"][0]["message"]["content"], "one\n\nUser:");
}

TEST_F(ChatTest, HeldTextIsReleasedWhenTheAnswerEnds) {
  engine_.SetAnswer("a sto");
  Json body = ChatBody();
  body["stop"] = "stop";
  EXPECT_EQ(PostOk(kPath, body)["choices"][0]["message"]["content"], "a sto");
  std::string text;
  for (const Json& event : PostStream(kPath, body)) {
    const Json& delta = event["choices"][0]["delta"];
    if (delta["content"].is_string()) text += delta["content"].get<std::string>();
  }
  EXPECT_EQ(text, "a sto");
}

TEST_F(ChatTest, LogprobsCoverEveryTokenWholeAndStreamed) {
  engine_.SetScript({{ByteTokenizer::kAb, 0xE2, 0x82, 0xAC}, true, OkStatus()});
  Json body = ChatBody();
  body.update({{"logprobs", true}, {"top_logprobs", 2}});
  const Json whole = PostOk(kPath, body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(whole.size(), 4u);
  EXPECT_EQ(whole[0]["token"], "ab");
  EXPECT_EQ(whole[0]["bytes"], Json({97, 98}));
  EXPECT_EQ(whole[0]["logprob"], -0.5);
  EXPECT_EQ(whole[1]["bytes"], Json({0xE2}));
  EXPECT_EQ(whole[1]["token"], "\xEF\xBF\xBD");
  ASSERT_EQ(whole[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(whole[0]["top_logprobs"][1]["token"], "b");
  EXPECT_EQ(whole[0]["top_logprobs"][1]["logprob"], -2.0);
  Json streamed = Json::array();
  for (const Json& event : PostStream(kPath, body)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& item : logprobs["content"]) streamed.push_back(item);
  }
  EXPECT_EQ(streamed, whole);
}

TEST_F(ChatTest, SeveralChoicesCountThePromptOnce) {
  engine_.SetAnswer("abc");
  Json body = ChatBody();
  body.update({{"n", 3}, {"seed", 5}, {"max_tokens", 2}});
  const Json answer = PostOk(kPath, body);
  ASSERT_EQ(answer["choices"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["message"]["content"], "ab");
    EXPECT_EQ(answer["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 18);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 6);
  EXPECT_EQ(engine_.last_request().sampling.seed, 7u);  // choices differ in the seed

  int ends = 0;
  for (const Json& event : PostStream(kPath, body)) {
    if (!event["choices"].empty() && !event["choices"][0]["finish_reason"].is_null()) ++ends;
  }
  EXPECT_EQ(ends, 3);
}

TEST_F(ChatTest, TemplateGetsPartsToolsAndKwargs) {
  engine_.SetAnswer("x");
  Json body = ChatBody();
  body["messages"][0]["content"] =
      Json::array({Json{{"type", "text"}, {"text", "a"}}, Json{{"type", "text"}, {"text", "b"}}});
  body["tools"] = Json::array({Json{{"type", "function"}, {"function", {{"name", "f"}}}}});
  body["chat_template_kwargs"] = {{"style", "brief "}};
  PostOk(kPath, body);
  std::vector<int32_t> tokens = engine_.last_request().tokens;
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "[1 tools]user:a b;brief assistant:");
  body["tool_choice"] = "none";
  PostOk(kPath, body);
  tokens = engine_.last_request().tokens;
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "user:a b;brief assistant:");
}

TEST_F(ChatTest, AClientThatLeavesEndsItsRequests) {
  engine_.SetScript({{}, false, OkStatus()});
  engine_.SetStepUs(2000);
  for (const bool stream : {false, true}) {
    Json body = ChatBody();
    body.update({{"stream", stream}, {"n", 2}});
    auto client = NewClient();
    bool answered = false;
    auto result = client->Stream(
        "POST", kPath, {}, DumpJson(body),
        [&](std::string_view) {
          answered = true;
          return false;
        },
        [&] { return engine_.live() < 2; });
    EXPECT_EQ(result.status().code(), StatusCode::kCancelled);
    EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; })) << stream;
    for (const auto& [id, keep] : engine_.cancels()) EXPECT_EQ(keep, -1);
  }
  EXPECT_EQ(engine_.cancels().size(), 4u);
}

TEST_F(ChatTest, EngineErrorsBeforeAndAfterTheFirstToken) {
  engine_.SetSubmitError(ResourceExhausted("the queue is full"));
  HttpResponse response = Post(kPath, ChatBody());
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(ParseJson(response.body).value()["message"], "the queue is full");
  EXPECT_EQ(ParseJson(response.body).value()["code"], 503);
  engine_.SetSubmitError(OkStatus());

  engine_.SetScript({{}, true, DataLoss("page 7 does not hold what it must")});
  response = Post(kPath, ChatBody());
  EXPECT_EQ(response.status, 500);
  Json streaming = ChatBody();
  streaming["stream"] = true;
  response = Post(kPath, streaming);
  EXPECT_EQ(response.status, 500);
  // Without a Content-Length, which routers would pass on with another body.
  EXPECT_EQ(FindHeader(response.headers, "Content-Length"), nullptr);
  EXPECT_EQ(ParseJson(response.body).value()["object"], "error");
  EXPECT_EQ(ParseJson(response.body).value()["type"], "KvIntegrityError");
  EXPECT_EQ(ParseJson(response.body).value()["code"], 500);

  engine_.SetScript({{'a'}, true, DataLoss("page 7")});
  const std::vector<Json> events = PostStream(kPath, ChatBody());
  EXPECT_EQ(events.back()["error"]["message"], "page 7");
  EXPECT_EQ(events.back()["error"]["code"], 500);
  EXPECT_EQ(events.back()["error"]["type"], "KvIntegrityError");

  engine_.SetScript({{'a'}, true, Internal("no logits")});
  EXPECT_EQ(PostStream(kPath, ChatBody()).back()["error"]["type"], "INTERNAL_SERVER_ERROR");
}

TEST_F(ChatTest, AbortByRidEndsWithAbort) {
  engine_.SetScript({{}, false, OkStatus()});
  engine_.SetStepUs(2000);
  Json body = ChatBody();
  body["rid"] = "victim";
  Json answer;
  std::thread caller([&] { answer = PostOk(kPath, body); });
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 1; }));
  auto other = NewClient();
  EXPECT_EQ(other->Request("POST", "/abort_request", {}, R"({"rid":"vic"})")->status, 200);
  EXPECT_EQ(engine_.live(), 1u);
  EXPECT_EQ(other->Request("POST", "/abort_request", {}, R"({"rid":"victim"})")->status, 200);
  caller.join();
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "abort");
  EXPECT_EQ(other->Request("POST", "/abort_request", {}, "{}")->status, 400);
}

struct BadBody {
  const char* body;
  const char* message;  // part of it
};

TEST_F(ChatTest, BadBodiesAre400AndNameTheField) {
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}])";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "malformed JSON"},
      {"{", "malformed JSON"},
      {"[]", "JSON object"},
      {"\"x\"", "JSON object"},
      {"{\"a\":\"\xff\"}", "malformed JSON"},
      {std::string(100'000, '['), "nested deeper"},
      {"{}", "body.messages is required"},
      {R"({"messages":[]})", "body.messages"},
      {R"({"messages":"hi"})", "body.messages"},
      {R"({"messages":["hi"]})", "body.messages[0]"},
      {R"({"messages":[{"content":"hi"}]})", "body.messages[0].role"},
      {R"({"messages":[{"role":1,"content":"hi"}]})", "body.messages[0].role"},
      {R"({"messages":[{"role":"end","content":"hi"}]})", "body.messages[0].role must be"},
      {R"({"messages":[{"role":"user","content":5}]})", "body.messages[0].content"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "'image_url'"},
      {R"({"messages":[{"role":"user","content":"raise"}]})", "line 1: raised"},
      {"{" + messages + R"(,"temperature":"hot"})", "body.temperature must be a number"},
      {"{" + messages + R"(,"temperature":-1})", "body.temperature"},
      {"{" + messages + R"(,"temperature":1e400})", "number that is too large"},
      {"{" + messages + R"(,"top_p":0})", "body.top_p"},
      {"{" + messages + R"(,"top_p":1.5})", "body.top_p"},
      {"{" + messages + R"(,"min_p":2})", "body.min_p"},
      {"{" + messages + R"(,"top_k":-5})", "body.top_k"},
      {"{" + messages + R"(,"top_k":1.5})", "body.top_k must be an integer"},
      {"{" + messages + R"(,"n":0})", "body.n"},
      {"{" + messages + R"(,"n":1e9})", "body.n"},
      {"{" + messages + R"(,"max_tokens":0})", "body.max_tokens"},
      {"{" + messages + R"(,"max_tokens":99999999999999999999})", "body.max_tokens"},
      {"{" + messages + R"(,"seed":"x"})", "body.seed"},
      {"{" + messages + R"(,"stop":""})", "body.stop"},
      {"{" + messages + R"(,"stop":[1]})", "body.stop"},
      {"{" + messages + R"(,"stop":{}})", "body.stop"},
      {"{" + messages + R"(,"stop_token_ids":[-1]})", "token id"},
      {"{" + messages + R"(,"stop_token_ids":["a"]})", "body.stop_token_ids"},
      {"{" + messages + R"(,"stream":"yes"})", "body.stream must be true or false"},
      {"{" + messages + R"(,"stream_options":1})", "body.stream_options"},
      {"{" + messages + R"(,"logprobs":5})", "body.logprobs"},
      {"{" + messages + R"(,"logprobs":true,"top_logprobs":21})", "body.top_logprobs"},
      {"{" + messages + R"(,"top_logprobs":2})", "body.top_logprobs"},
      {"{" + messages + R"(,"tools":{}})", "body.tools"},
      {"{" + messages + R"(,"tools":[{}]})", "body.tools[0]"},
      {"{" + messages + R"(,"tool_choice":"required"})", "body.tool_choice"},
      {"{" + messages + R"(,"chat_template_kwargs":[]})", "body.chat_template_kwargs"},
      {"{" + messages + R"(,"chat_template_kwargs":{"chat_template":"x"}})", "chat_template"},
      {"{" + messages + R"(,"response_format":{"type":"json_object"}})", "json_object"},
      {"{" + messages + R"(,"frequency_penalty":2.5})", "body.frequency_penalty"},
      {"{" + messages + R"(,"presence_penalty":"a"})", "body.presence_penalty"},
      {"{" + messages + R"(,"repetition_penalty":0})", "body.repetition_penalty"},
      {"{" + messages + R"(,"logit_bias":{"x":1}})", "body.logit_bias: 'x'"},
      {"{" + messages + R"(,"logit_bias":{"5":101}})", "body.logit_bias.5"},
      {"{" + messages + R"(,"logit_bias":[5]})", "body.logit_bias"},
      {"{" + messages + R"(,"min_tokens":-1})", "body.min_tokens"},
      {"{" + messages + R"(,"min_tokens":5,"max_tokens":4})", "min_tokens 5"},
      {"{" + messages + R"(,"model":5})", "body.model"},
  };
  engine_.SetAnswer("fine");
  for (const auto& [body, message] : cases) {
    const HttpResponse response = Call("POST", kPath, body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 200);
    const Json error = ParseJson(response.body).value();
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message)) << body.substr(0, 200);
    EXPECT_EQ(error["object"], "error");
    EXPECT_EQ(error["type"], "BadRequestError");
    EXPECT_EQ(error["code"], 400);
  }
  EXPECT_EQ(PostOk(kPath, ChatBody())["choices"][0]["message"]["content"], "fine");
}

TEST_F(ChatTest, AnOverflowingContextIsToldInOpenAisWords) {
  Json long_prompt = ChatBody(), long_answer = ChatBody();
  long_prompt["messages"][0]["content"] = std::string(300, 'x');
  long_answer["max_tokens"] = 190;
  const std::vector<std::pair<Json, std::string>> cases = {
      {long_prompt, "However, your messages resulted in 316"},
      {long_answer,
       "However, you requested 208 tokens (18 in the messages, 190 in the completion)"}};
  for (auto [body, message] : cases) {
    for (const bool stream : {false, true}) {
      body["stream"] = stream;
      const HttpResponse response = Post(kPath, body);
      EXPECT_EQ(response.status, 400);
      const Json error = ParseJson(response.body).value()["error"];
      EXPECT_THAT(error["message"].get<std::string>(),
                  HasSubstr("This model's maximum context length is 200 tokens. " + message));
      EXPECT_EQ(error["type"], "invalid_request_error");
      EXPECT_EQ(error["code"], "context_length_exceeded");
      EXPECT_TRUE(error["param"].is_null());
    }
  }
}

TEST_F(ChatTest, CachedTokensAreReportedUnlessTurnedOff) {
  engine_.SetAnswer("ab");
  Json body = ChatBody();
  EXPECT_EQ(PostOk(kPath, body)["usage"]["prompt_tokens_details"], (Json{{"cached_tokens", 1}}));
  body["stream_options"] = {{"continuous_usage_stats", true}, {"include_usage", true}};
  const std::vector<Json> events = PostStream(kPath, body);
  for (size_t i = 1; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["usage"]["prompt_tokens_details"]["cached_tokens"], 1) << i;
  }
  EXPECT_EQ(events[1]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[2]["usage"]["completion_tokens"], 2);
  ApiServerOptions off;
  off.cache_report = false;
  StartServer(off);
  Ready();
  EXPECT_TRUE(PostOk(kPath, ChatBody())["usage"]["prompt_tokens_details"].is_null());
}

TEST_F(ChatTest, StopRegexEndsBehindItsMatch) {
  engine_.SetScript({ByteTokenizer().Encode("abc12 d345e", true), false, OkStatus()});
  Json body = ChatBody();
  body["stop_regex"] = Json::array({"[0-9]{3}", "never"});
  Json answer = PostOk(kPath, body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "abc12 d345");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["matched_stop"], "[0-9]{3}");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 10);
  std::string text;
  for (const Json& event : PostStream(kPath, body)) {
    const Json& delta = event["choices"][0]["delta"];
    if (delta["content"].is_string()) text += delta["content"].get<std::string>();
  }
  EXPECT_EQ(text, "abc12 d345");
  // A stop string that ends with the same character goes before; one that ends later is too late.
  body["stop"] = Json::array({"d345", "45e"});
  answer = PostOk(kPath, body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "abc12 ");
  EXPECT_EQ(answer["choices"][0]["matched_stop"], "d345");
  // An expression that needs too many steps ends the request, not the server.
  engine_.SetScript({ByteTokenizer().Encode(std::string(150, 'a'), true), false, OkStatus()});
  body = ChatBody();
  body["stop_regex"] = "(a+)+$b";
  const HttpResponse response = Post(kPath, body);
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("too many steps"));
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
}

TEST_F(ChatTest, PenaltiesAndBiasesReachTheEngine) {
  engine_.SetAnswer("fine");
  Json body = ChatBody();
  body.update({{"presence_penalty", 0.5},
               {"frequency_penalty", -2},
               {"repetition_penalty", 1.5},
               {"min_tokens", 3},
               {"logit_bias", {{"5", -100}, {"7", 0.5}}}});
  PostOk(kPath, body);
  const SamplingParams sampling = engine_.last_request().sampling;
  EXPECT_EQ(sampling.presence_penalty, 0.5);
  EXPECT_EQ(sampling.frequency_penalty, -2);
  EXPECT_EQ(sampling.repetition_penalty, 1.5);
  EXPECT_EQ(sampling.min_new_tokens, 3);
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100.f}, {7, 0.5f}}));
}

}  // namespace
}  // namespace tern
