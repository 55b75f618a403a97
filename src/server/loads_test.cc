#include "server/loads.h"

#include <gmock/gmock.h>

#include "server/test_server.h"

namespace tern {
namespace {

using testing::HasSubstr;
using testing::Not;

class LoadsTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    Ready();
  }
  Json Load(const std::string& query) {
    const HttpResponse response = Call("GET", "/v1/loads" + query);
    EXPECT_EQ(response.status, 200) << response.body;
    return ParseJson(response.body).value()["loads"][0];
  }
};

// As sglang-router asks for it on behalf of its clients.
TEST_F(LoadsTest, TheShortFormIsAListOfRanks) {
  EXPECT_EQ(ParseJson(Call("GET", "/get_load").body).value(),
            Json::parse(R"([{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}])"));
}

TEST_F(LoadsTest, HasSglangsNamesInAllSections) {
  const Json document = ParseJson(Call("GET", "/v1/loads").body).value();
  EXPECT_EQ(document["version"], "test");
  EXPECT_EQ(document["dp_rank_count"], 1);
  EXPECT_THAT(document["timestamp"].get<std::string>(),
              testing::MatchesRegex("....-..-..T..:..:..\\+00:00"));
  const Json& load = document["loads"][0];
  for (const char* name : {"timestamp",
                           "dp_rank",
                           "num_running_reqs",
                           "num_waiting_reqs",
                           "num_waiting_uncached_tokens",
                           "num_used_tokens",
                           "num_total_tokens",
                           "num_active_tokens",
                           "num_prealloc_ready_tokens",
                           "max_total_num_tokens",
                           "max_running_requests",
                           "token_usage",
                           "gen_throughput",
                           "cache_hit_rate",
                           "utilization",
                           "total_prefill_uncached_tokens",
                           "total_prefill_busy_us",
                           "decode_moments",
                           "memory",
                           "disaggregation",
                           "queues"}) {
    EXPECT_TRUE(load.contains(name)) << name;
  }
  EXPECT_EQ(load["max_total_num_tokens"], 1024);
  for (const char* name : {"weight_gb", "kv_cache_gb", "graph_gb", "token_capacity"}) {
    EXPECT_TRUE(load["memory"].contains(name)) << name;
  }
  for (const char* name : {"waiting", "grammar", "paused", "retracted", "prealloc_ready"}) {
    EXPECT_TRUE(load["queues"].contains(name)) << name;
  }
  EXPECT_EQ(load["disaggregation"]["mode"], "null");
}

TEST_F(LoadsTest, IncludeChoosesSections) {
  Json load = Load("?include=core,%20queues");
  EXPECT_TRUE(load.contains("queues") && load.contains("num_running_reqs"));
  EXPECT_FALSE(load.contains("memory") || load.contains("disaggregation"));
  load = Load("?include=disagg,memory&dp_rank=0");
  EXPECT_TRUE(load.contains("memory") && load.contains("disaggregation"));
  EXPECT_FALSE(load.contains("queues"));
  EXPECT_TRUE(Load("?include=all").contains("queues"));
  for (const char* query : {"?include=core,nonsense", "?format=xml", "?dp_rank=1", "?dp_rank=x"}) {
    EXPECT_EQ(Call("GET", std::string("/v1/loads") + query).status, 400) << query;
  }
}

TEST_F(LoadsTest, PrometheusHasTheNumbersAsGauges) {
  const HttpResponse response = Call("GET", "/v1/loads?format=prometheus&include=core,memory");
  EXPECT_EQ(response.status, 200);
  EXPECT_THAT(*FindHeader(response.headers, "Content-Type"), HasSubstr("text/plain"));
  EXPECT_THAT(response.body, HasSubstr("# TYPE sglang_max_total_num_tokens gauge\n"
                                       "sglang_max_total_num_tokens{dp_rank=\"0\"} 1024\n"));
  EXPECT_THAT(response.body, HasSubstr("sglang_memory_token_capacity{dp_rank=\"0\"} 1024\n"));
  EXPECT_THAT(response.body, Not(HasSubstr("queues")));
}

}  // namespace
}  // namespace tern
