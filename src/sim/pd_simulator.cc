#include "sim/pd_simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "kv/page_pool.h"
#include "pd/receiver.h"
#include "pd/sender.h"
#include "pd/virtual_network.h"
#include "tensor/number.h"

namespace tern {
namespace {

constexpr int kPrefill = 1, kDecode = 2;
constexpr int kPort = 8998;
constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kPoolPages = 14;
// Longer than any time-out below, one after the other.
constexpr int64_t kFinalWithinUs = 90 * kSecond;

PdTimeouts Timeouts() {
  return {.bootstrap_us = 20 * kSecond,
          .waiting_us = 20 * kSecond,
          .heartbeat_us = 5 * kSecond,
          .handshake_us = 5 * kSecond,
          .write_us = 10 * kSecond,
          .ack_us = 10 * kSecond,
          .gap_us = kSecond};
}

Ops& SharedOps() {
  thread_local ThreadPool pool(1);
  thread_local std::unique_ptr<Ops> ops = std::move(Ops::Create("", pool)).value();
  return *ops;
}

// BF16 rows of prompt number `prompt`, as a function of where they are.
void WriteRows(const PageFormat& format, uint64_t prompt, int64_t first, int64_t last,
               std::span<std::byte* const> pages) {
  for (int64_t layer = 0; layer < format.layers(); ++layer) {
    for (const KvRowPart& part : format.row_parts(layer)) {
      for (int64_t position = first; position < last; ++position) {
        std::byte* row = pages[static_cast<size_t>(position / format.page_tokens())] +
                         part.offset_bytes + position % format.page_tokens() * part.row_bytes;
        uint64_t x = Mix64(prompt * 1000003 + static_cast<uint64_t>(position * 64 + layer) +
                           static_cast<uint64_t>(part.offset_bytes != 64) * 32);
        for (int64_t i = 0; i < part.row_bytes / 2; ++i) {
          x = Mix64(x + 1);
          const uint16_t bits = Bf16FromFloat(static_cast<float>(x % 4001) / 64.0f - 31.0f);
          std::memcpy(row + 2 * i, &bits, 2);
        }
      }
    }
  }
}

std::vector<int32_t> TokensOf(uint64_t prompt, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(prompt * 100 + i));
  return tokens;
}

PdFirstToken FirstOf(uint64_t prompt, int64_t tokens) {
  return {.token = static_cast<int32_t>(prompt * 7 + 1),
          .logprob = -0.5f,
          .cached_tokens = 1,
          .seed = prompt,
          .position = static_cast<uint64_t>(tokens)};
}

// One request, as it comes to each side.
struct Request {
  uint64_t room = 0, prompt = 0;
  int64_t tokens = 0;
  uint64_t decode_prompt = 0;  // hardly ever another one
  int64_t prefill_us = 0, decode_us = 0;
  int64_t chunk = 1, chunk_us = 0;
  int64_t prefill_abort_us = -1, decode_abort_us = -1;
  bool retract = false;
};

struct Event {
  enum Kind { kStop, kGoOn, kKill } kind = kStop;
  int64_t at_us = 0;
  int process = kPrefill;
};

struct Rates {
  double lost = 0, doubled = 0, late = 0, damaged = 0, cut = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, const PdSimFaults& faults, PdSimCounts& counts)
      : rng_(seed), faults_(faults), counts_(counts) {
    MakeSchedule();
    reference_.emplace(SharedOps(), prefill_rows_, decode_rows_);
    network_.emplace(clock_, [this](bool, std::vector<std::byte>* frame) { return Fate(frame); });
    StartPrefill();
    StartDecode();
  }

