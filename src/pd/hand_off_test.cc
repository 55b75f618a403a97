// Both sides of a hand-off, over a virtual network whose frames meet every fate.
#include <gtest/gtest.h>

#include <tuple>

#include "kv/seal.h"
#include "pd/hand_off_testing.h"

namespace tern {
namespace {

using testing::Destination;
using testing::kDecode;
using testing::kPort;
using testing::kPrefill;
using testing::Prompt;
using testing::VirtualWorkers;
using testing::WorkerOptions;
using testing::Workers;

constexpr int64_t kSecond = 1'000'000;

PdFrameType TypeOf(const std::vector<std::byte>& frame) {
  return static_cast<PdFrameType>(std::to_integer<int>(frame[6]));
}
uint64_t RoomOf(const std::vector<std::byte>& frame) {
  uint64_t room = 0;
  std::memcpy(&room, frame.data() + 24, 8);
  return room;
}

// Sends room `id` from beginning to end, on workers that are there.
void ExpectServed(VirtualWorkers& w, uint64_t id, int64_t tokens = 21) {
  Prompt prompt(w.prefill.format, tokens, static_cast<uint32_t>(id));
  Destination to(&w.pool, tokens);
  ASSERT_TRUE(w.sender->Open(id, prompt.ids, &prompt).ok());
  ASSERT_TRUE(w.receiver->Open(Workers::OpenOf(id, prompt), &to).ok());
  w.sender->Finish(id, prompt.first());
  w.Settle();
  ASSERT_EQ(w.receiver->state(id), PdState::kSuccess) << w.receiver->error(id).message();
  EXPECT_EQ(w.sender->state(id), PdState::kSuccess);
  EXPECT_EQ(w.Differs(prompt, to), "");
  EXPECT_EQ(w.receiver->first_token(id), prompt.first());
  w.sender->Forget(id);
  w.receiver->Forget(id);
}

// Two rooms under way over one link, one of which something happens to.
struct TwoRooms {
  explicit TwoRooms(VirtualWorkers& workers, int64_t tokens = 30)
      : w(workers),
        a(w.prefill.format, tokens, 1),
        b(w.prefill.format, tokens, 2),
        to_a(&w.pool, tokens),
        to_b(&w.pool, tokens) {
    for (const auto& [id, prompt, to] : {std::tuple(1, &a, &to_a), std::tuple(2, &b, &to_b)}) {
      EXPECT_TRUE(w.sender->Open(static_cast<uint64_t>(id), prompt->ids, prompt).ok());
      EXPECT_TRUE(w.receiver->Open(Workers::OpenOf(static_cast<uint64_t>(id), *prompt), to).ok());
    }
  }
  ~TwoRooms() {
    for (const uint64_t id : {1, 2}) {
      w.sender->Forget(id);
      w.receiver->Forget(id);
    }
    w.Settle();
    to_a.Release();
    to_b.Release();
    EXPECT_EQ(w.pool.count(PageState::kFree), w.pool.pages());
    EXPECT_TRUE(w.pool.CheckInvariants().ok());
  }
  void Finish() {
    w.sender->Finish(1, a.first());
    w.sender->Finish(2, b.first());
  }
  VirtualWorkers& w;
  Prompt a, b;
  Destination to_a, to_b;
};

class HandOffFormats : public ::testing::TestWithParam<std::tuple<KvFormat, bool, int, int>> {};

TEST_P(HandOffFormats, PagesArriveBitForBit) {
  const auto [format, at_receiver, prefill_page, decode_page] = GetParam();
  VirtualWorkers w({.decode_format = format,
                    .prefill_page = prefill_page,
                    .decode_page = decode_page,
                    .convert_at_receiver = at_receiver,
                    .prefill_secret = at_receiver ? "sixteen bytes ok" : "",
                    .decode_secret = at_receiver ? "sixteen bytes ok" : ""});
  uint64_t id = 0;
  for (const int64_t tokens : {1, 8, 15, 16, 17, 70}) ExpectServed(w, ++id, tokens);
  EXPECT_EQ(w.sender->stats().rooms_succeeded, 6);
  EXPECT_EQ(w.receiver->stats().pages, w.sender->stats().pages);
  EXPECT_EQ(w.receiver->stats().page_bytes, w.sender->stats().page_bytes);
}

INSTANTIATE_TEST_SUITE_P(All, HandOffFormats,
                         ::testing::Combine(::testing::Values(KvFormat::kBf16, KvFormat::kFp8E4m3,
                                                              KvFormat::kFp8Tiled,
                                                              KvFormat::kFp8DsMla),
                                            ::testing::Bool(), ::testing::Values(16, 64),
                                            ::testing::Values(8, 64)));

TEST(HandOff, PagesLeaveWhileLaterOnesAreComputed) {
  VirtualWorkers w;
  Prompt prompt(w.prefill.format, 40, 1);
  Destination to(&w.pool, 40);
  ASSERT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  EXPECT_EQ(w.sender->state(1), PdState::kBootstrapping);
  ASSERT_TRUE(w.receiver->Open(Workers::OpenOf(1, prompt), &to).ok());
  EXPECT_EQ(w.receiver->state(1), PdState::kBootstrapping);
  w.Settle();
  EXPECT_EQ(w.sender->state(1), PdState::kWaitingForInput);
  EXPECT_EQ(w.receiver->state(1), PdState::kWaitingForInput);
  for (const auto& [rows, pages] : {std::pair(7, 0), {8, 1}, {20, 2}, {39, 4}}) {
    w.sender->Computed(1, rows);
    w.Settle();
    EXPECT_EQ(to.landed, pages) << rows;
  }
  EXPECT_EQ(w.receiver->state(1), PdState::kTransferring);
  w.sender->Computed(1, 40);
  w.Settle();
  EXPECT_EQ(to.landed, 5);
  EXPECT_EQ(w.receiver->state(1), PdState::kTransferring);  // not before LAST
  w.sender->Finish(1, prompt.first());
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kSuccess);
  EXPECT_EQ(w.sender->state(1), PdState::kSuccess);
}

TEST(HandOff, EitherSideMayComeFirst) {
  VirtualWorkers w;
  Prompt prompt(w.prefill.format, 9, 1);
  Destination to(&w.pool, 9);
  ASSERT_TRUE(w.receiver->Open(Workers::OpenOf(1, prompt), &to).ok());
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kWaitingForInput);
  ASSERT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  EXPECT_EQ(w.sender->state(1), PdState::kWaitingForInput);
  w.sender->Finish(1, prompt.first());
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kSuccess);
  EXPECT_EQ(w.Differs(prompt, to), "");
}

