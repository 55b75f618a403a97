#include "server/disaggregation.h"

#include <set>

#include "server/test_server.h"

namespace tern {
namespace {

using testing::HasSubstr;

class DisaggregationTest : public ServerTest {
 protected:
  void Become(EngineRole role, const char* mode) {
    ServedModel model = Model();
    model.disaggregation.role = role;
    model.disaggregation.mode = mode;
    model.disaggregation.peers = PeerList::Parse("127.0.0.0/8").value();
    api_->SetReady(std::move(model));
    engine_.SetAnswer("ok");
  }
  // The rendezvous of `count` choices of a body.
  Result<std::vector<Rendezvous>> Rooms(Json body, size_t count) {
    ServedModel model = Model();
    model.disaggregation = {.mode = "decode", .role = EngineRole::kDecode, .bootstrap_port = 1234};
    model.disaggregation.peers = PeerList::Parse("127.0.0.0/8").value();
    std::vector<ChoiceSpec> choices(count);
    TERN_RETURN_IF_ERROR(AddRendezvous(body, model, &choices));
    std::vector<Rendezvous> rooms;
    for (const ChoiceSpec& choice : choices) rooms.push_back(choice.request.rendezvous.value());
    return rooms;
  }
};

TEST_F(DisaggregationTest, ScalarsAndArraysGiveEachChoiceARoom) {
  const Json scalar = {{"bootstrap_host", "127.0.0.1"}, {"bootstrap_room", 7}};
  auto rooms = Rooms(scalar, 1).value();
  EXPECT_EQ(rooms[0].host, "127.0.0.1");
  EXPECT_EQ(rooms[0].port, 1234);  // the worker's own
  EXPECT_EQ(rooms[0].room, 7u);

  // A router gives a room to each prompt, or to each of n; what is left is made from them, and is
  // the same at both workers.
  rooms = Rooms(scalar, 3).value();
  EXPECT_EQ(rooms[0].room, 7u);
  EXPECT_EQ((std::set{rooms[0].room, rooms[1].room, rooms[2].room}).size(), 3u);
  EXPECT_EQ(rooms[2].room, Rooms(scalar, 3).value()[2].room);
  const uint64_t large = 6815078032026544857;
  const Json arrays = {{"bootstrap_host", {"127.0.0.1", "127.0.0.2"}},
                       {"bootstrap_port", {8998, nullptr}},
                       {"bootstrap_room", {large, 9}}};
  rooms = Rooms(arrays, 2).value();
  EXPECT_EQ(rooms[0].room, large);
  EXPECT_EQ(rooms[0].port, 8998);
  EXPECT_EQ(rooms[1].host, "127.0.0.2");
  EXPECT_EQ(rooms[1].port, 1234);
  rooms = Rooms(arrays, 4).value();
  EXPECT_EQ(rooms[0].room, large);
  EXPECT_EQ(rooms[2].room, 9u);
  EXPECT_NE(rooms[3].room, 9u);
  EXPECT_EQ(rooms[3].host, "127.0.0.2");
}

TEST_F(DisaggregationTest, WrongFieldsAreNamed) {
  const Json ok = {{"bootstrap_host", "127.0.0.1"}, {"bootstrap_room", 7}};
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"bootstrap_host", nullptr}}, "bootstrap_host is missing"},
      {{{"bootstrap_room", nullptr}}, "bootstrap_room is missing"},
      {{{"bootstrap_host", 5}}, "bootstrap_host must be a string"},
      {{{"bootstrap_host", "8.8.8.8"}}, "8.8.8.8"},
      {{{"bootstrap_port", 0}}, "bootstrap_port"},
      {{{"bootstrap_port", "x"}}, "bootstrap_port"},
      {{{"bootstrap_room", -1}}, "bootstrap_room must be"},
      {{{"bootstrap_room", 1.5}}, "bootstrap_room must be"},
      {{{"bootstrap_room", {1, 2}}}, "bootstrap_room has 2 elements for 3 choices"},
      {{{"bootstrap_room", Json::array()}}, "bootstrap_room has 0 elements"}};
  for (const auto& [change, message] : cases) {
    Json body = ok;
    body.update(change);
    const auto rooms = Rooms(body, 3);
    ASSERT_FALSE(rooms.ok()) << message;
    EXPECT_EQ(rooms.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(rooms.status().message(), HasSubstr(message));
  }
}