  Status Run() {
    TERN_RETURN_IF_ERROR(RunUntilOver());
    // The network is well again and everybody runs: the next request is served.
    rates_ = {};
    for (const int process : {kPrefill, kDecode}) SetStopped(process, false);
    requests_.clear();
    events_.clear();
    // What was under way arrives, and links that it breaks are gone on both sides.
    for (const int64_t seconds : {30, 1}) {
      clock_.AdvanceUs(seconds * kSecond);
      TERN_RETURN_IF_ERROR(Settle());
    }
    requests_ = {{.room = 1'000'000,
                  .prompt = 99,
                  .tokens = 9,
                  .decode_prompt = 99,
                  .prefill_us = clock_.NowUs(),
                  .decode_us = clock_.NowUs(),
                  .chunk = 4}};
    const int64_t before = counts_.succeeded;
    TERN_RETURN_IF_ERROR(RunUntilOver());
    if (counts_.succeeded != before + 1) {
      return Bad("the request after all faults was not served: " + last_error_);
    }
    if (prefill_->pool.count(PageState::kFree) != kPoolPages) return Bad("prefill lost a page");
    if (decode_->pool.count(PageState::kFree) != kPoolPages) return Bad("decode lost a page");
    counts_.dropped_frames += network_->stats().dropped_frames;
    counts_.duplicate_frames += network_->stats().duplicate_frames;
    return OkStatus();
  }

 private:
  // A room's pages on the prefill side.
  struct Source final : PdSource {
    Result<std::span<std::byte* const>> Read(int64_t, int64_t) override {
      for (const PageRef ref : refs) {
        if (!pool->Matches(ref)) return DataLoss("a page of prefill failed its tag check");
      }
      return std::span<std::byte* const>(bases);
    }
    PagePool* pool = nullptr;
    std::vector<PageRef> refs;
    std::vector<std::byte*> bases;
    uint64_t prompt = 0;
    int64_t tokens = 0, written = 0, opened_us = 0, next_us = 0, abort_us = -1;
    int64_t chunk = 1, chunk_us = 0;
  };
  // A room's pages on the decode side.
  struct Target final : PdTarget {
    std::vector<uint64_t> Tags() override {
      std::vector<uint64_t> tags;
      for (const PageRef ref : refs) tags.push_back(static_cast<uint64_t>(ref.tag));
      return tags;
    }
    Result<std::byte*> Page(int64_t index) override {
      const PageRef ref = refs[static_cast<size_t>(index)];
      if (!sim->faults_.ignore_tags && !pool->Matches(ref)) return DataLoss("its tag has changed");
      return pool->base(ref.id);
    }
    void Landed(int64_t index, int64_t rows, std::span<const uint64_t> sums) override {
      landed[static_cast<size_t>(index)] = rows;
      sim->OnAdmitted(*this, index, rows, sums);
    }
    Simulation* sim = nullptr;
    PagePool* pool = nullptr;
    std::vector<PageRef> refs;
    std::vector<int64_t> landed;
    uint64_t prompt = 0;
    int64_t tokens = 0, opened_us = 0, abort_us = -1;
    bool retract = false, freed_early = false;
    int64_t release_us = -1;  // of a room that has succeeded
  };
  struct Prefill {
    Prefill(PagePool p) : pool(std::move(p)) {}
    PagePool pool;
    std::map<uint64_t, std::unique_ptr<Source>> rooms;
    std::unique_ptr<PdTransport> transport;
    std::unique_ptr<PdSender> sender;
  };
  struct Decode {
    Decode(PagePool p) : pool(std::move(p)), idle(kPoolPages) {}
    PagePool pool;
    std::map<uint64_t, std::unique_ptr<Target>> rooms;
    std::vector<std::optional<uint64_t>> idle;  // hash of the slabs of pages without a live room
    std::unique_ptr<PdTransport> transport;
    std::unique_ptr<PdReceiver> receiver;
  };

  // ---- The schedule

