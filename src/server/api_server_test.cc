#include "server/api_server.h"

#include "server/test_server.h"

namespace tern {
namespace {

using testing::HasSubstr;

using ApiServerTest = ServerTest;

TEST_F(ApiServerTest, LoadingReadyAndDrainingStates) {
  EXPECT_EQ(Call("GET", "/health").status, 503);
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody()).status, 503);
  EXPECT_EQ(Call("GET", "/v1/models").status, 503);
  Ready();
  engine_.SetAnswer("x");
  EXPECT_EQ(Call("GET", "/health").status, 200);
  EXPECT_EQ(Call("HEAD", "/health").status, 200);
  EXPECT_EQ(Call("GET", "/health_generate").status, 200);
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody()).status, 200);
  api_->SetDraining();
  EXPECT_EQ(Call("GET", "/health").status, 503);
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody()).status, 503);
  EXPECT_EQ(Call("GET", "/v1/models").status, 200);
}

TEST_F(ApiServerTest, FailedKvPagesMakeItUnhealthyButItServes) {
  Ready();
  engine_.SetAnswer("x");
  engine_.SetUnhealthyUntil(SystemClock().NowUs() + 60'000'000);
  EXPECT_EQ(Call("GET", "/health").status, 503);
  EXPECT_THAT(Call("GET", "/health").body, HasSubstr("in the last minute"));
  EXPECT_EQ(Post("/v1/chat/completions", ChatBody()).status, 200);
  EXPECT_EQ(Call("GET", "/health_generate").status, 200);
  engine_.SetUnhealthyUntil(SystemClock().NowUs() - 1);
  EXPECT_EQ(Call("GET", "/health").status, 200);
  engine_.SetUnhealthyUntil(IntegrityStats::kNeverHealthy);
  EXPECT_THAT(Call("GET", "/health").body, HasSubstr("quarantine"));
  EXPECT_EQ(Call("GET", "/ready").status, 503);
}

TEST_F(ApiServerTest, ModelsAndInfo) {
  ApiServerOptions options;
  options.server_args = {{"port", 1234}, {"kv_cache_dtype", "auto"}};
  StartServer(options);
  Ready();
  Json models = ParseJson(Call("GET", "/v1/models").body).value();
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][0]["owned_by"], "sglang");  // routers detect the runtime by it
  EXPECT_EQ(models["data"][0]["max_model_len"], 200);
  EXPECT_EQ(Call("GET", "/v1/models/fake").status, 200);
  const HttpResponse missing = Call("GET", "/v1/models/other");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(ParseJson(missing.body).value()["error"]["code"], "model_not_found");
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const Json info = ParseJson(Call("GET", path).body).value();
    EXPECT_EQ(info["port"], 1234);
    EXPECT_EQ(info["kv_cache_dtype"], "auto");
    EXPECT_EQ(info["resolved_kv_cache_dtype"], "bf16");
    EXPECT_EQ(info["version"], "test");
    EXPECT_EQ(info["max_total_num_tokens"], 1024);
    EXPECT_EQ(info["internal_states"][0]["num_running_reqs"], 0);
    EXPECT_TRUE(info["internal_states"][0]["memory_usage"].contains("token_capacity"));
    EXPECT_GE(info["startup_time"]["scheduler_e2e"], 0.0);
    EXPECT_LT(info["startup_time"]["scheduler_e2e"], 60.0);
    EXPECT_TRUE(info["frontend"].is_string());
  }
  for (const char* path : {"/model_info", "/get_model_info"}) {
    const Json info = ParseJson(Call("GET", path).body).value();
    EXPECT_EQ(info["model_path"], "/models/fake");
    EXPECT_EQ(info["is_generation"], true);
    EXPECT_EQ(info["architectures"], Json::array({"FakeForCausalLM"}));
  }
}

TEST_F(ApiServerTest, UnknownPathsAndMethods) {
  Ready();
  EXPECT_EQ(Call("GET", "/nothing").status, 404);
  EXPECT_EQ(Call("GET", "/v1/chat/completions").status, 405);
  EXPECT_EQ(Call("DELETE", "/health").status, 405);
}

TEST_F(ApiServerTest, ApiKey) {
  ApiServerOptions options;
  options.api_key = "secret";
  StartServer(options);
  Ready();
  EXPECT_EQ(Call("GET", "/v1/models").status, 401);
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"Authorization", "Bearer secre"}}).status, 401);
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"Authorization", "Bearer secret1"}}).status, 401);
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"Authorization", "secret"}}).status, 401);
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(Call("GET", "/health").status, 200);
  EXPECT_EQ(Call("GET", "/metrics").status, 200);
  EXPECT_EQ(Call("GET", "/v1/models").body, R"({"error":"Unauthorized"})");
}

