// A prefill and a decode worker without models, for tests of the hand-off: pages with known rows on
// one side, a page pool on the other. Tests only. Thread: the test's.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "kv/page_pool.h"
#include "pd/memory_transfer.h"
#include "pd/testing.h"
#include "pd/virtual_network.h"

namespace tern::testing {

constexpr int kPrefill = 1, kDecode = 2;  // processes of the virtual network
constexpr int kPort = 8998;

// A prompt whose rows are computed on the prefill side.
struct Prompt final : PdSource {
  Prompt(const PageFormat& format, int64_t tokens, uint32_t seed) : pages(format, tokens) {
    for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<int32_t>(seed * 1000 + i));
    FillBf16(format, tokens, seed, &pages);
  }
  Result<std::span<std::byte* const>> Read(int64_t /*first*/, int64_t /*tokens*/) override {
    if (lost) return DataLoss("page 7 of the prefill worker failed its tag check");
    return std::span<std::byte* const>(pages.bases);
  }
  PdFirstToken first() const {
    return {.token = ids[0] + 1,
            .logprob = -0.25f,
            .top_logprobs = {{1, -0.25f}},
            .cached_tokens = 2,
            .seed = 77,
            .position = ids.size()};
  }
  std::vector<int32_t> ids;
  TestPages pages;
  bool lost = false;
};

// Pages of the decode pool that wait for a prompt.
struct Destination final : PdTarget {
  Destination(PagePool* p, int64_t tokens) : pool(p) {
    const int64_t page = pool->format().page_tokens();
    for (int64_t i = 0; i < (tokens + page - 1) / page; ++i) {
      const std::optional<PageRef> ref = pool->Alloc();
      if (!ref) break;
      refs.push_back(*ref);
    }
    sums.resize(refs.size());
  }
  ~Destination() override { Release(); }
  void Release() {
    for (const PageRef ref : refs) pool->Free(ref);
    refs.clear();
  }
  std::vector<uint64_t> Tags() override {
    std::vector<uint64_t> tags;
    for (const PageRef ref : refs) tags.push_back(static_cast<uint64_t>(ref.tag));
    return tags;
  }
  Result<std::byte*> Page(int64_t index) override {
    const PageRef ref = refs[static_cast<size_t>(index)];
    if (!pool->Matches(ref)) return DataLoss("the page is no longer the one it was");
    return pool->base(ref.id);
  }
  void Landed(int64_t index, int64_t rows, std::span<const uint64_t> s) override {
    pool->SetRows(refs[static_cast<size_t>(index)].id, rows);
    sums[static_cast<size_t>(index)].assign(s.begin(), s.end());
    ++landed;
  }
  PagePool* pool;
  std::vector<PageRef> refs;
  std::vector<std::vector<uint64_t>> sums;
  int64_t landed = 0;
};

// What the test can turn.
struct WorkerOptions {
  KvFormat prefill_format = KvFormat::kBf16, decode_format = KvFormat::kFp8Tiled;
  int64_t prefill_page = 16, decode_page = 8;
  bool convert_at_receiver = false;
  std::string prefill_secret, decode_secret;
  bool other_model = false;
  uint32_t landing_slots = 4;
  int64_t decode_pages = 64;
  std::vector<KvLayerSpec> specs;  // empty: SmallSpecs
  PdTimeouts timeouts;
};

class Workers {
 public:
  explicit Workers(WorkerOptions o = {})
      : options(std::move(o)),
        ops(std::move(Ops::Create("", threads)).value()),
        prefill(RowsWith(Specs(), options.prefill_format, options.prefill_page)),
        decode(RowsWith(Specs(), options.decode_format, options.decode_page)),
        pool(PagePool::Create(decode.format, options.decode_pages, 5).value()) {}