// ---- Frames ---------------------------------------------------------------------------------

// The first frame of `type` of room 1 meets `change`; others pass.
VirtualNetwork::Policy FirstOf(PdFrameType type,
                               std::function<VirtualFate(std::vector<std::byte>*)> change) {
  return [type, change, met = std::make_shared<bool>(false)](bool, std::vector<std::byte>* frame) {
    if (*met || TypeOf(*frame) != type || RoomOf(*frame) > 1) return VirtualFate{};
    *met = true;
    return change(frame);
  };
}

TEST(HandOff, ADamagedPayloadEndsItsRoomAndNoOther) {
  VirtualWorkers w({}, FirstOf(PdFrameType::kPage, [](std::vector<std::byte>* frame) {
                     frame->back() ^= std::byte{4};
                     return VirtualFate{};
                   }));
  TwoRooms rooms(w);
  rooms.Finish();
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDataLoss);
  EXPECT_NE(w.receiver->error(1).message().find("fails its seal in layer"), std::string::npos);
  EXPECT_EQ(w.sender->state(1), PdState::kFailed);
  EXPECT_NE(w.sender->error(1).message().find("fails its seal"), std::string::npos);
  EXPECT_EQ(rooms.to_a.sums[0].size(), 0u);  // not admitted
  EXPECT_EQ(w.receiver->state(2), PdState::kSuccess);
  EXPECT_EQ(w.Differs(rooms.b, rooms.to_b), "");
  EXPECT_EQ(w.receiver->stats().bad_pages, 1);
  ExpectServed(w, 3);
}

TEST(HandOff, ADamagedSumEndsItsRoomAndNoOther) {
  VirtualWorkers w({}, FirstOf(PdFrameType::kPage, [](std::vector<std::byte>* frame) {
                     (*frame)[kPdHeaderBytes + 3] ^= std::byte{1};
                     return VirtualFate{};
                   }));
  TwoRooms rooms(w);
  rooms.Finish();
  w.Settle();
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDataLoss);
  EXPECT_EQ(w.receiver->state(2), PdState::kSuccess);
}