  void MakeSchedule() {
    static constexpr KvFormat kFormats[] = {KvFormat::kBf16, KvFormat::kFp8E4m3,
                                            KvFormat::kFp8Tiled};
    std::vector<KvLayerSpec> specs = {{.kv_heads = 1, .head_dim = 4, .k_scale = 0.25f}};
    if (rng_.Chance(0.5)) specs.push_back({.kv_heads = 1, .head_dim = 2, .index_dim = 4});
    const auto rows = [&](KvFormat format) {
      const int64_t page = int64_t{2} << rng_.Below(3);
      return PdRows{specs, PageFormat::Make(specs, format, page).value()};
    };
    prefill_rows_ = rows(KvFormat::kBf16);
    decode_rows_ = rows(kFormats[rng_.Below(3)]);
    convert_at_receiver_ = rng_.Chance(0.3);
    if (rng_.Chance(0.2)) secret_ = "sixteen bytes ok";
    landing_slots_ = static_cast<uint32_t>(1 + rng_.Below(4));
    double* const rates[] = {&rates_.lost, &rates_.doubled, &rates_.late, &rates_.damaged,
                             &rates_.cut};
    for (double* rate : rates) {
      if (rng_.Chance(0.3)) *rate = rng_.Uniform() * 0.1;
    }
    const uint64_t count = 1 + rng_.Below(4);
    for (uint64_t i = 0; i < count; ++i) {
      Request r;
      r.room = rng_.Chance(0.05) && i > 0 ? requests_[0].room : 10 + i;
      r.prompt = r.decode_prompt = 1 + i;
      if (rng_.Chance(0.02)) r.decode_prompt = 50;
      r.tokens = static_cast<int64_t>(1 + rng_.Below(20));
      r.prefill_us = static_cast<int64_t>(rng_.Below(2 * kSecond));
      r.decode_us = r.prefill_us + static_cast<int64_t>(rng_.Below(3000)) - 1000;
      if (rng_.Chance(0.05)) r.decode_us += 25 * kSecond;  // too late
      r.chunk = static_cast<int64_t>(1 + rng_.Below(8));
      r.chunk_us = static_cast<int64_t>(rng_.Below(200'000));
      const auto somewhen = [&] { return static_cast<int64_t>(rng_.Below(kSecond)); };
      if (rng_.Chance(0.1)) r.prefill_abort_us = r.prefill_us + somewhen();
      if (rng_.Chance(0.1)) r.decode_abort_us = r.decode_us + somewhen();
      r.retract = rng_.Chance(0.2);
      requests_.push_back(r);
    }
    for (const int process : {kPrefill, kDecode}) {
      const auto at = static_cast<int64_t>(rng_.Below(3 * kSecond));
      if (rng_.Chance(0.08)) events_.push_back({Event::kKill, at, process});
      if (rng_.Chance(0.08)) {
        events_.push_back({Event::kStop, at, process});
        events_.push_back(
            {Event::kGoOn, at + static_cast<int64_t>(rng_.Below(25 * kSecond)), process});
      }
    }
  }

  VirtualFate Fate(std::vector<std::byte>* frame) {
    VirtualFate fate{.delay_us = 50};
    const bool page = (*frame)[6] == std::byte{static_cast<uint8_t>(PdFrameType::kPage)};
    if (faults_.forge_sums && page && rng_.Chance(0.2)) Forge(frame);
    if (rng_.Chance(rates_.lost)) {
      ++counts_.lost;
      fate.copies = 0;
    }
    if (rng_.Chance(rates_.doubled)) {
      ++counts_.doubled;
      fate.copies = 2;
      fate.copy_delay_us = static_cast<int64_t>(rng_.Below(2 * kSecond));
    }
    if (rng_.Chance(rates_.late)) {
      ++counts_.late;
      fate.delay_us = static_cast<int64_t>(rng_.Below(rng_.Chance(0.1) ? 15 * kSecond : kSecond));
    }
    if (rng_.Chance(rates_.damaged)) {
      ++counts_.damaged;
      (*frame)[rng_.Below(frame->size())] ^= std::byte{1} << static_cast<int>(rng_.Below(8));
    }
    if (rng_.Chance(rates_.cut)) {
      ++counts_.cut;
      fate.cut_after_bytes = static_cast<int64_t>(rng_.Below(frame->size() + 1));
    }
    return fate;
  }

  // Damages the rows of a PAGE and makes its sums fit, as a bug at the sender would.
  void Forge(std::vector<std::byte>* frame) {
    const PdHeader header = DecodePdHeader(std::span(*frame).first<kPdHeaderBytes>()).value();
    if (header.has_mac) return;
    PdRows wire = NegotiateRows(prefill_rows_, decode_rows_, convert_at_receiver_).value();
    const PageFormat& format = wire.format;
    std::vector<std::byte> page(static_cast<size_t>(format.page_bytes()));
    const auto payload = PdPayloadOf(*frame, static_cast<size_t>(format.layers()));
    payload[rng_.Below(payload.size())] ^= std::byte{0x11};
    UnpackRows(format, payload, header.rows, page.data());
    std::vector<uint64_t> sums;
    SealSums(format, page.data(), header.page * format.page_tokens(), header.rows, &sums);
    SealPdPage(*frame, sums);
  }

  // ---- Processes

  PdLinkOptions Link(PdHello::Role role, uint64_t boot_nonce) const {
    const bool receiver = role == PdHello::Role::kReceiver;
    PdLinkOptions link{.secret = secret_, .timeouts = Timeouts()};
    link.self.boot_nonce = boot_nonce;
    link.self.landing_slots = receiver ? landing_slots_ : 0;
    link.self.max_body_bytes = 1 << 16;
    link.self.role = role;
    link.self.convert_at_receiver = receiver && convert_at_receiver_;
    DescribeRows(receiver ? decode_rows_ : prefill_rows_, &link.self);
    return link;
  }

  void StartPrefill() {
    const uint64_t nonce = ++boots_;
    prefill_ = std::make_unique<Prefill>(
        PagePool::Create(prefill_rows_.format, kPoolPages, nonce).value());
    prefill_->transport = network_->AddSender(kPrefill, kPort, Link(PdHello::Role::kSender, nonce));
    prefill_->sender =
        std::make_unique<PdSender>(PdSender::Options{.rows = prefill_rows_, .timeouts = Timeouts()},
                                   SharedOps(), clock_, *prefill_->transport);
  }
  void StartDecode() {
    const uint64_t nonce = ++boots_;
    decode_ =
        std::make_unique<Decode>(PagePool::Create(decode_rows_.format, kPoolPages, nonce).value());
    decode_->transport = network_->AddReceiver(kDecode, Link(PdHello::Role::kReceiver, nonce));
    decode_->receiver = std::make_unique<PdReceiver>(
        PdReceiver::Options{.rows = decode_rows_, .timeouts = Timeouts()}, SharedOps(), clock_,
        *decode_->transport);
  }
  void SetStopped(int process, bool stopped) {
    stopped_[process] = stopped;
    network_->Stop(process, stopped);
  }
  void Kill(int process) {
    ++counts_.killed;
    stopped_[process] = false;
    network_->Kill(process);
    if (process == kPrefill) {
      prefill_->sender.reset();
      StartPrefill();
    } else {
      NoteDecodeStats();
      decode_->receiver.reset();
      StartDecode();
    }
  }
  void NoteDecodeStats() {
    counts_.bad_pages += decode_->receiver->stats().bad_pages;
    counts_.stale_frames += decode_->receiver->stats().stale_frames;
  }

  // ---- Prefill

  bool AllocSource(Source* source) {
    const int64_t page = prefill_rows_.format.page_tokens();
    source->pool = &prefill_->pool;
    while (static_cast<int64_t>(source->refs.size()) * page < source->tokens) {
      const std::optional<PageRef> ref = prefill_->pool.Alloc();
      if (!ref) {
        for (const PageRef r : source->refs) prefill_->pool.Free(r);
        return false;
      }
      source->refs.push_back(*ref);
      source->bases.push_back(prefill_->pool.base(ref->id));
    }
    return true;
  }

  void ArriveAtPrefill(const Request& r) {
    auto source = std::make_unique<Source>();
    source->prompt = r.prompt;
    source->tokens = r.tokens;
    source->opened_us = source->next_us = clock_.NowUs();
    source->abort_us = r.prefill_abort_us;
    source->chunk = r.chunk;
    source->chunk_us = r.chunk_us;
    if (!AllocSource(source.get())) return;
    const auto tokens = TokensOf(r.prompt, r.tokens);
    if (!prefill_->sender->Open(r.room, tokens, source.get()).ok()) {
      ++counts_.refused;
      for (const PageRef ref : source->refs) prefill_->pool.Free(ref);
      return;
    }
    prefill_->rooms[r.room] = std::move(source);
  }

  void TakeRecomputes() {
    for (const PdRecompute& asked : prefill_->sender->TakeRecomputes()) {
      Request r{.room = asked.room,
                .prompt = static_cast<uint64_t>(asked.tokens[0] / 100),
                .tokens = static_cast<int64_t>(asked.tokens.size()),
                .chunk = 20};
      ArriveAtPrefill(r);
      if (prefill_->rooms.count(asked.room) == 0) {
        prefill_->sender->Refuse(asked.room, ResourceExhausted("out of pages"));
      }
    }
  }

  Status StepPrefill(bool* moved) {
    PdSender& sender = *prefill_->sender;
    *moved = sender.Step() || *moved;
    TakeRecomputes();
    for (auto it = prefill_->rooms.begin(); it != prefill_->rooms.end();) {
      Source& source = *it->second;
      const uint64_t id = it->first;
      const PdState state = sender.state(id);
      if (state == PdState::kSuccess || state == PdState::kFailed) {
        for (const PageRef ref : source.refs) prefill_->pool.Free(ref);
        sender.Forget(id);
        it = prefill_->rooms.erase(it);
        *moved = true;
        continue;
      }
      if (clock_.NowUs() > source.opened_us + kFinalWithinUs) {
        return Bad(fmt::format("room {} is {} at prefill for too long", id, PdStateName(state)));
      }
      if (source.abort_us >= 0 && clock_.NowUs() >= source.abort_us) {
        ++counts_.aborted;
        source.abort_us = -1;
        sender.Abort(id, Cancelled("the client is gone"));
        *moved = true;
      } else if (source.written < source.tokens && clock_.NowUs() >= source.next_us) {
        const int64_t end = std::min(source.tokens, source.written + source.chunk);
        WriteRows(prefill_rows_.format, source.prompt, source.written, end, source.bases);
        source.written = end;
        source.next_us = clock_.NowUs() + source.chunk_us;
        sender.Computed(id, end);
        if (end == source.tokens) sender.Finish(id, FirstOf(source.prompt, source.tokens));
        *moved = true;
      }
      ++it;
    }
    return OkStatus();
  }

  // ---- Decode

  uint64_t SlabHash(PageId page) const {
    return Hash64({decode_->pool.base(page) + sizeof(PageHeader),
                   static_cast<size_t>(decode_rows_.format.page_bytes()) - sizeof(PageHeader)});
  }
  void FreeTarget(Target& target) {
    for (const PageRef ref : target.refs) {
      decode_->pool.Free(ref);
      decode_->idle[static_cast<size_t>(ref.id)] = SlabHash(ref.id);
    }
  }

  void ArriveAtDecode(const Request& r, bool recompute) {
    const auto tokens = TokensOf(r.decode_prompt, r.tokens);
    const PdOpen open{
        .host = "prefill", .port = kPort, .room = r.room, .prompt = tokens, .recompute = recompute};
    auto target = std::make_unique<Target>();
    target->sim = this;
    target->pool = &decode_->pool;
    target->prompt = r.decode_prompt;
    target->tokens = r.tokens;
    target->opened_us = clock_.NowUs();
    target->abort_us = r.decode_abort_us;
    target->retract = r.retract && !recompute;
    const int64_t page = decode_rows_.format.page_tokens();
    bool whole = true;
    while (static_cast<int64_t>(target->refs.size()) * page < r.tokens) {
      const std::optional<PageRef> ref = decode_->pool.Alloc();
      if (!ref) {
        whole = false;
        break;
      }
      target->refs.push_back(*ref);
      decode_->idle[static_cast<size_t>(ref->id)].reset();
    }
    target->landed.resize(target->refs.size());
    if (!whole) {
      ++counts_.declined;
      (void)decode_->receiver->Decline(open, ResourceExhausted("out of pages")).ok();
      return FreeTarget(*target);
    }
    if (!decode_->receiver->Open(open, target.get()).ok()) {
      ++counts_.refused;
      return FreeTarget(*target);
    }
    ++counts_.rooms;
    if (recompute) ++counts_.recomputed;
    decode_->rooms[r.room] = std::move(target);
  }

  // The page holds what quantize-on-write of the prompt's rows gives, and its sums fit it.
  void OnAdmitted(const Target& target, int64_t index, int64_t rows,
                  std::span<const uint64_t> sums) {
    ++counts_.pages;
    const PageFormat &from = prefill_rows_.format, &to = decode_rows_.format;
    const int64_t first = index * to.page_tokens();
    scratch_.assign(
        static_cast<size_t>((target.tokens / from.page_tokens() + 1) * from.page_bytes()),
        std::byte{0});
    std::vector<std::byte*> pages;
    for (size_t at = 0; at < scratch_.size(); at += static_cast<size_t>(from.page_bytes())) {
      pages.push_back(scratch_.data() + at);
    }
    WriteRows(from, target.prompt, first, first + rows, pages);
    std::vector<std::byte> expected(static_cast<size_t>(to.page_bytes()));
    reference_->Convert(pages, first, rows, expected.data());
    std::vector<std::byte> a(static_cast<size_t>(PayloadBytes(to, rows))), b = a;
    PackRows(to, expected.data(), rows, a);
    PackRows(to, decode_->pool.base(target.refs[static_cast<size_t>(index)].id), rows, b);
    if (a != b) Note(fmt::format("page {} was admitted with wrong rows", index));
    std::vector<uint64_t> of_page;
    SealSums(to, decode_->pool.base(target.refs[static_cast<size_t>(index)].id), first, rows,
             &of_page);
    if (!std::equal(sums.begin(), sums.end(), of_page.begin(), of_page.end())) {
      Note(fmt::format("page {} was admitted with sums that are not its own", index));
    }
  }

  Status OnSuccess(uint64_t id, Target& target) {
    const int64_t page = decode_rows_.format.page_tokens();
    for (size_t i = 0; i < target.refs.size(); ++i) {
      const int64_t rows = std::min(page, target.tokens - static_cast<int64_t>(i) * page);
      if (target.landed[i] != rows) return Bad(fmt::format("room {} lacks page {}", id, i));
    }
    if (!(decode_->receiver->first_token(id) == FirstOf(target.prompt, target.tokens))) {
      return Bad(fmt::format("room {} has a wrong first token", id));
    }
    ++counts_.succeeded;
    target.release_us = clock_.NowUs() + static_cast<int64_t>(rng_.Below(kSecond));
    return OkStatus();
  }

  Status StepDecode(bool* moved) {
    PdReceiver& receiver = *decode_->receiver;
    *moved = receiver.Step(1 + static_cast<int64_t>(rng_.Below(3))) || *moved;
    std::vector<std::pair<Request, bool>> again;
    for (auto it = decode_->rooms.begin(); it != decode_->rooms.end();) {
      Target& target = *it->second;
      const uint64_t id = it->first;
      const PdState state = receiver.state(id);
      const bool over = state == PdState::kFailed ||
                        (target.release_us >= 0 && clock_.NowUs() >= target.release_us);
      if (state == PdState::kSuccess && target.release_us < 0) {
        TERN_RETURN_IF_ERROR(OnSuccess(id, target));
        *moved = true;
      } else if (over) {
        if (state == PdState::kFailed) {
          ++counts_.failed;
          last_error_ = receiver.error(id).message();
        }
        if (state == PdState::kSuccess && target.retract) {
          again.push_back(
              {Request{.room = id, .tokens = target.tokens, .decode_prompt = target.prompt}, true});
        }
        receiver.Forget(id);
        if (!target.freed_early) FreeTarget(target);
        it = decode_->rooms.erase(it);
        *moved = true;
        continue;
      } else if (state != PdState::kSuccess) {
        if (clock_.NowUs() > target.opened_us + kFinalWithinUs) {
          return Bad(fmt::format("room {} is {} at decode for too long", id, PdStateName(state)));
        }
        if (target.abort_us >= 0 && clock_.NowUs() >= target.abort_us) {
          ++counts_.aborted;
          target.abort_us = -1;
          *moved = true;
          if (faults_.ignore_tags) {
            FreeTarget(target);
            target.freed_early = true;
          } else {
            receiver.Abort(id, Cancelled("the client is gone"));
          }
        }
      }
      ++it;
    }
    for (const auto& [request, recompute] : again) ArriveAtDecode(request, recompute);
    return OkStatus();
  }

  // ---- The loop

  Status Bad(std::string what) const {
    return Internal(fmt::format("at {} us: {}", clock_.NowUs(), what));
  }
  void Note(std::string what) {
    if (bad_.ok()) bad_ = Bad(std::move(what));
  }

  Status CheckInvariants() {
    TERN_RETURN_IF_ERROR(bad_);
    TERN_RETURN_IF_ERROR(prefill_->pool.CheckInvariants());
    TERN_RETURN_IF_ERROR(decode_->pool.CheckInvariants());
    int64_t held = 0;
    for (const auto& [id, room] : prefill_->rooms) held += static_cast<int64_t>(room->refs.size());
    if (held != prefill_->pool.count(PageState::kHeld)) return Bad("prefill lost a page");
    held = 0;
    for (const auto& [id, room] : decode_->rooms) {
      if (!room->freed_early) held += static_cast<int64_t>(room->refs.size());
    }
    if (held != decode_->pool.count(PageState::kHeld)) return Bad("decode lost a page");
    for (size_t i = 0; i < decode_->idle.size(); ++i) {
      if (decode_->idle[i] && *decode_->idle[i] != SlabHash(PageId{static_cast<uint32_t>(i)})) {
        return Bad(fmt::format("page {} was written though no live room holds it", i));
      }
    }
    return OkStatus();
  }

  bool Due() {
    bool moved = false;
    const int64_t now = clock_.NowUs();
    for (Event& event : events_) {
      if (event.at_us < 0 || event.at_us > now) continue;
      event.at_us = -1;
      moved = true;
      if (event.kind == Event::kKill) {
        Kill(event.process);
      } else {
        if (event.kind == Event::kStop) ++counts_.stopped;
        SetStopped(event.process, event.kind == Event::kStop);
      }
    }
    for (Request& r : requests_) {
      if (r.prefill_us >= 0 && r.prefill_us <= now && !stopped_[kPrefill]) {
        r.prefill_us = -1;
        moved = true;
        ArriveAtPrefill(r);
      }
      if (r.decode_us <= now && r.decode_us != kNever && !stopped_[kDecode]) {
        r.decode_us = kNever;
        moved = true;
        ArriveAtDecode(r, false);
      }
    }
    return moved;
  }

  Status Settle() {
    bool moved = true;
    for (int round = 0; moved; ++round) {
      if (round > 10'000) return Bad("it never comes to rest");
      moved = Due();
      moved = network_->Pump() || moved;
      if (!stopped_[kPrefill]) TERN_RETURN_IF_ERROR(StepPrefill(&moved));
      if (!stopped_[kDecode]) TERN_RETURN_IF_ERROR(StepDecode(&moved));
      if (moved) TERN_RETURN_IF_ERROR(CheckInvariants());
    }
    return OkStatus();
  }

  bool Over() const {
    for (const Event& event : events_) {
      if (event.at_us >= 0) return false;
    }
    for (const Request& r : requests_) {
      if (r.prefill_us >= 0 || r.decode_us != kNever) return false;
    }
    return prefill_->rooms.empty() && decode_->rooms.empty();
  }

  int64_t NextUs() const {
    const int64_t now = clock_.NowUs();
    int64_t next = network_->NextEventUs();
    const auto take = [&](int64_t us) {
      if (us > now) next = std::min(next, us);
    };
    for (const Event& event : events_) take(event.at_us);
    for (const Request& r : requests_) {
      take(r.prefill_us);
      if (r.decode_us != kNever) take(r.decode_us);
    }
    if (!stopped_[kPrefill]) {
      take(prefill_->sender->NextDeadlineUs());
      for (const auto& [id, room] : prefill_->rooms) {
        if (room->written < room->tokens) take(room->next_us);
        take(room->abort_us);
      }
    }
    if (!stopped_[kDecode]) {
      take(decode_->receiver->NextDeadlineUs());
      for (const auto& [id, room] : decode_->rooms) {
        take(room->release_us);
        take(room->abort_us);
      }
    }
    return next;
  }

  Status RunUntilOver() {
    TERN_RETURN_IF_ERROR(Settle());
    while (!Over()) {
      const int64_t next = NextUs();
      if (next == INT64_MAX) return Bad("nothing will ever happen again, and rooms are open");
      clock_.AdvanceUs(std::max<int64_t>(next - clock_.NowUs(), 1));
      TERN_RETURN_IF_ERROR(Settle());
    }
    return OkStatus();
  }

  static constexpr int64_t kNever = INT64_MAX;

  Rng rng_;
  const PdSimFaults faults_;
  PdSimCounts& counts_;
  ManualClock clock_;
  Status bad_;
  std::string last_error_;  // of a room at decode
  PdRows prefill_rows_, decode_rows_;
  bool convert_at_receiver_ = false;
  std::string secret_;
  uint32_t landing_slots_ = 1;
  Rates rates_;
  std::vector<Request> requests_;
  std::vector<Event> events_;
  bool stopped_[3] = {};
  uint64_t boots_ = 0;
  std::vector<std::byte> scratch_;
  std::optional<RowConverter> reference_;
  std::optional<VirtualNetwork> network_;
  std::unique_ptr<Prefill> prefill_;
  std::unique_ptr<Decode> decode_;

 public:
  void NoteEnd() { NoteDecodeStats(); }
};

}  // namespace

PdSimCounts& PdSimCounts::operator+=(const PdSimCounts& o) {
  rooms += o.rooms, succeeded += o.succeeded, failed += o.failed, aborted += o.aborted;
  recomputed += o.recomputed, declined += o.declined, refused += o.refused, pages += o.pages;
  lost += o.lost, doubled += o.doubled, late += o.late, damaged += o.damaged, cut += o.cut;
  killed += o.killed, stopped += o.stopped, bad_pages += o.bad_pages;
  stale_frames += o.stale_frames, dropped_frames += o.dropped_frames;
  duplicate_frames += o.duplicate_frames;
  return *this;
}

Status RunPdSchedule(uint64_t seed, const PdSimFaults& faults, PdSimCounts* counts) {
  Simulation simulation(seed, faults, *counts);
  const Status status = simulation.Run();
  simulation.NoteEnd();
  return status;
}

}  // namespace tern
