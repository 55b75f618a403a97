#include "pd/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "pd/testing.h"
#include "pd/wire_rows.h"

namespace tern {
namespace {

using testing::GoldenFrames;

constexpr uint64_t kRoom = 6815078032026544857u;

std::vector<std::byte> Stamped(std::vector<std::byte> frame, uint64_t sequence) {
  StampPdFrame(frame, sequence, false, 2);
  return frame;
}

PdRequest FirstRequest() {
  const std::vector<int32_t> tokens = {5, -1, 70000};
  return {.prompt_digest = PromptDigest(tokens), .prompt_tokens = 3, .tags = {0xDEADBEEF, 7}};
}

PdLast FirstLast() {
  return {.prompt_digest = FirstRequest().prompt_digest,
          .prompt_tokens = 3,
          .pages = 2,
          .first = {.token = 42,
                    .logprob = -0.5f,
                    .top_logprobs = {{42, -0.5f}, {7, -1.25f}},
                    .cached_tokens = 1,
                    .seed = 99,
                    .position = 3}};
}

// The frames of tests/data/pd/make_frames.py, by this side's encoder.
std::map<std::string, std::vector<std::byte>> Encoded() {
  const PdHeader room{.generation = 3, .room = kRoom};
  const auto with = [](PdHeader header, PdFrameType type) {
    header.type = type;
    return header;
  };
  PdHello hello = testing::GoldenHello();
  hello.convert_at_receiver = true;
  PdHello welcome = testing::GoldenHello();
  welcome.role = PdHello::Role::kSender;
  welcome.landing_slots = 0;
  welcome.nonce.fill(std::byte{0xB2});
  PdRequest again = FirstRequest();
  again.tags = {9, 8};
  again.tokens = {5, -1, 70000};
  again.cache_salt = "salt";
  again.extra_key = "key";
  PdHeader page = room;
  page.tag = 0xDEADBEEF;
  page.slot = 5;
  page.page = 1;
  page.rows = 17;
  page.format = 3;
  std::vector<std::byte> page_frame = EncodePdPage(page, 2, 7);
  std::ranges::copy(std::as_bytes(std::span("payload", 7)), PdPayloadOf(page_frame, 2).begin());
  SealPdPage(page_frame, std::vector<uint64_t>{0x0102030405060708u, ~uint64_t{0}});
  PdHeader ack = with(room, PdFrameType::kAck);
  ack.slot = 5;
  ack.page = 1;
  const PdHeader one{.generation = 3, .room = 1};
  return {
      {"hello", EncodePdFrame({.type = PdFrameType::kHello}, hello)},
      {"welcome", EncodePdFrame({.type = PdFrameType::kWelcome}, welcome)},
      {"confirm", EncodePdFrame({.type = PdFrameType::kConfirm})},
      {"refuse", EncodePdFrame({.type = PdFrameType::kRefuse},
                               PdEnd{PdCode::kOtherModel, "another model, n\u00f6"})},
      {"request", Stamped(EncodePdFrame(with(room, PdFrameType::kRequest), FirstRequest()), 1)},
      {"request_again",
       Stamped(
           EncodePdFrame({.type = PdFrameType::kRequest, .generation = 4, .room = kRoom}, again),
           2)},
      {"page", Stamped(page_frame, 1)},
      {"last", Stamped(EncodePdFrame(with(room, PdFrameType::kLast), FirstLast()), 2)},
      {"ack", Stamped(EncodePdFrame(ack), 5)},
      {"done", Stamped(EncodePdFrame(with(room, PdFrameType::kDone)), 6)},
      {"abort", Stamped(EncodePdFrame(with(one, PdFrameType::kAbort),
                                      PdEnd{PdCode::kOutOfPages, "out of pages"}),
                        7)},
      {"abort_ack", Stamped(EncodePdFrame(with(one, PdFrameType::kAbortAck)), 8)},
      {"ping", Stamped(EncodePdFrame({.type = PdFrameType::kPing}), 9)},
  };
}

Status DecodeBody(const PdHeader& header, std::span<const std::byte> body) {
  switch (header.type) {
    case PdFrameType::kHello:
    case PdFrameType::kWelcome:
      return DecodePdHello(header, body).status();
    case PdFrameType::kRefuse:
    case PdFrameType::kAbort:
      return DecodePdEnd(header, body).status();
    case PdFrameType::kRequest:
      return DecodePdRequest(header, body).status();
    case PdFrameType::kLast:
      return DecodePdLast(header, body).status();
    case PdFrameType::kPage:
      return DecodePdPage(header, body, 2).status();
    default:
      return OkStatus();
  }
}

// Header and body, strictly. The frame is without mac.
Status DecodeWhole(std::span<const std::byte> frame) {
  TERN_ASSIGN_OR_RETURN(const PdHeader header, DecodePdHeader(frame.first<kPdHeaderBytes>()));
  const auto body = frame.subspan(kPdHeaderBytes);
  if (header.body_bytes != body.size()) return DataLoss("length");
  return DecodeBody(header, body);
}

TEST(PdWire, BytesAreTheDocuments) {
  const auto golden = GoldenFrames();
  for (const auto& [name, frame] : Encoded()) {
    ASSERT_TRUE(golden.count(name)) << name;
    EXPECT_EQ(frame, golden.at(name)) << name;
    EXPECT_TRUE(DecodeWhole(golden.at(name)).ok())
        << name << DecodeWhole(golden.at(name)).message();
  }
}

TEST(PdWire, WhatIsDecodedIsWhatWasEncoded) {
  const auto golden = GoldenFrames();
  const auto split = [&](const char* name) {
    const auto frame = std::span<const std::byte>(golden.at(name));
    return std::pair(DecodePdHeader(frame.first<kPdHeaderBytes>()).value(),
                     frame.subspan(kPdHeaderBytes));
  };
  {
    const auto [header, body] = split("hello");
    const PdHello hello = DecodePdHello(header, body).value();
    const PdHello expected = testing::GoldenHello();
    EXPECT_EQ(hello.model_id, expected.model_id);
    EXPECT_EQ(hello.boot_nonce, 0x1122334455667788u);
    EXPECT_EQ(hello.landing_slots, 8u);
    EXPECT_EQ(hello.max_body_bytes, 1u << 20);
    EXPECT_TRUE(hello.convert_at_receiver);
    ASSERT_EQ(hello.layers.size(), 2u);
    EXPECT_EQ(hello.layers[0].format, KvFormat::kFp8E4m3);
    EXPECT_EQ(hello.layers[0].spec.v_scale, 0.25f);
    EXPECT_FALSE(hello.layers[0].index_format.has_value());
    EXPECT_EQ(hello.layers[1].spec.latent, 64);
    EXPECT_EQ(hello.layers[1].index_format, KvFormat::kBf16);
    EXPECT_EQ(hello.layers[1].spec.index_dim, 40);
  }
  {
    const auto [header, body] = split("request_again");
    const PdRequest request = DecodePdRequest(header, body).value();
    EXPECT_EQ(header.generation, 4u);
    EXPECT_EQ(request.tags, (std::vector<uint64_t>{9, 8}));
    EXPECT_EQ(request.tokens, (std::vector<int32_t>{5, -1, 70000}));
    EXPECT_EQ(request.cache_salt, "salt");
    EXPECT_EQ(request.extra_key, "key");
    EXPECT_EQ(request.prompt_digest, FirstRequest().prompt_digest);
  }
  {
    const auto [header, body] = split("page");
    const PdPageBody page = DecodePdPage(header, body, 2).value();
    EXPECT_EQ(header.tag, 0xDEADBEEFu);
    EXPECT_EQ(header.slot, 5u);
    EXPECT_EQ(header.rows, 17);
    EXPECT_EQ(page.sums, (std::vector<uint64_t>{0x0102030405060708u, ~uint64_t{0}}));
    EXPECT_EQ(page.payload.size(), 7u);
  }
  {
    const auto [header, body] = split("last");
    const PdLast last = DecodePdLast(header, body).value();
    EXPECT_EQ(last.first, FirstLast().first);
    EXPECT_EQ(last.pages, 2u);
  }
  {
    const auto [header, body] = split("refuse");
    const PdEnd end = DecodePdEnd(header, body).value();
    EXPECT_EQ(end.code, PdCode::kOtherModel);
    EXPECT_EQ(end.text, "another model, n\u00f6");
    EXPECT_EQ(StatusOf(end).code(), StatusCode::kFailedPrecondition);
  }
}

// Every bit of every byte of every frame: a decoder says no. A page's payload is the seals' affair.
TEST(PdWire, EveryFlippedBitIsSeen) {
  for (const auto& [name, frame] : Encoded()) {
    const size_t end = name == "page" ? frame.size() - 7 : frame.size();
    for (size_t i = 0; i < end; ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::vector<std::byte> bad = frame;
        bad[i] ^= std::byte{1} << bit;
        EXPECT_FALSE(DecodeWhole(bad).ok()) << name << " byte " << i << " bit " << bit;
      }
    }
  }
}

TEST(PdWire, EveryCutBodyIsSeen) {
  for (const auto& [name, frame] : Encoded()) {
    const auto header = DecodePdHeader(std::span(frame).first<kPdHeaderBytes>()).value();
    const auto body = std::span(frame).subspan(kPdHeaderBytes);
    for (size_t size = 0; size < (name == "page" ? 24 : body.size()); ++size) {
      const auto cut = body.first(size);
      EXPECT_FALSE(DecodeBody(header, cut).ok()) << name << " cut to " << size;
    }
  }
}

TEST(PdWire, HeadersThatCannotBe) {
  const auto decoded = [](PdHeader header) {
    std::byte bytes[kPdHeaderBytes];
    EncodePdHeader(header, bytes);
    return DecodePdHeader(bytes);
  };
  const PdHeader page{.type = PdFrameType::kPage,
                      .body_bytes = 100,
                      .generation = 1,
                      .sequence = 1,
                      .room = 1,
                      .tag = 1,
                      .rows = 1,
                      .format = 1};
  EXPECT_TRUE(decoded(page).ok());
  const auto refused = [&](auto change) {
    PdHeader header = page;
    change(header);
    return !decoded(header).ok();
  };
  EXPECT_TRUE(refused([](PdHeader& h) { h.rows = 0; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.rows = 1025; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.tag = 0; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.format = 5; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.generation = 0; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.sequence = 0; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.slot = 4096; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.page = 65536; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.body_bytes = 0; }));
  EXPECT_TRUE(refused([](PdHeader& h) { h.type = PdFrameType::kDone; }));
  EXPECT_FALSE(decoded({.type = PdFrameType::kPing, .sequence = 1, .room = 1}).ok());
  EXPECT_FALSE(decoded({.type = PdFrameType::kHello, .body_bytes = 9, .sequence = 1}).ok());
}

TEST(PdWire, AnotherVersionIsToldApart) {
  std::vector<std::byte> frame = EncodePdFrame({.type = PdFrameType::kPing, .sequence = 1});
  frame[4] = std::byte{2};
  const Status status = DecodePdHeader(std::span(frame).first<kPdHeaderBytes>()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("version 2"), std::string::npos);
}

TEST(PdWire, LongTextsAreCutBetweenCharacters) {
  const std::string text(511, 'x');
  const auto frame =
      EncodePdFrame({.type = PdFrameType::kRefuse}, PdEnd{PdCode::kInternal, text + "\u00f6\xff"});
  EXPECT_TRUE(DecodeWhole(frame).ok());
}

TEST(PdRowsTest, SurviveTheHandshake) {
  const std::vector<KvLayerSpec> specs = {
      {.kind = KvLayerSpec::Kind::kMla, .latent = 64, .rope = 8, .index_dim = 40, .k_scale = 0.5f},
      {.kind = KvLayerSpec::Kind::kMla, .latent = 64, .rope = 8}};
  const std::vector<int64_t> bf16 = {1};
  for (const KvFormat format :
       {KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kFp8Tiled, KvFormat::kFp8DsMla}) {
    const PdRows rows{specs, PageFormat::Make(specs, format, 16, bf16).value()};
    PdHello hello = testing::GoldenHello();
    DescribeRows(rows, &hello);
    const PdRows back = RowsOf(hello).value();
    EXPECT_EQ(back.format.page_bytes(), rows.format.page_bytes());
    EXPECT_EQ(back.format.slab(0).format, rows.format.slab(0).format);
    EXPECT_EQ(back.format.slab(0).k_scale, 0.5f);
    EXPECT_EQ(back.format.slab(1).format, KvFormat::kBf16);
    EXPECT_EQ(back.format.index_slab(0).format, rows.format.index_slab(0).format);
  }
}

TEST(PdRowsTest, OnlyBf16IsConverted) {
  const auto rows = [](KvFormat format, float scale = 1.0f, int64_t latent = 64) {
    const std::vector<KvLayerSpec> specs = {
        {.kind = KvLayerSpec::Kind::kMla, .latent = latent, .rope = 8, .k_scale = scale}};
    return PdRows{specs, PageFormat::Make(specs, format, 16).value()};
  };
  EXPECT_TRUE(NegotiateRows(rows(KvFormat::kBf16), rows(KvFormat::kFp8Tiled), false).ok());
  EXPECT_TRUE(NegotiateRows(rows(KvFormat::kFp8Tiled), rows(KvFormat::kFp8Tiled), false).ok());
  EXPECT_EQ(
      NegotiateRows(rows(KvFormat::kBf16), rows(KvFormat::kFp8Tiled), true)->format.slab(0).format,
      KvFormat::kBf16);
  const Status other =
      NegotiateRows(rows(KvFormat::kFp8Tiled), rows(KvFormat::kFp8E4m3), false).status();
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find("layer 0"), std::string::npos) << other.message();
  EXPECT_FALSE(
      NegotiateRows(rows(KvFormat::kFp8E4m3, 1.0f), rows(KvFormat::kFp8E4m3, 0.5f), false).ok());
  EXPECT_FALSE(NegotiateRows(rows(KvFormat::kBf16), rows(KvFormat::kBf16, 1.0f, 32), false).ok());
}

}  // namespace
}  // namespace tern