TEST(HandOff, ADamagedFirstTokenIsNotTaken) {
  VirtualWorkers w({}, FirstOf(PdFrameType::kLast, [](std::vector<std::byte>* frame) {
                     (*frame)[kPdHeaderBytes + 40] ^= std::byte{1};  // the token
                     return VirtualFate{};
                   }));
  TwoRooms rooms(w);
  rooms.Finish();
  w.Settle();
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDataLoss);
  EXPECT_EQ(w.sender->state(1), PdState::kFailed);
  EXPECT_EQ(w.receiver->state(2), PdState::kSuccess);
}

TEST(HandOff, ADamagedHeaderEndsTheConnectionAndTheNextRequestIsServed) {
  VirtualWorkers w({}, FirstOf(PdFrameType::kPage, [](std::vector<std::byte>* frame) {
                     (*frame)[44] ^= std::byte{1};  // the page's index
                     return VirtualFate{};
                   }));
  TwoRooms rooms(w);
  rooms.Finish();
  w.RunFor(kSecond);
  for (const uint64_t id : {1, 2}) {
    EXPECT_EQ(w.receiver->state(id), PdState::kFailed);
    EXPECT_EQ(w.sender->state(id), PdState::kFailed);
    EXPECT_NE(w.receiver->error(id).message().find("lost the prefill worker"), std::string::npos)
        << w.receiver->error(id).message();
  }
  ExpectServed(w, 3);
}

TEST(HandOff, AnOversizedFrameEndsTheConnection) {
  VirtualWorkers w({}, FirstOf(PdFrameType::kLast, [](std::vector<std::byte>* frame) {
                     PdHeader header =
                         DecodePdHeader(std::span(*frame).first<kPdHeaderBytes>()).value();
                     header.body_bytes = 0xFFFFFFF0u;
                     EncodePdHeader(header, std::span(*frame).first<kPdHeaderBytes>());
                     return VirtualFate{};
                   }));
  TwoRooms rooms(w);
  rooms.Finish();
  w.RunFor(kSecond);
  EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
  EXPECT_NE(w.receiver->error(1).message().find("the limit is"), std::string::npos)
      << w.receiver->error(1).message();
  ExpectServed(w, 3);
}

TEST(HandOff, DoubledFramesChangeNothing) {
  for (const char* secret : {"", "sixteen bytes ok"}) {
    VirtualWorkers w({.prefill_secret = secret, .decode_secret = secret},
                     [](bool, std::vector<std::byte>* frame) {
                       return VirtualFate{.copies = TypeOf(*frame) < PdFrameType::kRequest ? 1 : 2,
                                          .copy_delay_us = 3};
                     });
    TwoRooms rooms(w);
    rooms.Finish();
    w.RunFor(kSecond);
    for (const uint64_t id : {1, 2}) EXPECT_EQ(w.receiver->state(id), PdState::kSuccess);
    EXPECT_EQ(w.Differs(rooms.a, rooms.to_a), "");
    EXPECT_EQ(w.Differs(rooms.b, rooms.to_b), "");
    EXPECT_GE(w.network.stats().duplicate_frames, 8);
    EXPECT_EQ(w.receiver->stats().bad_pages, 0);
  }
}

TEST(HandOff, PagesMayOvertakeEachOther) {
  VirtualWorkers w({}, [n = 0](bool, std::vector<std::byte>* frame) mutable {
    const bool page = TypeOf(*frame) == PdFrameType::kPage;
    return VirtualFate{.delay_us = page ? 1000 - 200 * (n++ % 4) : 0};
  });
  TwoRooms rooms(w);
  rooms.Finish();  // LAST too is there before its pages
  w.RunFor(kSecond / 2);
  for (const uint64_t id : {1, 2}) EXPECT_EQ(w.receiver->state(id), PdState::kSuccess);
  EXPECT_EQ(w.Differs(rooms.a, rooms.to_a), "");
}

TEST(HandOff, ALatePageEndsItsRoomAndNeverLands) {
  VirtualWorkers w(
      {}, FirstOf(PdFrameType::kPage, [](auto*) { return VirtualFate{.delay_us = 3 * kSecond}; }));
  TwoRooms rooms(w);
  rooms.Finish();
  w.RunFor(2 * kSecond);  // the stated time-out is 1 s after LAST
  EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(w.receiver->state(2), PdState::kSuccess);
  // Its pages go to somebody else at once.
  rooms.to_a.Release();
  Destination next(&w.pool, 30);
  for (const PageRef ref : next.refs) {
    std::fill_n(w.pool.base(ref.id) + 64, w.decode.format.page_bytes() - 64, std::byte{0x5A});
  }
  w.RunFor(5 * kSecond);
  EXPECT_EQ(w.network.stats().dropped_frames, 1);
  for (const PageRef ref : next.refs) {
    const std::byte* page = w.pool.base(ref.id);
    EXPECT_TRUE(std::all_of(page + 64, page + w.decode.format.page_bytes(),
                            [](std::byte b) { return b == std::byte{0x5A}; }));
  }
  // The slot came back with the late frame.
  ExpectServed(w, 3);
}

