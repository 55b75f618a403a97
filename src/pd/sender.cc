#include "pd/sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tensor/tensor.h"

namespace tern {

struct PdSender::Peer {
  struct Slot {
    bool busy = false;
    uint64_t room = 0;
    uint32_t generation = 0;
    int64_t sent_us = 0;
  };
  std::unique_ptr<PdLink> link;
  bool open = false, closed = false;
  std::unique_ptr<RowConverter> converter;
  std::vector<std::byte> page;  // what is being converted, in the wire's format
  std::vector<Slot> slots;      // the receiver's

  const PageFormat& format() const { return converter->to().format; }
  int64_t FreeSlot() const {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (!slots[i].busy) return static_cast<int64_t>(i);
    }
    return -1;
  }
};

PdSender::PdSender(Options options, const Ops& ops, const Clock& clock, PdTransport& transport)
    : options_(std::move(options)), ops_(ops), clock_(clock), transport_(transport) {}
PdSender::~PdSender() = default;

PdSender::Room* PdSender::Find(uint64_t room) {
  const auto it = rooms_.find(room);
  return it == rooms_.end() ? nullptr : &it->second;
}

Status PdSender::Open(uint64_t id, std::span<const int32_t> prompt, PdSource* source) {
  if (prompt.empty()) return InvalidArgument("an empty prompt has no rows to hand off");
  if (rooms_.count(id) > 0) {
    return InvalidArgument(fmt::format("bootstrap_room {} is in use", id));
  }
  const auto early = early_.find(id);
  const bool asked_again = early != early_.end() && !early->second.recompute.tokens.empty();
  if (used_.count(id) > 0 && !asked_again) {
    return InvalidArgument(fmt::format("bootstrap_room {} has been used before", id));
  }
  Room& room = rooms_[id];
  room.prompt_digest = PromptDigest(prompt);
  room.prompt_tokens = static_cast<int64_t>(prompt.size());
  room.source = source;
  room.times.opened_us = clock_.NowUs();
  ++stats_.rooms_opened;
  if (early == early_.end()) return OkStatus();
  Asked asked = std::move(early->second);
  early_.erase(early);
  Match(id, room, std::move(asked));
  return OkStatus();
}

void PdSender::Match(uint64_t id, Room& room, Asked asked) {
  const bool same =
      asked.prompt_digest == room.prompt_digest && asked.prompt_tokens == room.prompt_tokens;
  room.times.bootstrapped_us = clock_.NowUs();
  room.state = PdState::kWaitingForInput;
  room.asked = std::move(asked);
  NoteUsed(id, UsedBy(*room.asked));
  if (const Status declined = room.asked->declined; !declined.ok()) {
    return Fail(id, room, declined, false, PdCode::kCancelled);
  }
  if (same) return;
  Fail(id, room, InvalidArgument("prefill and decode worker have different tokens for one prompt"),
       true, PdCode::kOtherPrompt);
}

void PdSender::Computed(uint64_t id, int64_t rows) {
  if (Room* room = Find(id)) {
    room->computed = std::clamp(rows, room->computed, room->prompt_tokens);
  }
}

void PdSender::Finish(uint64_t id, PdFirstToken first) {
  Room* room = Find(id);
  if (room == nullptr) return;
  room->computed = room->prompt_tokens;
  room->first = std::move(first);
}

void PdSender::Abort(uint64_t id, Status why) {
  if (Room* room = Find(id)) {
    const PdCode code = PdCodeOf(why);
    Fail(id, *room, std::move(why), true, code);
  }
}

void PdSender::Forget(uint64_t id) {
  Room* room = Find(id);
  if (room == nullptr) return;
  Fail(id, *room, Cancelled("the request has ended"), true, PdCode::kCancelled);
  // Whoever asks later learns why there is nothing.
  if (!room->asked) NoteUsed(id, {.ended = room->error});
  rooms_.erase(id);
}

void PdSender::Refuse(uint64_t id, Status why) {
  const auto early = early_.find(id);
  if (early == early_.end()) return;
  const Asked& asked = early->second;
  SendEnd(*asked.peer, id, asked.generation, PdCodeOf(why), why.message());
  ++stats_.requests_refused;
  early_.erase(early);
}