  std::vector<KvLayerSpec> Specs() const {
    return options.specs.empty() ? SmallSpecs(options.decode_format) : options.specs;
  }
  PdLinkOptions Link(PdHello::Role role) const {
    const bool receiver = role == PdHello::Role::kReceiver;
    PdLinkOptions link{.secret = receiver ? options.decode_secret : options.prefill_secret,
                       .timeouts = options.timeouts};
    link.self.model_id.fill(std::byte{7});
    if (receiver && options.other_model) link.self.model_id[0] = std::byte{8};
    link.self.boot_nonce = receiver ? 5 : 6;
    link.self.landing_slots = receiver ? options.landing_slots : 0;
    link.self.max_body_bytes = 8 << 20;
    link.self.role = role;
    link.self.convert_at_receiver = receiver && options.convert_at_receiver;
    DescribeRows(receiver ? decode : prefill, &link.self);
    return link;
  }
  PdSender::Options SenderOptions() const {
    return {.rows = prefill, .timeouts = options.timeouts};
  }
  PdReceiver::Options ReceiverOptions() const {
    return {.rows = decode, .timeouts = options.timeouts};
  }
  static PdOpen OpenOf(uint64_t room, const Prompt& prompt) {
    return {.host = "prefill", .port = kPort, .room = room, .prompt = prompt.ids};
  }

  // "" when the pages hold what quantize-on-write of the prompt's rows gives, with its seals.
  std::string Differs(const Prompt& prompt, const Destination& destination) {
    RowConverter converter(*ops, prefill, decode);
    const auto tokens = static_cast<int64_t>(prompt.ids.size());
    const int64_t page = decode.format.page_tokens();
    for (size_t i = 0; i < destination.refs.size(); ++i) {
      const int64_t first = static_cast<int64_t>(i) * page, rows = std::min(page, tokens - first);
      TestPages expected(decode.format, page);
      converter.Convert(prompt.pages.bases, first, rows, expected.bases[0]);
      std::vector<uint64_t> sums;
      SealSums(decode.format, expected.bases[0], first, rows, &sums);
      if (sums != destination.sums[i]) return "sums of page " + std::to_string(i);
      std::vector<std::byte> a(static_cast<size_t>(PayloadBytes(decode.format, rows))), b = a;
      PackRows(decode.format, expected.bases[0], rows, a);
      PackRows(decode.format, pool.base(destination.refs[i].id), rows, b);
      if (a != b) return "rows of page " + std::to_string(i);
    }
    return "";
  }

  WorkerOptions options;
  ThreadPool threads{1};
  std::unique_ptr<Ops> ops;
  PdRows prefill, decode;
  PagePool pool;
};

// Both workers on a virtual network.
class VirtualWorkers : public Workers {
 public:
  explicit VirtualWorkers(WorkerOptions o = {}, VirtualNetwork::Policy policy = {})
      : Workers(std::move(o)),
        network(
            clock, policy ? std::move(policy)
                          : [](bool, std::vector<std::byte>*) { return VirtualFate{}; }),
        sender_transport(network.AddSender(kPrefill, kPort, Link(PdHello::Role::kSender))),
        receiver_transport(network.AddReceiver(kDecode, Link(PdHello::Role::kReceiver))) {
    sender = std::make_unique<PdSender>(SenderOptions(), *ops, clock, *sender_transport);
    receiver = std::make_unique<PdReceiver>(ReceiverOptions(), *ops, clock, *receiver_transport);
  }
  // Until nothing moves at this time.
  void Settle() {
    bool moved = true;
    while (moved) {
      moved = network.Pump();
      moved = (!prefill_stopped && sender->Step()) || moved;
      moved = (!decode_stopped && receiver->Step()) || moved;
    }
  }
  // Settles, and lets time pass until `us` from now.
  void RunFor(int64_t us) {
    const int64_t end = clock.NowUs() + us;
    Settle();
    while (clock.NowUs() < end) {
      const int64_t next = std::min(
          {network.NextEventUs(), sender->NextDeadlineUs(), receiver->NextDeadlineUs(), end});
      clock.AdvanceUs(std::max<int64_t>(next - clock.NowUs(), 1));
      Settle();
    }
  }

  ManualClock clock;
  VirtualNetwork network;
  std::unique_ptr<PdTransport> sender_transport, receiver_transport;
  std::unique_ptr<PdSender> sender;
  std::unique_ptr<PdReceiver> receiver;
  bool prefill_stopped = false, decode_stopped = false;
};

}  // namespace tern::testing