TEST(HandOff, ACutInAFrameEndsItsRoomsAtOnce) {
  for (const PdFrameType type : {PdFrameType::kPage, PdFrameType::kLast, PdFrameType::kRequest}) {
    for (const int64_t after : {0, 10, 64, 80}) {
      VirtualWorkers w({},
                       FirstOf(type, [&](auto*) { return VirtualFate{.cut_after_bytes = after}; }));
      TwoRooms rooms(w);
      rooms.Finish();
      w.Settle();
      EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
      EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kUnavailable);
      EXPECT_NE(w.receiver->error(1).message().find("cut"), std::string::npos);
      // Also when the REQUEST was lost with the connection: prefill would wait to be asked.
      EXPECT_EQ(w.sender->state(1), PdState::kFailed);
      ExpectServed(w, 3);
    }
  }
}

// Whatever frame is lost, both sides end, and in a stated time.
TEST(HandOff, ALostFrameEndsBothSides) {
  for (const PdFrameType type : {PdFrameType::kRequest, PdFrameType::kPage}) {
    VirtualWorkers w({}, FirstOf(type, [](auto*) { return VirtualFate{.copies = 0}; }));
    TwoRooms rooms(w);
    rooms.Finish();
    w.RunFor((type == PdFrameType::kPage ? 2 : 301) * kSecond);
    EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
    EXPECT_EQ(w.sender->state(1), PdState::kFailed);
    ExpectServed(w, 3);
  }
}

// Without DONE, LAST is sent again, also to a receiver that has forgotten the room.
TEST(HandOff, ALostEndIsSaidAgain) {
  struct Case {
    PdFrameType lost;
    bool forgotten;
  };
  for (const auto& [lost, forgotten] : {Case{PdFrameType::kLast, false},
                                        {PdFrameType::kAck, false},
                                        {PdFrameType::kDone, false},
                                        {PdFrameType::kDone, true}}) {
    VirtualWorkers w({}, FirstOf(lost, [](auto*) { return VirtualFate{.copies = 0}; }));
    TwoRooms rooms(w);
    rooms.Finish();
    w.Settle();
    if (forgotten) w.receiver->Forget(1);
    w.RunFor(kSecond);
    if (!forgotten) {
      EXPECT_EQ(w.receiver->state(1), PdState::kSuccess);
    }
    EXPECT_EQ(w.sender->state(1), PdState::kSuccess) << w.sender->error(1).message();
    EXPECT_EQ(w.sender->state(2), PdState::kSuccess);
    ExpectServed(w, 3);
  }
}

// A receiver that answers no LAST: the stated time.
TEST(HandOff, WithoutDoneThePrefillSideEndsInTenSeconds) {
  VirtualWorkers w({}, [](bool, std::vector<std::byte>* frame) {
    return VirtualFate{.copies = TypeOf(*frame) == PdFrameType::kDone ? 0 : 1};
  });
  TwoRooms rooms(w);
  rooms.Finish();
  w.RunFor(9 * kSecond);
  EXPECT_EQ(w.receiver->state(1), PdState::kSuccess);
  EXPECT_EQ(w.sender->state(1), PdState::kTransferring);
  w.RunFor(kSecond + kSecond / 10);
  EXPECT_EQ(w.sender->state(1), PdState::kFailed);
  EXPECT_EQ(w.sender->error(1).code(), StatusCode::kDeadlineExceeded);
}

// ---- Handshakes -----------------------------------------------------------------------------

std::string RefusedWith(WorkerOptions options, VirtualNetwork::Policy policy = {}) {
  VirtualWorkers w(std::move(options), std::move(policy));
  Prompt prompt(w.prefill.format, 9, 1);
  Destination to(&w.pool, 9);
  EXPECT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  EXPECT_TRUE(w.receiver->Open(Workers::OpenOf(1, prompt), &to).ok());
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
  EXPECT_EQ(w.receiver->stats().bootstraps_failed, 1);
  EXPECT_EQ(w.sender->state(1), PdState::kBootstrapping);
  EXPECT_EQ(to.landed, 0);
  return w.receiver->error(1).message();
}