std::vector<PdRecompute> PdSender::TakeRecomputes() {
  std::vector<PdRecompute> result;
  for (auto& [id, asked] : early_) {
    if (asked.taken || rooms_.count(id) > 0) continue;
    asked.taken = true;
    result.push_back(asked.recompute);
  }
  return result;
}

// ---- Frames ---------------------------------------------------------------------------------

bool PdSender::PollPeer(const std::shared_ptr<Peer>& peer) {
  bool changed = false;
  PdEvent event;
  while (!peer->closed && peer->link->Poll(&event)) {
    changed = true;
    switch (event.kind) {
      case PdEvent::Kind::kOpen:
        peer->open = true;
        peer->converter =
            std::make_unique<RowConverter>(ops_, options_.rows, peer->link->wire_rows());
        peer->page.resize(static_cast<size_t>(peer->format().page_bytes()));
        peer->slots.resize(peer->link->peer().landing_slots);
        ++stats_.links_opened;
        break;
      case PdEvent::Kind::kFrame:
        OnFrame(peer, event);
        break;
      case PdEvent::Kind::kClosed:
        OnPeerClosed(peer, event.status);
        break;
    }
  }
  return changed;
}

void PdSender::OnPeerClosed(const std::shared_ptr<Peer>& peer, const Status& why) {
  if (peer->closed) return;
  peer->closed = true;
  ++stats_.links_closed;
  for (auto& [id, room] : rooms_) {
    if (!room.asked || room.asked->peer != peer) continue;
    Fail(id, room, LostLink(why, "the decode worker " + peer->link->peer_name()), false,
         PdCode::kShutdown);
  }
  std::erase_if(early_, [&](const auto& entry) { return entry.second.peer == peer; });
  peer->link->Close();
}

void PdSender::OnFrame(const std::shared_ptr<Peer>& peer, const PdEvent& event) {
  const PdHeader& header = event.header;
  switch (header.type) {
    case PdFrameType::kRequest:
      return OnRequest(peer, event);
    case PdFrameType::kAck:
      return OnAck(*peer, header);
    case PdFrameType::kAbort:
      return OnAbort(peer, event);
    case PdFrameType::kDone:
      if (Room* room = Find(header.room);
          room != nullptr && room->asked && room->asked->peer == peer &&
          room->asked->generation == header.generation && room->state == PdState::kTransferring &&
          room->last_sent) {
        room->state = PdState::kSuccess;
        room->times.ended_us = clock_.NowUs();
        ++stats_.rooms_succeeded;
        return;
      }
      break;
    case PdFrameType::kAbortAck:
      return;
    default:
      break;
  }
  ++stats_.unknown_frames;
}

Status PdSender::CheckRequest(const Peer& peer, const PdHeader& header, const PdRequest& request) {
  const int64_t page = peer.format().page_tokens();
  if (static_cast<int64_t>(request.tags.size()) != (request.prompt_tokens + page - 1) / page) {
    return InvalidArgument("the request's pages are not those of its prompt");
  }
  const uint64_t nonce = peer.link->peer().boot_nonce;
  const auto used = used_.find(header.room);
  const Room* room = Find(header.room);
  const Status in_use = InvalidArgument(
      fmt::format("bootstrap_room {} is in use or has been used before", header.room));
  if (used != used_.end() && !used->second.ended.ok()) return used->second.ended;
  if (used != used_.end() && (used->second.boot_nonce != nonce || request.tokens.empty() ||
                              used->second.generation >= header.generation)) {
    return in_use;
  }
  // A room that was never asked for but has ended: its request failed before.
  if (used == used_.end() && room != nullptr && room->state == PdState::kFailed) {
    return room->error;
  }
  const auto early = early_.find(header.room);
  if (early != early_.end() && (early->second.peer->link->peer().boot_nonce != nonce ||
                                early->second.generation >= header.generation)) {
    return in_use;
  }
  if (early == early_.end() && static_cast<int64_t>(early_.size()) >= options_.max_early_requests) {
    return ResourceExhausted("too many rooms wait for their request");
  }
  return OkStatus();
}