TEST_F(DisaggregationTest, AUnifiedWorkerIgnoresTheFields) {
  Become(EngineRole::kUnified, "null");
  Json body = {{"text", "hi"}, {"bootstrap_host", 5}, {"bootstrap_room", "x"}};
  PostOk("/generate", body);
  EXPECT_FALSE(engine_.last_request().rendezvous.has_value());
}

TEST_F(DisaggregationTest, EndpointsHandRoomsToTheEngine) {
  Become(EngineRole::kDecode, "decode");
  const Json room = {{"bootstrap_host", "127.0.0.1"}, {"bootstrap_port", 9}, {"bootstrap_room", 5}};
  Json chat = ChatBody(), text = {{"prompt", "hi"}}, native = {{"text", "hi"}};
  uint64_t number = 5;
  for (auto [path, body] : {std::pair("/v1/chat/completions", &chat),
                            std::pair("/v1/completions", &text), std::pair("/generate", &native)}) {
    EXPECT_EQ(Post(path, *body).status, 400) << path;  // no room
    body->update(room);
    (*body)["bootstrap_room"] = ++number;
    PostOk(path, *body);
    ASSERT_TRUE(engine_.last_request().rendezvous.has_value()) << path;
    EXPECT_EQ(engine_.last_request().rendezvous->room, number);
    EXPECT_EQ(engine_.last_request().rendezvous->port, 9);
  }
  const Json info = ParseJson(Call("GET", "/server_info").body).value();
  EXPECT_EQ(info["disaggregation_mode"], "decode");
  const Json loads = ParseJson(Call("GET", "/v1/loads").body).value();
  EXPECT_EQ(loads["loads"][0]["disaggregation"]["mode"], "decode");
  EXPECT_EQ(loads["loads"][0]["disaggregation"]["decode_transfer_queue_reqs"], 0);
}

TEST_F(DisaggregationTest, AHealthCheckHasNoOtherHalf) {
  Become(EngineRole::kPrefill, "prefill");
  PostOk("/generate", {{"text", "hi"},
                       {"sampling_params", {{"max_new_tokens", 100}}},
                       {"bootstrap_host", "2.2.2.2"},
                       {"bootstrap_room", 0}});
  EXPECT_FALSE(engine_.last_request().rendezvous.has_value());
  EXPECT_EQ(engine_.last_request().sampling.max_new_tokens, 1);
}

TEST_F(DisaggregationTest, ARefusedRequestsOtherHalfHearsOfIt) {
  Become(EngineRole::kDecode, "decode");
  Json body = ChatBody();
  body.update({{"bootstrap_host", {"127.0.0.1", "127.0.0.1"}},
               {"bootstrap_room", {21, 22}},
               {"n", 2},
               {"max_tokens", 100000}});
  for (const bool stream : {false, true}) {
    body["stream"] = stream;
    EXPECT_EQ(Post("/v1/chat/completions", body).status, 400);
    const auto refused = engine_.TakeRefused();
    ASSERT_EQ(refused.size(), 2u);
    EXPECT_EQ(refused[0].first.room, 21u);
    EXPECT_EQ(refused[1].first.room, 22u);
    EXPECT_THAT(refused[0].second.message(), HasSubstr("100000"));
  }
  // An error that comes later is the engine's, which tells its other half itself.
  body.erase("max_tokens");
  body["stream"] = false;
  engine_.SetScript({{}, true, Internal("later")});
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 500);
  EXPECT_TRUE(engine_.TakeRefused().empty());
}

TEST_F(DisaggregationTest, WhileItDrainsTheOtherHalfHearsToo) {
  Become(EngineRole::kDecode, "decode");
  Json body = ChatBody();
  body.update({{"bootstrap_host", "127.0.0.1"}, {"bootstrap_room", 31}});
  api_->SetDraining();
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 503);
  const auto refused = engine_.TakeRefused();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].first.room, 31u);
  EXPECT_THAT(refused[0].second.message(), HasSubstr("shutting down"));
}

}  // namespace
}  // namespace tern
