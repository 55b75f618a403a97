// ServerTest: an ApiServer with a FakeEngine behind a real socket. Thread: the test's.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "server/api_server.h"
#include "server/errors.h"
#include "server/fake_engine.h"

namespace tern {

class ServerTest : public testing::Test {
 protected:
  void SetUp() override { StartServer({}); }

  void StartServer(ApiServerOptions options) {
    http_.reset();
    options.version = "test";
    api_ = std::make_unique<ApiServer>(std::move(options), registry_);
    HttpServerOptions http_options;
    http_options.error_body = ErrorBody;
    auto http =
        HttpServer::Start("127.0.0.1", 0, http_options,
                          [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
                            api_->Handle(std::move(request), std::move(writer));
                          });
    ASSERT_TRUE(http.ok()) << http.status().message();
    http_ = std::move(http).value();
    client_ = NewClient();
  }
  ServedModel Model() {
    ServedModel model;
    model.name = "fake";
    model.path = "/models/fake";
    model.architecture = "FakeForCausalLM";
    model.model_type = "fake";
    model.context_length = 200;
    model.tokenizer = tokenizer_;
    model.chat_template = std::make_shared<PlainTemplate>();
    model.sampling.top_k = 7;
    model.kv_cache_format = "bf16";
    model.engine = &engine_;
    return model;
  }
  void Ready() { api_->SetReady(Model()); }

  std::unique_ptr<HttpClient> NewClient() {
    return std::move(HttpClient::Create(fmt::format("http://127.0.0.1:{}", http_->port()))).value();
  }
  HttpResponse Call(std::string_view method, std::string_view target, std::string_view body = "",
                    const HttpHeaders& headers = {}) {
    auto response = client_->Request(method, target, headers, body, 10'000'000);
    EXPECT_TRUE(response.ok()) << response.status().message();
    return response.ok() ? std::move(response).value() : HttpResponse{};
  }
  HttpResponse Post(std::string_view target, const Json& body) {
    return Call("POST", target, DumpJson(body));
  }
  // The JSON of a 200 answer.
  Json PostOk(std::string_view target, const Json& body) {
    const HttpResponse response = Post(target, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return ParseJson(response.body).ok() ? *ParseJson(response.body) : Json();
  }
  // The events of a stream; the last must be [DONE], which is left out.
  std::vector<Json> PostStream(std::string_view target, Json body) {
    body["stream"] = true;
    const HttpResponse response = Post(target, body);
    EXPECT_EQ(response.status, 200) << response.body;
    std::vector<Json> events;
    std::string_view rest = response.body;
    bool done = false;
    while (!rest.empty()) {
      const size_t end = rest.find("\n\n");
      if (end == std::string_view::npos || rest.substr(0, 6) != "data: ") {
        ADD_FAILURE() << "not an event: " << rest;
        break;
      }
      const std::string_view data = rest.substr(6, end - 6);
      rest.remove_prefix(end + 2);
      EXPECT_FALSE(done) << "an event after [DONE]";
      done = data == "[DONE]";
      if (!done) events.push_back(ParseJson(data).value());
    }
    EXPECT_TRUE(done) << response.body;
    return events;
  }
  template <typename Condition>
  static bool Eventually(Condition condition) {
    for (int i = 0; i < 1500; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return condition();
  }
  static Json ChatBody() {
    return {{"model", "fake"},
            {"messages", Json::array({Json{{"role", "user"}, {"content", "hi"}}})}};
  }

  // The engine dies first: its last events still find the network thread.
  std::shared_ptr<ByteTokenizer> tokenizer_ = std::make_shared<ByteTokenizer>();
  MetricRegistry registry_;
  std::unique_ptr<ApiServer> api_;
  std::unique_ptr<HttpServer> http_;
  FakeEngine engine_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace tern