TEST_F(ApiServerTest, MetricsCountAnswers) {
  Ready();
  Call("GET", "/nothing");
  Call("POST", "/generate", "{");
  const std::string text = Call("GET", "/metrics").body;
  EXPECT_THAT(text,
              HasSubstr("sglang:http_requests_total{endpoint=\"/generate\",method=\"POST\"} 1"));
  EXPECT_THAT(text, HasSubstr("sglang:http_responses_total{endpoint=\"/generate\",method=\"POST\","
                              "status_code=\"400\"} 1"));
  EXPECT_THAT(text, HasSubstr("endpoint=\"other\",method=\"other\",status_code=\"404\"} 1"));
  ApiServerOptions off;
  off.enable_metrics = false;
  StartServer(off);
  EXPECT_EQ(Call("GET", "/metrics").status, 404);
}

TEST_F(ApiServerTest, FlushCacheOnlyWhenIdle) {
  Ready();
  EXPECT_EQ(Call("POST", "/flush_cache").status, 200);
  EXPECT_EQ(Call("GET", "/flush_cache").status, 200);
  engine_.SetScript({{}, false, OkStatus()});
  engine_.SetStepUs(10'000);  // over a second for the request
  auto client = NewClient();
  std::thread caller([&] { (void)client->Request("POST", "/generate", {}, R"({"text":"a"})"); });
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 1; }));
  EXPECT_EQ(Call("POST", "/flush_cache").status, 400);
  EXPECT_EQ(Call("POST", "/flush_cache?timeout=0.05").status, 400);
  EXPECT_EQ(Call("POST", "/abort_request", R"({"abort_all":true})").status, 200);
  caller.join();
}

TEST_F(ApiServerTest, FlushCacheWaitsAsLongAsItIsTold) {
  Ready();
  engine_.SetScript({{}, false, OkStatus()});
  engine_.SetStepUs(10'000);
  auto client = NewClient();
  std::thread caller([&] { (void)client->Request("POST", "/generate", {}, R"({"text":"a"})"); });
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 1; }));
  auto waiting = NewClient();
  std::thread flusher([&] {
    auto answer = waiting->Request("POST", "/flush_cache?timeout=9.5", {}, "", 10'000'000);
    EXPECT_TRUE(answer.ok() && answer->status == 200);
  });
  EXPECT_EQ(Call("POST", "/abort_request", R"({"abort_all":true})").status, 200);
  caller.join();
  flusher.join();
  for (const char* timeout : {"-1", "x", "1s", "nan", "1e9", ""}) {
    const HttpResponse response = Call("POST", std::string("/flush_cache?timeout=") + timeout);
    EXPECT_EQ(response.status, 400) << timeout;
    EXPECT_THAT(response.body, HasSubstr("timeout")) << timeout;
  }
}

TEST_F(ApiServerTest, CompletionsBoundChoicesAndTextBeforeTokenizing) {
  Ready();
  HttpResponse response =
      Post("/v1/completions", {{"prompt", Json::array({"a", "b", "c"})}, {"n", 100}});
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("300"));
  EXPECT_THAT(response.body, HasSubstr("256"));
  response = Post("/v1/completions", {{"prompt", std::string(1401, 'a')}});
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("1401 bytes"));
  Json chat = ChatBody();
  chat["messages"][0]["content"] = std::string(3000, 'a');
  response = Post("/v1/chat/completions", chat);
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("1400"));
  EXPECT_EQ(tokenizer_->encodes(), 0);
}

TEST_F(ApiServerTest, FlushCacheDoesNotHoldUpTheNetworkThread) {
  Ready();
  engine_.HoldFlushes(true);  // as an engine in the middle of a long step
  auto client = NewClient();
  std::thread caller([&] {
    auto answer = client->Request("POST", "/flush_cache", {}, "", 10'000'000);
    EXPECT_TRUE(answer.ok() && answer->status == 200);
  });
  ASSERT_TRUE(Eventually([&] { return engine_.held_flushes() == 1; }));
  auto other = NewClient();
  auto health = other->Request("GET", "/health", {}, "", 2'000'000);
  EXPECT_TRUE(health.ok() && health->status == 200);
  engine_.HoldFlushes(false);
  caller.join();
}

TEST_F(ApiServerTest, CompletionsTakeARidForEachPrompt) {
  Ready();
  engine_.SetAnswer("abc");
  const Json body = {{"prompt", Json::array({"a", "b"})}, {"rid", Json::array({"x", "y"})}};
  EXPECT_EQ(PostOk("/v1/completions", body)["id"], "x");
  EXPECT_EQ(engine_.last_request().rid, "y");
  for (const Json& rid : {Json::array({"x"}), Json::array({"x", 5}), Json(5)}) {
    Json wrong = body;
    wrong["rid"] = rid;
    const HttpResponse response = Post("/v1/completions", wrong);
    EXPECT_EQ(response.status, 400) << rid;
    EXPECT_THAT(response.body, HasSubstr("body.rid")) << rid;
  }
  EXPECT_EQ(PostOk("/v1/completions", {{"prompt", "a"}, {"rid", Json::array({"z"})}})["id"], "z");
}