void PdSender::OnRequest(const std::shared_ptr<Peer>& peer, const PdEvent& event) {
  const PdHeader& header = event.header;
  Result<PdRequest> request = DecodePdRequest(header, event.body);
  if (const Status status = request.ok() ? CheckRequest(*peer, header, *request) : request.status();
      !status.ok()) {
    ++stats_.requests_refused;
    return SendEnd(
        *peer, header.room, header.generation,
        status.code() == StatusCode::kInvalidArgument ? PdCode::kRoomInUse : PdCodeOf(status),
        status.message());
  }
  Asked asked{.peer = peer,
              .generation = header.generation,
              .prompt_digest = request->prompt_digest,
              .prompt_tokens = request->prompt_tokens,
              .tags = std::move(request->tags),
              .came_us = clock_.NowUs(),
              .taken = request->tokens.empty(),
              .recompute = {header.room, std::move(request->tokens), std::move(request->cache_salt),
                            std::move(request->extra_key)}};
  Room* room = Find(header.room);
  if (room != nullptr && !room->asked) return Match(header.room, *room, std::move(asked));
  // The receiver has given up what it asked for before.
  if (room != nullptr) {
    Fail(header.room, *room, Cancelled("the decode worker asked for the room again"), false,
         PdCode::kCancelled);
  }
  early_[header.room] = std::move(asked);
}

void PdSender::OnAck(Peer& peer, const PdHeader& header) {
  if (header.slot >= peer.slots.size() || !peer.slots[header.slot].busy ||
      peer.slots[header.slot].room != header.room ||
      peer.slots[header.slot].generation != header.generation) {
    ++stats_.unknown_frames;
    return;
  }
  peer.slots[header.slot].busy = false;
  Room* room = Find(header.room);
  if (room == nullptr || !room->asked || room->asked->generation != header.generation) return;
  --room->unacked;
  room->waiting_since_us = clock_.NowUs();
}

void PdSender::OnAbort(const std::shared_ptr<Peer>& peer, const PdEvent& event) {
  const PdHeader& header = event.header;
  const Result<PdEnd> end = DecodePdEnd(header, event.body);
  const Status why = (end.ok() ? StatusOf(*end) : end.status()).WithContext("decode worker");
  peer->link->Send(EncodePdFrame(
      {.type = PdFrameType::kAbortAck, .generation = header.generation, .room = header.room}));
  const auto mine = [&](const Asked& asked) {
    return asked.peer == peer && asked.generation == header.generation;
  };
  Room* room = Find(header.room);
  if (room != nullptr && room->asked) {
    if (mine(*room->asked)) Fail(header.room, *room, why, false, PdCode::kCancelled);
    return;
  }
  // A room that nobody asked for yet, or whose request waits for the local one: both end.
  const auto early = early_.find(header.room);
  const bool full = static_cast<int64_t>(early_.size()) >= options_.max_early_requests;
  if (early != early_.end() ? !mine(early->second) : used_.count(header.room) > 0 || full) return;
  Asked asked{.peer = peer,
              .generation = header.generation,
              .came_us = clock_.NowUs(),
              .taken = true,
              .declined = why};
  if (room != nullptr) return Match(header.room, *room, std::move(asked));
  early_[header.room] = std::move(asked);
}

void PdSender::SendEnd(Peer& peer, uint64_t id, uint32_t generation, PdCode code,
                       std::string_view text) {
  peer.link->Send(EncodePdFrame({.type = PdFrameType::kAbort, .generation = generation, .room = id},
                                PdEnd{code, std::string(text)}));
}

// ---- Pages ----------------------------------------------------------------------------------