TEST(HandOff, WrongPeersAreRefused) {
  const std::string secret = "sixteen bytes ok", other = "other sixteen by";
  EXPECT_NE(RefusedWith({.prefill_secret = secret, .decode_secret = other}).find("secret"),
            std::string::npos);
  EXPECT_NE(RefusedWith({.prefill_secret = secret}).find("secret"), std::string::npos);
  EXPECT_NE(RefusedWith({.decode_secret = secret}).find("secret"), std::string::npos);
  EXPECT_NE(RefusedWith({.other_model = true}).find("different models"), std::string::npos);
  EXPECT_NE(
      RefusedWith({.prefill_format = KvFormat::kFp8Tiled, .decode_format = KvFormat::kFp8E4m3})
          .find("fp8_tiled rows can't become fp8_e4m3 rows"),
      std::string::npos);
  const auto version = FirstOf(PdFrameType::kHello, [](std::vector<std::byte>* frame) {
    (*frame)[4] = std::byte{2};
    return VirtualFate{};
  });
  EXPECT_NE(RefusedWith({}, version).find("version 2"), std::string::npos);
  const auto garbage = FirstOf(PdFrameType::kHello, [](std::vector<std::byte>* frame) {
    std::fill(frame->begin() + 64, frame->end(), std::byte{0xFF});
    return VirtualFate{};
  });
  EXPECT_NE(RefusedWith({}, garbage).find("HELLO"), std::string::npos);
}

TEST(HandOff, ASilentPeerIsGivenUp) {
  VirtualWorkers w({}, [](bool to_sender, std::vector<std::byte>*) {
    return VirtualFate{.copies = to_sender ? 1 : 0};
  });
  Prompt prompt(w.prefill.format, 9, 1);
  Destination to(&w.pool, 9);
  ASSERT_TRUE(w.receiver->Open(Workers::OpenOf(1, prompt), &to).ok());
  w.RunFor(5 * kSecond);
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDeadlineExceeded);
}

// A frame that an attacker made or recorded.
TEST(HandOff, AForgedFrameEndsTheConnection) {
  const std::string secret = "sixteen bytes ok";
  VirtualWorkers w({.prefill_secret = secret, .decode_secret = secret},
                   FirstOf(PdFrameType::kLast, [](std::vector<std::byte>* frame) {
                     frame->back() ^= std::byte{1};  // of the mac
                     return VirtualFate{};
                   }));
  TwoRooms rooms(w);
  rooms.Finish();
  w.RunFor(kSecond);
  EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
  EXPECT_NE(w.receiver->error(1).message().find("wrong mac"), std::string::npos)
      << w.receiver->error(1).message();
}

// ---- Rooms ----------------------------------------------------------------------------------

TEST(HandOff, ANumberIsARoomOnce) {
  VirtualWorkers w;
  TwoRooms rooms(w);
  // Twice on one side.
  Prompt again(w.prefill.format, 5, 9);
  Destination to(&w.pool, 5);
  EXPECT_EQ(w.sender->Open(1, again.ids, &again).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(w.receiver->Open(Workers::OpenOf(1, again), &to).code(), StatusCode::kInvalidArgument);
  // From another decode worker.
  auto link = w.Link(PdHello::Role::kReceiver);
  link.self.boot_nonce = 99;
  const auto transport = w.network.AddReceiver(3, link);
  PdReceiver second(w.ReceiverOptions(), *w.ops, w.clock, *transport);
  w.Settle();
  ASSERT_TRUE(second.Open(Workers::OpenOf(1, again), &to).ok());
  for (int i = 0; i < 8; ++i) {
    w.Settle();
    second.Step();
  }
  EXPECT_EQ(second.state(1), PdState::kFailed);
  EXPECT_NE(second.error(1).message().find("in use"), std::string::npos);
  // The first one goes on.
  rooms.Finish();
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kSuccess);
  EXPECT_EQ(w.Differs(rooms.a, rooms.to_a), "");
  // And afterwards the number is spent.
  w.sender->Forget(1);
  w.receiver->Forget(1);
  EXPECT_NE(w.sender->Open(1, again.ids, &again).message().find("used before"), std::string::npos);
  EXPECT_NE(w.receiver->Open(Workers::OpenOf(1, again), &to).message().find("used before"),
            std::string::npos);
}

