// Any bytes as frames of the hand-off: each decoder alone, and a whole session of either side, with
// and without a secret, fed in pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "pd/session.h"

namespace tern {
namespace {

PdLinkOptions Options(PdHello::Role role, bool secret) {
  PdLinkOptions options{.secret = secret ? "sixteen bytes ok" : ""};
  PdHello& self = options.self;
  self.boot_nonce = 1;
  self.page_tokens = 16;
  self.role = role;
  self.landing_slots = role == PdHello::Role::kReceiver ? 4 : 0;
  self.max_body_bytes = 1 << 16;
  self.layers = {{.spec = {.kv_heads = 1, .head_dim = 4}, .format = KvFormat::kBf16}};
  return options;
}

class EveryOther final : public PdFrameFilter {
 public:
  bool Wants(const PdHeader& header) override { return header.page % 2 == 0; }
};

void Decode(std::span<const std::byte> bytes) {
  if (bytes.size() < kPdHeaderBytes) return;
  const Result<PdHeader> header = DecodePdHeader(bytes.first<kPdHeaderBytes>());
  // Bodies are decoded also where the header's check is wrong: a fuzzer can't make checks.
  const PdHeader any{.type = PdFrameType::kHello};
  for (const PdHeader& h : {header.ok() ? *header : any, any}) {
    const auto body = bytes.subspan(kPdHeaderBytes);
    if (const auto hello = DecodePdHello(h, body); hello.ok()) (void)RowsOf(*hello).ok();
    (void)DecodePdEnd(h, body).ok();
    (void)DecodePdRequest(h, body).ok();
    (void)DecodePdLast(h, body).ok();
    (void)DecodePdPage(h, body, 1).ok();
  }
}

// The frames in `bytes`, with their checks put right so that what lies behind them is reached.
void Feed(PdSession& session, std::span<const std::byte> bytes) {
  int64_t now = 0;
  while (!bytes.empty() && !session.closed()) {
    const std::span<std::byte> to = session.ReadBuffer();
    TERN_CHECK(!to.empty());
    const size_t count = std::min({to.size(), bytes.size(), size_t{57}});
    std::copy_n(bytes.begin(), count, to.begin());
    bytes = bytes.subspan(count);
    session.OnRead(count, ++now);
    PdIncoming incoming;
    while (session.Poll(&incoming)) {
      if (incoming.kind == PdEvent::Kind::kFrame && incoming.header.type == PdFrameType::kPage) {
        session.Send(EncodePdFrame({.type = PdFrameType::kAck,
                                    .generation = incoming.header.generation,
                                    .room = incoming.header.room,
                                    .slot = incoming.header.slot}),
                     now);
      }
    }
  }
}

// A handshake with a proper peer, then the fuzzer's frames, their checks put right.
void FeedAfterHandshake(PdHello::Role role, std::span<const std::byte> bytes) {
  EveryOther filter;
  const bool receiver = role == PdHello::Role::kReceiver;
  const auto make = [&](PdHello::Role r) {
    const PdLinkOptions options = Options(r, false);
    return PdSession(options, RowsOf(options.self).value(), &filter, 0);
  };
  PdSession client = make(PdHello::Role::kReceiver), server = make(PdHello::Role::kSender);
  const auto pass = [](PdSession& from, PdSession& to) {
    while (!from.Output().empty()) {
      const auto out = from.Output();
      const size_t count = std::min(out.size(), to.ReadBuffer().size());
      std::copy_n(out.begin(), count, to.ReadBuffer().begin());
      from.OnWritten(count, 0);
      to.OnRead(count, 0);
    }
  };
  pass(client, server);
  pass(server, client);
  pass(client, server);
  TERN_CHECK(client.open() && server.open());
  uint64_t sequence = 0;
  std::vector<std::byte> frames(bytes.begin(), bytes.end());
  std::span<std::byte> rest(frames);
  while (rest.size() >= kPdHeaderBytes) {
    // Body bytes: the low 10 bits of what is there.
    const size_t body = std::min<size_t>(
        std::to_integer<size_t>(rest[8]) | (std::to_integer<size_t>(rest[9]) & 3) << 8,
        rest.size() - kPdHeaderBytes);
    PdHeader header{.type = static_cast<PdFrameType>(std::to_integer<int>(rest[6]) % 14),
                    .body_bytes = static_cast<uint32_t>(body),
                    .generation = std::to_integer<uint32_t>(rest[12]),
                    .sequence = ++sequence,
                    .room = std::to_integer<uint64_t>(rest[24]),
                    .tag = std::to_integer<uint64_t>(rest[32]),
                    .slot = std::to_integer<uint32_t>(rest[40]),
                    .page = std::to_integer<uint32_t>(rest[44]),
                    .rows = std::to_integer<uint16_t>(rest[48]),
                    .format = std::to_integer<uint8_t>(rest[50])};
    EncodePdHeader(header, rest.first<kPdHeaderBytes>());
    if (header.type != PdFrameType::kPage && body >= 8) {
      StampPdFrame(rest.first(kPdHeaderBytes + body), sequence, false, 1);
    }
    Decode(rest.first(kPdHeaderBytes + body));
    rest = rest.subspan(kPdHeaderBytes + body);
  }
  Feed(receiver ? client : server, frames);
}

}  // namespace
}  // namespace tern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tern;
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const PdHello::Role role = data[0] & 1 ? PdHello::Role::kReceiver : PdHello::Role::kSender;
  Decode(bytes);
  if ((data[0] & 2) != 0) {
    FeedAfterHandshake(role, bytes);
    return 0;
  }
  EveryOther filter;
  const PdLinkOptions options = Options(role, (data[0] & 4) != 0);
  PdSession session(options, RowsOf(options.self).value(), &filter, 0);
  Feed(session, bytes);
  return 0;
}