bool PdSender::Advance(uint64_t id, Room& room) {
  if (room.state != PdState::kWaitingForInput && room.state != PdState::kTransferring) return false;
  Peer& peer = *room.asked->peer;
  const int64_t page_tokens = peer.format().page_tokens();
  const auto pages = static_cast<int64_t>(room.asked->tags.size());
  bool changed = false;
  while (room.next_page < pages && peer.FreeSlot() >= 0 &&
         std::min((room.next_page + 1) * page_tokens, room.prompt_tokens) <= room.computed) {
    changed = true;
    if (const Status status = SendPage(id, room, peer); !status.ok()) {
      ++stats_.bad_pages;
      Fail(id, room, status, true, PdCodeOf(status));
      return true;
    }
  }
  if (room.next_page < pages || !room.first || room.last_sent) return changed;
  room.last_sent = true;
  room.waiting_since_us = clock_.NowUs();
  SendLast(id, room);
  return true;
}

bool PdSender::RepeatLasts() {
  bool changed = false;
  for (auto& [id, room] : rooms_) {
    if (room.state != PdState::kTransferring || !room.last_sent ||
        clock_.NowUs() < room.LastAgainUs(options_.timeouts)) {
      continue;
    }
    changed = true;
    SendLast(id, room);
  }
  return changed;
}

Status PdSender::SendPage(uint64_t id, Room& room, Peer& peer) {
  const PageFormat& format = peer.format();
  const int64_t first = room.next_page * format.page_tokens();
  const int64_t rows = std::min(format.page_tokens(), room.prompt_tokens - first);
  TERN_ASSIGN_OR_RETURN(const auto pages, room.source->Read(first, rows));
  peer.converter->Convert(pages, first, rows, peer.page.data());
  std::vector<uint64_t> sums;
  SealSums(format, peer.page.data(), first, rows, &sums);

  const auto slot = static_cast<uint32_t>(peer.FreeSlot());
  const auto index = static_cast<size_t>(room.next_page);
  std::vector<std::byte> frame =
      EncodePdPage({.generation = room.asked->generation,
                    .room = id,
                    .tag = room.asked->tags[index],
                    .slot = slot,
                    .page = static_cast<uint32_t>(index),
                    .rows = static_cast<uint16_t>(rows),
                    .format = static_cast<uint8_t>(format.format())},
                   sums.size(), static_cast<size_t>(PayloadBytes(format, rows)));
  PackRows(format, peer.page.data(), rows, PdPayloadOf(frame, sums.size()));
  SealPdPage(frame, sums);

  const int64_t now = clock_.NowUs();
  peer.slots[slot] = {
      .busy = true, .room = id, .generation = room.asked->generation, .sent_us = now};
  ++room.unacked;
  ++room.next_page;
  ++room.times.pages;
  room.times.bytes += static_cast<int64_t>(frame.size());
  ++stats_.pages;
  stats_.page_bytes += static_cast<int64_t>(frame.size());
  if (room.state == PdState::kWaitingForInput) {
    room.state = PdState::kTransferring;
    room.times.first_page_us = now;
  }
  peer.link->Send(std::move(frame));
  return OkStatus();
}

void PdSender::SendLast(uint64_t id, Room& room) {
  room.last_us = clock_.NowUs();
  room.asked->peer->link->Send(
      EncodePdFrame({.type = PdFrameType::kLast, .generation = room.asked->generation, .room = id},
                    PdLast{.prompt_digest = room.prompt_digest,
                           .prompt_tokens = static_cast<uint32_t>(room.prompt_tokens),
                           .pages = static_cast<uint32_t>(room.next_page),
                           .first = *room.first}));
}

// ---- The end --------------------------------------------------------------------------------

void PdSender::Fail(uint64_t id, Room& room, Status why, bool tell, PdCode code) {
  if (room.state == PdState::kFailed || room.state == PdState::kSuccess) return;
  if (tell && room.asked && !room.asked->peer->closed) {
    SendEnd(*room.asked->peer, id, room.asked->generation, code, why.message());
  }
  ++stats_.rooms_failed;
  if (room.state == PdState::kBootstrapping) ++stats_.bootstraps_failed;
  room.state = PdState::kFailed;
  room.error = std::move(why);
  room.times.ended_us = clock_.NowUs();
}

PdSender::Used PdSender::UsedBy(const Asked& asked) {
  return {.boot_nonce = asked.peer->link->peer().boot_nonce, .generation = asked.generation};
}