TEST(HandOff, DifferentTokensEndTheRoom) {
  VirtualWorkers w;
  Prompt prompt(w.prefill.format, 9, 1), other(w.prefill.format, 9, 2);
  Destination to(&w.pool, 9);
  ASSERT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  ASSERT_TRUE(w.receiver->Open(Workers::OpenOf(1, other), &to).ok());
  w.sender->Finish(1, prompt.first());
  w.Settle();
  EXPECT_NE(w.receiver->error(1).message().find("different tokens"), std::string::npos);
  EXPECT_NE(w.sender->error(1).message().find("different tokens"), std::string::npos);
  EXPECT_EQ(to.landed, 0);
}

TEST(HandOff, ARetractedRoomIsAskedForAgain) {
  VirtualWorkers w;
  ExpectServed(w, 1);
  Prompt prompt(w.prefill.format, 21, 1);
  Destination to(&w.pool, 21);
  PdOpen open = Workers::OpenOf(1, prompt);
  open.recompute = true;
  open.cache_salt = "tenant";
  ASSERT_TRUE(w.receiver->Open(open, &to).ok());
  w.Settle();
  const std::vector<PdRecompute> asked = w.sender->TakeRecomputes();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].room, 1u);
  EXPECT_EQ(asked[0].tokens, prompt.ids);
  EXPECT_EQ(asked[0].cache_salt, "tenant");
  EXPECT_TRUE(w.sender->TakeRecomputes().empty());
  ASSERT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  w.sender->Finish(1, prompt.first());
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kSuccess);
  EXPECT_EQ(w.Differs(prompt, to), "");
}

TEST(HandOff, ARecomputeThatIsRefusedEnds) {
  VirtualWorkers w;
  Prompt prompt(w.prefill.format, 21, 1);
  Destination to(&w.pool, 21);
  PdOpen open = Workers::OpenOf(1, prompt);
  open.recompute = true;
  ASSERT_TRUE(w.receiver->Open(open, &to).ok());
  w.Settle();
  ASSERT_EQ(w.sender->TakeRecomputes().size(), 1u);
  w.sender->Refuse(1, ResourceExhausted("the queue is full"));
  w.Settle();
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kResourceExhausted);
}

TEST(HandOff, AReceiverWithoutPagesSaysSo) {
  for (const bool sender_first : {true, false}) {
    VirtualWorkers w;
    Prompt prompt(w.prefill.format, 21, 1);
    const auto open_sender = [&] { EXPECT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok()); };
    if (sender_first) open_sender();
    ASSERT_TRUE(
        w.receiver->Decline(Workers::OpenOf(1, prompt), ResourceExhausted("out of pages")).ok());
    w.Settle();
    if (!sender_first) open_sender();
    EXPECT_EQ(w.sender->state(1), PdState::kFailed);
    EXPECT_EQ(w.sender->error(1).code(), StatusCode::kResourceExhausted);
    EXPECT_NE(w.sender->error(1).message().find("out of pages"), std::string::npos);
    ExpectServed(w, 3);
  }
}

TEST(HandOff, AnAbortAtAnyStageEndsBothSides) {
  for (const bool by_sender : {true, false}) {
    for (int stage = 0; stage < 4; ++stage) {
      VirtualWorkers w({.landing_slots = 2});
      TwoRooms rooms(w);
      if (stage > 0) w.Settle();
      if (stage > 1) w.sender->Computed(1, 20);
      if (stage > 1) w.sender->Step();  // frames are under way
      if (stage > 2) w.sender->Finish(1, rooms.a.first());
      if (stage > 2) w.sender->Step();
      const Status gone = Cancelled("the client is gone");
      if (by_sender) {
        w.sender->Abort(1, gone);
      } else {
        w.receiver->Abort(1, gone);
        rooms.to_a.Release();
      }
      w.RunFor(kSecond);
      EXPECT_EQ(w.sender->state(1), PdState::kFailed) << stage;
      EXPECT_EQ(w.receiver->state(1), PdState::kFailed) << stage;
      EXPECT_EQ(w.sender->error(1).code(), StatusCode::kCancelled) << stage;
      w.sender->Finish(2, rooms.b.first());
      w.Settle();
      EXPECT_EQ(w.receiver->state(2), PdState::kSuccess);
      ExpectServed(w, 3);
    }
  }
}