TEST_F(ApiServerTest, TextCompletions) {
  Ready();
  engine_.SetAnswer("abc");
  Json answer = PostOk("/v1/completions", {{"prompt", "hey"}, {"logprobs", 1}});
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "abc");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"], Json({"a", "b", "c", "<|end|>"}));
  EXPECT_EQ(answer["choices"][0]["logprobs"]["text_offset"], Json({0, 1, 2, 3}));
  EXPECT_EQ(answer["choices"][0]["logprobs"]["token_logprobs"], Json({-0.5, -0.5, -0.5, -0.5}));
  EXPECT_EQ(answer["choices"][0]["logprobs"]["top_logprobs"][0], (Json{{"a", -1.0}}));
  EXPECT_EQ(engine_.last_request().sampling.max_new_tokens, 16);
  answer = PostOk("/v1/completions",
                  {{"prompt", Json::array({Json::array({1, 2}), Json::array({3})})}, {"n", 2}});
  EXPECT_EQ(answer["choices"].size(), 4u);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  std::string text;
  for (const Json& event : PostStream("/v1/completions", {{"prompt", "hey"}})) {
    text += event["choices"][0]["text"];
  }
  EXPECT_EQ(text, "abc");
  for (const char* body :
       {"{}", R"({"prompt":5})", R"({"prompt":[]})", R"({"prompt":[["a"]]})",
        R"({"prompt":"a","max_tokens":-1})", R"({"prompt":"a","logprobs":true})"}) {
    EXPECT_EQ(Call("POST", "/v1/completions", body).status, 400) << body;
  }
  answer = PostOk("/v1/completions",
                  {{"prompt", Json::array({"hey ", Json::array({65, 66})})}, {"echo", true}});
  EXPECT_EQ(answer["choices"][0]["text"], "hey abc");
  EXPECT_EQ(answer["choices"][1]["text"], "ABabc");
  text.clear();
  for (const Json& event :
       PostStream("/v1/completions", {{"prompt", "hey "}, {"echo", true}, {"stream", true}})) {
    text += event["choices"][0]["text"];
  }
  EXPECT_EQ(text, "hey abc");
}

TEST_F(ApiServerTest, TokenizeAndDetokenize) {
  EXPECT_EQ(Call("GET", "/ready").status, 503);
  Ready();
  EXPECT_EQ(Call("GET", "/ready").status, 200);
  for (const std::string root : {"", "/v1"}) {
    Json answer = PostOk(root + "/tokenize", {{"prompt", "ab"}});
    EXPECT_EQ(answer["tokens"], Json({97, 98}));
    EXPECT_EQ(answer["count"], 2);
    EXPECT_EQ(answer["max_model_len"], 200);
    answer = PostOk(root + "/tokenize", {{"prompt", Json({"a", "bc"})}});
    EXPECT_EQ(answer["tokens"], Json::parse("[[97],[98,99]]"));
    EXPECT_EQ(answer["count"], Json({1, 2}));
    const auto text_of = [&](const Json& body) {
      return PostOk(root + "/detokenize", body)["text"];
    };
    EXPECT_EQ(text_of({{"tokens", Json({97, 98, 256})}}), "ab");
    EXPECT_EQ(text_of({{"tokens", Json({97, 256})}, {"skip_special_tokens", false}}), "a<|end|>");
    EXPECT_EQ(text_of({{"tokens", Json::parse("[[97],[]]")}}), Json({"a", ""}));
    EXPECT_EQ(text_of({{"tokens", Json({0xC3})}}), "\uFFFD");
    for (const char* body : {"{}", "[]", R"({"tokens":"a"})", R"({"tokens":[[97],"a"]})",
                             R"({"tokens":[258]})", R"({"tokens":[-1]})"}) {
      EXPECT_EQ(Call("POST", root + "/detokenize", body).status, 400) << body;
    }
    for (const char* body : {"{}", "[]", R"({"prompt":5})", R"({"prompt":["a",5]})"}) {
      EXPECT_EQ(Call("POST", root + "/tokenize", body).status, 400) << body;
    }
  }
}

TEST_F(ApiServerTest, ManyStreamsAtOnceAndHalfOfThemLeave) {
  Ready();
  engine_.SetScript({{}, false, OkStatus()});
  engine_.SetStepUs(5000);
  std::vector<std::thread> callers;
  std::atomic<int> whole{0};
  for (int i = 0; i < 32; ++i) {
    callers.emplace_back([&, i] {
      auto client = NewClient();
      auto result = client->Stream(
          "POST", "/generate", {},
          R"({"text":"a","stream":true,"sampling_params":{"max_new_tokens":20}})",
          [&](std::string_view) { return i % 2 == 0; }, nullptr);
      if (result.ok()) ++whole;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(whole, 16);
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
}

}  // namespace
}  // namespace tern