void PdSender::NoteUsed(uint64_t id, Used used) {
  if (used_.count(id) == 0) used_order_.push_back(id);
  used_[id] = std::move(used);
  while (static_cast<int64_t>(used_order_.size()) > options_.max_used_rooms) {
    used_.erase(used_order_.front());
    used_order_.pop_front();
  }
}

bool PdSender::EndLate() {
  const int64_t now = clock_.NowUs();
  bool changed = false;
  const auto late = [&](uint64_t id, Room& room, std::string what) {
    changed = true;
    Fail(id, room, {StatusCode::kDeadlineExceeded, std::move(what)}, true, PdCode::kTimedOut);
  };
  for (auto& [id, room] : rooms_) {
    if (room.state == PdState::kBootstrapping &&
        now >= room.times.opened_us + options_.timeouts.bootstrap_us) {
      late(id, room, fmt::format("no decode worker asked for bootstrap_room {} in time", id));
    } else if (room.state == PdState::kTransferring && room.last_sent &&
               now >= room.waiting_since_us + options_.timeouts.ack_us) {
      late(id, room, "the decode worker did not confirm the transfer in time");
    }
  }
  for (auto it = early_.begin(); it != early_.end();) {
    const Asked& asked = it->second;
    if (now < asked.came_us + options_.timeouts.waiting_us) {
      ++it;
      continue;
    }
    changed = true;
    SendEnd(*asked.peer, it->first, asked.generation, PdCode::kTimedOut,
            "no request came for the room");
    NoteUsed(it->first, UsedBy(asked));
    it = early_.erase(it);
  }
  for (const auto& peer : peers_) {
    const bool stuck = std::any_of(peer->slots.begin(), peer->slots.end(), [&](const auto& slot) {
      return slot.busy && now >= slot.sent_us + options_.timeouts.ack_us;
    });
    if (!stuck || peer->closed) continue;
    changed = true;
    OnPeerClosed(peer, {StatusCode::kDeadlineExceeded, "it did not acknowledge a page in time"});
  }
  return changed;
}

bool PdSender::Step() {
  bool changed = false;
  while (std::unique_ptr<PdLink> link = transport_.Accept()) {
    peers_.push_back(std::make_shared<Peer>());
    peers_.back()->link = std::move(link);
    changed = true;
  }
  for (const auto& peer : peers_) changed = PollPeer(peer) || changed;
  for (auto& [id, room] : rooms_) changed = Advance(id, room) || changed;
  changed = EndLate() || changed;
  changed = RepeatLasts() || changed;
  std::erase_if(peers_, [](const auto& peer) { return peer->closed; });
  return changed;
}

int64_t PdSender::NextDeadlineUs() const {
  int64_t next = INT64_MAX;
  const PdTimeouts& t = options_.timeouts;
  for (const auto& [id, room] : rooms_) {
    if (room.state == PdState::kBootstrapping) {
      next = std::min(next, room.times.opened_us + t.bootstrap_us);
    } else if (room.state == PdState::kTransferring && room.last_sent) {
      next = std::min({next, room.waiting_since_us + t.ack_us, room.LastAgainUs(t)});
    }
  }
  for (const auto& [id, asked] : early_) next = std::min(next, asked.came_us + t.waiting_us);
  for (const auto& peer : peers_) {
    for (const Peer::Slot& slot : peer->slots) {
      if (slot.busy) next = std::min(next, slot.sent_us + t.ack_us);
    }
  }
  return next;
}

PdState PdSender::state(uint64_t id) const {
  const auto it = rooms_.find(id);
  return it == rooms_.end() ? PdState::kFailed : it->second.state;
}

Status PdSender::error(uint64_t id) const {
  const auto it = rooms_.find(id);
  return it == rooms_.end() ? NotFound(fmt::format("bootstrap_room {} is not open", id))
                            : it->second.error;
}

PdRoomTimes PdSender::times(uint64_t id) const {
  const auto it = rooms_.find(id);
  return it == rooms_.end() ? PdRoomTimes{} : it->second.times;
}

}  // namespace tern
