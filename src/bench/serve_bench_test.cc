#include "bench/serve_bench.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "net/http_server.h"

namespace tern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SseReaderTest, EventsSurviveEveryCut) {
  const std::string stream =
      "data: {\"a\": 1}\r\n\r\n: note\ndata:two\n\nevent: x\ndata: [DONE]\n\n";
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    SseReader reader;
    std::vector<std::string> events;
    const auto take = [&](std::string_view data) { events.emplace_back(data); };
    reader.Feed(std::string_view(stream).substr(0, cut), take);
    reader.Feed(std::string_view(stream).substr(cut), take);
    EXPECT_THAT(events, ElementsAre("{\"a\": 1}", "two", "[DONE]")) << cut;
  }
}

// Latencies by hand: three answered requests, one failure.
TEST(ServeBenchTest, FiguresAreThoseOfTheRecords) {
  ServeBenchOptions options{.ttft_goal_ms = 250, .itl_goal_ms = 60};
  ServeBenchResult result;
  result.records = {
      {.start = 0.0, .first = 0.1, .last = 0.2, .gaps = {0.05, 0.05}, .output_tokens = 3},
      {.start = 0.5, .first = 0.7, .last = 0.9, .gaps = {0.2}, .output_tokens = 2},  // slow token
      {.start = 1.0, .first = 1.3, .last = 1.3, .gaps = {}, .output_tokens = 1},     // slow start
      {.error = "status 503"}};
  result.seconds = 2.0;
  const ServeFigures figures = FiguresOf(options, result);
  EXPECT_EQ(figures.answered, 3);
  EXPECT_EQ(figures.failed, 1);
  EXPECT_NEAR(figures.ttft.p50, 200, 1e-9);
  EXPECT_NEAR(figures.ttft.p90, 300, 1e-9);
  EXPECT_NEAR(figures.ttft.mean, 200, 1e-9);
  EXPECT_NEAR(figures.itl.p50, 50, 1e-9);
  EXPECT_NEAR(figures.itl.p99, 200, 1e-9);
  EXPECT_NEAR(figures.tpot.p50, 50, 1e-9);
  EXPECT_NEAR(figures.whole.p99, 400, 1e-9);
  EXPECT_DOUBLE_EQ(figures.requests_per_s, 1.5);
  EXPECT_DOUBLE_EQ(figures.output_tokens_per_s, 3);
  EXPECT_DOUBLE_EQ(figures.goodput, 0.5);
  EXPECT_DOUBLE_EQ(figures.good_share, 0.25);
}

class ServeBenchServerTest : public testing::Test {
 protected:
  void Start(int status) {
    auto server = HttpServer::Start(
        "127.0.0.1", 0, {}, [=, this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
          bodies_.push_back(std::move(request.body));
          if (status != 200) return writer->Send(status, {}, "busy");
          writer->BeginStream(200, {{"Content-Type", "text/event-stream"}});
          for (const char* text : {"a", "b", "c"}) {
            writer->Write(fmt::format("data: {{\"choices\": [{{\"text\": \"{}\"}}]}}\n\n", text));
          }
          writer->Write(
              "data: {\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}\n\n"
              "data: {\"choices\": [], \"usage\": {\"completion_tokens\": 5}}\n\ndata: [DONE]\n\n");
          writer->End();
        });
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    options_.url = fmt::format("http://127.0.0.1:{}", server_->port());
  }

  std::vector<std::string> bodies_;  // the network thread's, until the server is gone
  ServeBenchOptions options_{
      .requests = 6, .warm_ups = 2, .concurrency = 3, .prompt_tokens = 4, .output_tokens = 5};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ServeBenchServerTest, ClosedLoopSendsExactPromptsAndCountsTheServersTokens) {
  Start(200);
  const auto result = RunServeBench(options_, [](int64_t, int64_t) {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  server_.reset();
  ASSERT_EQ(bodies_.size(), 8u);
  for (const std::string& text : bodies_) {
    const Json body = ParseJson(text).value();
    EXPECT_EQ(body["prompt"].size(), 4u);
    EXPECT_EQ(body["max_tokens"], 5);
    for (const Json& id : body["prompt"]) EXPECT_TRUE(id >= 100 && id < 250) << id;
  }
  ASSERT_EQ(result->records.size(), 6u);
  for (const RequestRecord& record : result->records) {
    EXPECT_EQ(record.error, "");
    EXPECT_EQ(record.output_tokens, 5);
    EXPECT_EQ(record.gaps.size(), 2u);
    EXPECT_LE(record.start, record.first);
    EXPECT_LE(record.first, record.last);
  }
  EXPECT_EQ(FiguresOf(options_, *result).failed, 0);
}

TEST_F(ServeBenchServerTest, OpenLoopStartsRequestsWhenTheyAreDue) {
  Start(200);
  options_.rate = 100;
  const auto result = RunServeBench(options_, [](int64_t, int64_t) {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  for (size_t i = 1; i < result->records.size(); ++i) {
    EXPECT_LT(result->records[i - 1].start, result->records[i].start);
  }
}

TEST_F(ServeBenchServerTest, AServerThatRefusesIsAnError) {
  Start(503);
  const auto result = RunServeBench(options_, [](int64_t, int64_t) {});
  EXPECT_THAT(result.status().message(), HasSubstr("status 503: busy"));
  options_.url = "ftp://nowhere";
  EXPECT_FALSE(RunServeBench(options_, [](int64_t, int64_t) {}).ok());
}

}  // namespace
}  // namespace tern
