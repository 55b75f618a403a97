#include "pd/session.h"

#include <gtest/gtest.h>

#include "pd/testing.h"

namespace tern {
namespace {

using testing::GoldenFrames;
using testing::GoldenHello;

TEST(SequenceWindow, TakesEachNumberOnce) {
  SequenceWindow window;
  for (const uint64_t n : {1, 2, 5, 4, 3}) {
    EXPECT_FALSE(window.Seen(n)) << n;
    window.Mark(n);
    EXPECT_TRUE(window.Seen(n)) << n;
  }
  window.Mark(70);
  EXPECT_FALSE(window.Seen(7));  // 63 before the newest
  EXPECT_TRUE(window.Seen(6));   // too old to tell
  EXPECT_FALSE(window.Seen(69));
  EXPECT_FALSE(window.Seen(71));
  window.Mark(1000);
  EXPECT_TRUE(window.Seen(70));
  EXPECT_FALSE(window.Seen(999));
}

class All final : public PdFrameFilter {
 public:
  bool Wants(const PdHeader&) override { return true; }
};

void Feed(PdSession& session, std::span<const std::byte> bytes, size_t piece = SIZE_MAX) {
  while (!bytes.empty()) {
    const std::span<std::byte> to = session.ReadBuffer();
    if (to.empty()) return;
    const size_t count = std::min({to.size(), bytes.size(), piece});
    std::copy_n(bytes.begin(), count, to.begin());
    bytes = bytes.subspan(count);
    session.OnRead(count, 0);
  }
}

std::vector<std::byte> Take(PdSession& session) {
  std::vector<std::byte> all;
  while (!session.Output().empty()) {
    const auto out = session.Output();
    all.insert(all.end(), out.begin(), out.end());
    session.OnWritten(out.size(), 0);
  }
  return all;
}

PdLinkOptions ReceiverOptions(const char* secret = "sixteen bytes ok") {
  PdLinkOptions options{.self = GoldenHello(), .secret = secret};
  return options;
}
PdLinkOptions SenderOptions(const char* secret = "sixteen bytes ok") {
  PdLinkOptions options = ReceiverOptions(secret);
  options.self.role = PdHello::Role::kSender;
  options.self.landing_slots = 0;
  options.self.nonce.fill(std::byte{0xB2});
  return options;
}
PdSession Make(const PdLinkOptions& options, PdFrameFilter* filter) {
  return {options, RowsOf(options.self).value(), filter, 0};
}

// A whole handshake and the first frames after it, byte for byte what make_frames.py makes from the
// document, both ways and in pieces of any size.
TEST(PdSession, ASecretHandshakeIsTheDocuments) {
  auto golden = GoldenFrames();
  for (const size_t piece : {size_t{1}, size_t{7}, SIZE_MAX}) {
    All filter;
    PdSession receiver = Make(ReceiverOptions(), &filter), sender = Make(SenderOptions(), nullptr);
    EXPECT_EQ(Take(receiver), golden["secret_hello"]);
    Feed(sender, golden["secret_hello"], piece);
    EXPECT_EQ(Take(sender), golden["secret_welcome"]);
    Feed(receiver, golden["secret_welcome"], piece);
    EXPECT_TRUE(receiver.open());
    EXPECT_EQ(Take(receiver), golden["secret_confirm"]);
    EXPECT_FALSE(sender.open());
    Feed(sender, golden["secret_confirm"], piece);
    EXPECT_TRUE(sender.open());

    PdIncoming incoming;
    ASSERT_TRUE(sender.Poll(&incoming));
    EXPECT_EQ(incoming.kind, PdEvent::Kind::kOpen);
    receiver.Send(EncodePdFrame({.type = PdFrameType::kDone, .generation = 1, .room = 2}), 0);
    EXPECT_EQ(Take(receiver), golden["secret_done"]);
    Feed(sender, golden["secret_done"], piece);
    ASSERT_TRUE(sender.Poll(&incoming));
    EXPECT_EQ(incoming.header.type, PdFrameType::kDone);
    sender.Send(EncodePdFrame({.type = PdFrameType::kAbort, .generation = 1, .room = 2},
                              PdEnd{PdCode::kCancelled, "gone"}),
                0);
    EXPECT_EQ(Take(sender), golden["secret_abort"]);

    // Recorded and sent again: read over.
    Feed(sender, golden["secret_done"], piece);
    EXPECT_FALSE(sender.Poll(&incoming));
    EXPECT_EQ(sender.stats().duplicate_frames, 1);
    // A recorded handshake opens no other connection: the nonces differ.
    PdLinkOptions again = SenderOptions();
    again.self.nonce.fill(std::byte{0xB3});
    PdSession other = Make(again, nullptr);
    Feed(other, golden["secret_hello"]);
    Feed(other, golden["secret_confirm"]);
    EXPECT_TRUE(other.closed());
    EXPECT_TRUE(other.refused());
  }
}

// Every flipped bit of every frame of the handshake, and of the frame after it: never open with
// another meaning, never a frame.
TEST(PdSession, EveryFlippedBitIsSeen) {
  auto golden = GoldenFrames();
  for (const char* name : {"secret_hello", "secret_confirm", "secret_done"}) {
    for (size_t i = 0; i < golden[name].size(); ++i) {
      PdSession sender = Make(SenderOptions(), nullptr);
      for (const char* frame : {"secret_hello", "secret_confirm", "secret_done"}) {
        std::vector<std::byte> bytes = golden[frame];
        if (std::string(frame) == name) bytes[i] ^= std::byte{1} << static_cast<int>(i % 8);
        Feed(sender, bytes);
      }
      bool done = false;
      PdIncoming incoming;
      while (sender.Poll(&incoming)) {
        done = done || incoming.header.type == PdFrameType::kDone;
      }
      EXPECT_FALSE(done) << name << " byte " << i;
      EXPECT_TRUE(sender.closed()) << name << " byte " << i;
    }
  }
  All filter;
  for (size_t i = 0; i < golden["secret_welcome"].size(); ++i) {
    PdSession receiver = Make(ReceiverOptions(), &filter);
    std::vector<std::byte> bytes = golden["secret_welcome"];
    bytes[i] ^= std::byte{1} << static_cast<int>(i % 8);
    Feed(receiver, bytes);
    EXPECT_FALSE(receiver.open()) << i;
  }
}

// A transport is writing a frame when the session ends, by a bad frame of the peer's or because the
// connection broke: the bytes it was given stay, and what it says it wrote is taken as that
// frame's.
TEST(PdSession, BytesThatAreBeingWrittenOutliveItsEnd) {
  auto golden = GoldenFrames();
  std::vector<std::byte> bad = golden["secret_done"];
  bad.back() ^= std::byte{1};
  for (const bool refuses : {true, false}) {
    PdSession sender = Make(SenderOptions(), nullptr);
    Feed(sender, golden["secret_hello"]);
    Take(sender);
    Feed(sender, golden["secret_confirm"]);
    ASSERT_TRUE(sender.open());
    const std::string reason(3000, 'x');  // longer than a REFUSE
    for (int i = 0; i < 2; ++i) {
      sender.Send(EncodePdFrame({.type = PdFrameType::kAbort, .generation = 1, .room = 2},
                                PdEnd{PdCode::kCancelled, reason}),
                  0);
    }
    const auto writing = sender.Output();
    const std::vector<std::byte> before(writing.begin(), writing.end());
    if (refuses) {
      Feed(sender, bad);
    } else {
      sender.OnClosed({StatusCode::kUnavailable, "broken"});
    }
    ASSERT_TRUE(sender.closed());
    EXPECT_TRUE(std::equal(writing.begin(), writing.end(), before.begin(), before.end()));
    sender.OnWritten(writing.size(), 0);
    const auto rest = Take(sender);
    if (refuses) {
      ASSERT_GT(rest.size(), kPdHeaderBytes);
      EXPECT_EQ(rest[6], std::byte{static_cast<uint8_t>(PdFrameType::kRefuse)});
    } else {
      EXPECT_TRUE(rest.empty());
    }
  }
}

TEST(PdSession, HeartbeatsAndTimeouts) {
  All filter;
  PdSession receiver = Make(ReceiverOptions(""), &filter),
            sender = Make(SenderOptions(""), nullptr);
  Feed(sender, Take(receiver));
  Feed(receiver, Take(sender));
  Feed(sender, Take(receiver));
  ASSERT_TRUE(sender.open() && receiver.open());
  const PdTimeouts timeouts;
  EXPECT_EQ(sender.NextDeadlineUs(), timeouts.heartbeat_us);
  sender.OnTime(timeouts.heartbeat_us);
  const auto ping = Take(sender);
  ASSERT_EQ(ping.size(), kPdHeaderBytes);
  EXPECT_EQ(ping[6], std::byte{12});
  sender.OnTime(2 * timeouts.heartbeat_us);
  EXPECT_TRUE(sender.closed());
  PdIncoming incoming;
  while (sender.Poll(&incoming)) {
  }
  EXPECT_EQ(incoming.status.code(), StatusCode::kDeadlineExceeded);

  PdSession alone = Make(ReceiverOptions(""), &filter);
  alone.OnTime(timeouts.handshake_us - 1);
  EXPECT_FALSE(alone.closed());
  alone.OnTime(timeouts.handshake_us);
  EXPECT_TRUE(alone.closed());
}

}  // namespace
}  // namespace tern