TEST(HandOff, ARequestThatEndedBeforeItWasAskedForSaysWhy) {
  VirtualWorkers w;
  Prompt prompt(w.prefill.format, 21, 1);
  Destination to(&w.pool, 21);
  ASSERT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  w.sender->Abort(1, ResourceExhausted("the prompt is too long for prefill"));
  w.sender->Forget(1);
  ASSERT_TRUE(w.receiver->Open(Workers::OpenOf(1, prompt), &to).ok());
  w.Settle();
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kResourceExhausted);
  EXPECT_NE(w.receiver->error(1).message().find("too long for prefill"), std::string::npos);
}

TEST(HandOff, ASourceThatFailsItsCheckEndsTheRoom) {
  VirtualWorkers w;
  TwoRooms rooms(w);
  w.sender->Computed(1, 10);
  w.Settle();
  rooms.a.lost = true;
  rooms.Finish();
  w.Settle();
  EXPECT_EQ(w.sender->error(1).code(), StatusCode::kDataLoss);
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDataLoss);
  EXPECT_NE(w.receiver->error(1).message().find("tag check"), std::string::npos);
  EXPECT_EQ(w.receiver->state(2), PdState::kSuccess);
}

TEST(HandOff, APageThatChangedItsOwnerIsNotWritten) {
  VirtualWorkers w;
  TwoRooms rooms(w);
  w.Settle();
  w.pool.Quarantine(rooms.to_a.refs[1].id);
  std::byte* page = w.pool.base(rooms.to_a.refs[1].id);
  std::fill_n(page + 64, w.decode.format.page_bytes() - 64, std::byte{0x5A});
  rooms.Finish();
  w.Settle();
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDataLoss);
  EXPECT_TRUE(std::all_of(page + 64, page + w.decode.format.page_bytes(),
                          [](std::byte b) { return b == std::byte{0x5A}; }));
  EXPECT_EQ(w.receiver->state(2), PdState::kSuccess);
  // The quarantined page never comes back: TwoRooms' last check counts pages, so give it one.
  w.pool = PagePool::Create(w.decode.format, 64, 5).value();
  rooms.to_a.refs.clear();
  rooms.to_b.refs.clear();
}

// ---- Processes ------------------------------------------------------------------------------

TEST(HandOff, AKilledPrefillEndsItsRoomsAtOnce) {
  VirtualWorkers w;
  TwoRooms rooms(w);
  w.sender->Computed(1, 20);
  w.Settle();
  w.network.Kill(kPrefill);
  w.prefill_stopped = true;
  w.Settle();  // with the one attempt to reach it again
  w.prefill_stopped = false;
  for (const uint64_t id : {1, 2}) {
    EXPECT_EQ(w.receiver->error(id).code(), StatusCode::kUnavailable);
  }
  // It is back with another model: refused; with the right one: served.
  auto link = w.Link(PdHello::Role::kSender);
  link.self.model_id[5] = std::byte{1};
  for (const bool right : {false, true}) {
    if (right) link = w.Link(PdHello::Role::kSender);
    w.sender.reset();
    w.sender_transport = w.network.AddSender(kPrefill, kPort, link);
    w.sender = std::make_unique<PdSender>(w.SenderOptions(), *w.ops, w.clock, *w.sender_transport);
    if (right) {
      ExpectServed(w, 4);
      continue;
    }
    Prompt prompt(w.prefill.format, 9, 3);
    Destination to(&w.pool, 9);
    ASSERT_TRUE(w.receiver->Open(Workers::OpenOf(3, prompt), &to).ok());
    w.Settle();
    EXPECT_NE(w.receiver->error(3).message().find("different models"), std::string::npos);
    w.receiver->Forget(3);
  }
}

TEST(HandOff, AKilledDecodeEndsItsRoomsAtOnce) {
  VirtualWorkers w;
  TwoRooms rooms(w);
  w.sender->Computed(1, 20);
  w.Settle();
  w.network.Kill(kDecode);
  w.sender->Step();
  for (const uint64_t id : {1, 2}) {
    EXPECT_EQ(w.sender->error(id).code(), StatusCode::kUnavailable);
    EXPECT_NE(w.sender->error(id).message().find("lost the decode worker"), std::string::npos);
  }
}

TEST(HandOff, AStoppedPrefillThatGoesOnWritesNowhere) {
  VirtualWorkers w;
  TwoRooms rooms(w);
  w.sender->Computed(1, 8);
  w.Settle();
  EXPECT_EQ(rooms.to_a.landed, 1);
  w.network.Stop(kPrefill, true);
  w.prefill_stopped = true;
  w.RunFor(11 * kSecond);  // two heartbeats of 5 s
  EXPECT_EQ(w.receiver->error(1).code(), StatusCode::kDeadlineExceeded);
  rooms.to_a.Release();
  Destination next(&w.pool, 30);
  for (const PageRef ref : next.refs) {
    std::fill_n(w.pool.base(ref.id) + 64, w.decode.format.page_bytes() - 64, std::byte{0x5A});
  }
  w.network.Stop(kPrefill, false);
  w.prefill_stopped = false;
  rooms.Finish();
  w.RunFor(20 * kSecond);
  EXPECT_EQ(w.sender->state(1), PdState::kFailed);
  for (const PageRef ref : next.refs) {
    const std::byte* page = w.pool.base(ref.id);
    EXPECT_TRUE(std::all_of(page + 64, page + w.decode.format.page_bytes(),
                            [](std::byte b) { return b == std::byte{0x5A}; }));
  }
  ExpectServed(w, 3);
}

TEST(HandOff, AStoppedDecodeIsCutByPrefill) {
  VirtualWorkers w({.landing_slots = 2});  // more pages than may be under way
  TwoRooms rooms(w);
  w.Settle();
  w.network.Stop(kDecode, true);
  w.decode_stopped = true;
  rooms.Finish();
  w.RunFor(11 * kSecond);
  EXPECT_EQ(w.sender->error(1).code(), StatusCode::kDeadlineExceeded);
  w.network.Stop(kDecode, false);
  w.decode_stopped = false;
  w.RunFor(20 * kSecond);
  EXPECT_EQ(w.receiver->state(1), PdState::kFailed);
  ExpectServed(w, 3);
}

// ---- Memory ---------------------------------------------------------------------------------

TEST(HandOffInMemory, PagesArriveBitForBit) {
  for (const bool at_receiver : {false, true}) {
    Workers w({.convert_at_receiver = at_receiver, .landing_slots = 2});
    MemoryTransports transports = MakeMemoryTransports(w.Link(PdHello::Role::kReceiver).self,
                                                       w.Link(PdHello::Role::kSender).self);
    ManualClock clock;
    PdSender sender(w.SenderOptions(), *w.ops, clock, *transports.sender);
    PdReceiver receiver(w.ReceiverOptions(), *w.ops, clock, *transports.receiver);
    const auto settle = [&] {
      bool moved = true;
      while (moved) {
        moved = sender.Step();
        moved = receiver.Step(1) || moved;
      }
    };
    for (const uint64_t id : {1, 2, 3}) {
      Prompt prompt(w.prefill.format, 70, static_cast<uint32_t>(id));
      Destination to(&w.pool, 70);
      ASSERT_TRUE(sender.Open(id, prompt.ids, &prompt).ok());
      ASSERT_TRUE(receiver.Open(Workers::OpenOf(id, prompt), &to).ok());
      sender.Computed(id, 33);
      settle();
      EXPECT_EQ(to.landed, 4);
      if (id == 2) {
        receiver.Abort(id, Cancelled("gone"));
        settle();
        EXPECT_EQ(sender.state(id), PdState::kFailed);
        sender.Forget(id);
        receiver.Forget(id);
        continue;
      }
      sender.Finish(id, prompt.first());
      settle();
      ASSERT_EQ(receiver.state(id), PdState::kSuccess) << receiver.error(id).message();
      EXPECT_EQ(sender.state(id), PdState::kSuccess);
      EXPECT_EQ(w.Differs(prompt, to), "");
    }
  }
}

TEST(HandOffInMemory, OtherModelsAreRefused) {
  Workers w({.other_model = true});
  MemoryTransports transports = MakeMemoryTransports(w.Link(PdHello::Role::kReceiver).self,
                                                     w.Link(PdHello::Role::kSender).self);
  ManualClock clock;
  PdReceiver receiver(w.ReceiverOptions(), *w.ops, clock, *transports.receiver);
  Prompt prompt(w.prefill.format, 9, 1);
  Destination to(&w.pool, 9);
  ASSERT_TRUE(receiver.Open(Workers::OpenOf(1, prompt), &to).ok());
  receiver.Step();
  EXPECT_NE(receiver.error(1).message().find("different models"), std::string::npos);
}

}  // namespace
}  // namespace tern
