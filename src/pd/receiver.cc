#include "pd/receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tern {
namespace {

bool SameFormats(const PageFormat& a, const PageFormat& b) {
  for (int64_t layer = 0; layer < a.layers(); ++layer) {
    if (a.slab(layer).format != b.slab(layer).format) return false;
  }
  return true;
}

}  // namespace

struct PdReceiver::Peer {
  std::string key;  // in peers_
  std::unique_ptr<PdLink> link;
  bool open = false, closed = false;
  // Where the receiver converts: what arrived, in the wire's format.
  std::unique_ptr<RowConverter> converter;
  std::vector<std::byte> page;

  bool converts() const { return converter != nullptr; }
};

// ---- What may land --------------------------------------------------------------------------

void PdReceiver::Landing::Add(uint64_t room, uint32_t generation, std::vector<uint64_t> tags,
                              int64_t prompt_tokens, int64_t page_tokens) {
  MutexLock lock(mutex_);
  const size_t pages = tags.size();
  entries_[room] = {.generation = generation,
                    .tags = std::move(tags),
                    .promised = std::vector<bool>(pages),
                    .prompt_tokens = prompt_tokens,
                    .page_tokens = page_tokens};
}

void PdReceiver::Landing::Remove(uint64_t room) {
  MutexLock lock(mutex_);
  entries_.erase(room);
}

bool PdReceiver::Landing::Wants(const PdHeader& header) {
  MutexLock lock(mutex_);
  const auto it = entries_.find(header.room);
  if (it == entries_.end()) return false;
  Entry& entry = it->second;
  if (entry.generation != header.generation || header.page >= entry.tags.size() ||
      entry.tags[header.page] != header.tag || entry.promised[header.page]) {
    return false;
  }
  const int64_t first = header.page * entry.page_tokens;
  if (header.rows != std::min(entry.page_tokens, entry.prompt_tokens - first)) return false;
  entry.promised[header.page] = true;
  return true;
}

// ---- Rooms ----------------------------------------------------------------------------------

PdReceiver::PdReceiver(Options options, const Ops& ops, const Clock& clock, PdTransport& transport)
    : options_(std::move(options)), ops_(ops), clock_(clock), transport_(transport) {}
PdReceiver::~PdReceiver() = default;

PdReceiver::Room* PdReceiver::Find(uint64_t room) {
  const auto it = rooms_.find(room);
  return it == rooms_.end() ? nullptr : &it->second;
}

PdReceiver::Room* PdReceiver::Live(const PdHeader& header) {
  Room* room = Find(header.room);
  const bool live =
      room != nullptr && room->generation == header.generation &&
      (room->state == PdState::kWaitingForInput || room->state == PdState::kTransferring);
  return live ? room : nullptr;
}

Status PdReceiver::CheckNumber(const PdOpen& open) const {
  if (rooms_.count(open.room) > 0) {
    return InvalidArgument(fmt::format("bootstrap_room {} is in use", open.room));
  }
  if (used_.count(open.room) > 0 && !open.recompute) {
    return InvalidArgument(fmt::format("bootstrap_room {} has been used before", open.room));
  }
  return OkStatus();
}

void PdReceiver::NoteUsed(uint64_t id) {
  if (used_.insert({id, 0}).second) used_order_.push_back(id);
  while (static_cast<int64_t>(used_order_.size()) > options_.max_used_rooms) {
    used_.erase(used_order_.front());
    used_order_.pop_front();
  }
}

Status PdReceiver::Decline(const PdOpen& open, const Status& why) {
  TERN_RETURN_IF_ERROR(CheckNumber(open));
  NoteUsed(open.room);
  const std::shared_ptr<Peer> peer = PeerFor(open.host, open.port);
  declined_.push_back({peer, open.room, why});
  if (peer->open) SendDeclined(peer);
  return OkStatus();
}

void PdReceiver::SendDeclined(const std::shared_ptr<Peer>& peer) {
  std::erase_if(declined_, [&](const Declined& declined) {
    if (declined.peer != peer) return false;
    if (!peer->closed) {
      SendAbort(*peer, declined.room, ++generations_, PdCodeOf(declined.why),
                declined.why.message());
    }
    return true;
  });
}

void PdReceiver::SendAbort(Peer& peer, uint64_t id, uint32_t generation, PdCode code,
                           std::string_view text) {
  peer.link->Send(EncodePdFrame({.type = PdFrameType::kAbort, .generation = generation, .room = id},
                                PdEnd{code, std::string(text)}));
}

Status PdReceiver::Open(const PdOpen& open, PdTarget* target) {
  if (open.prompt.empty()) return InvalidArgument("an empty prompt has no rows to hand off");
  TERN_RETURN_IF_ERROR(CheckNumber(open));
  const int64_t page = options_.rows.format.page_tokens();
  const auto tokens = static_cast<int64_t>(open.prompt.size());
  std::vector<uint64_t> tags = target->Tags();
  if (static_cast<int64_t>(tags.size()) != (tokens + page - 1) / page ||
      tags.size() > kPdMaxPages) {
    return InvalidArgument(
        fmt::format("{} pages don't hold a prompt of {} tokens", tags.size(), tokens));
  }
  NoteUsed(open.room);
  Room& room = rooms_[open.room];
  room.open = open;
  room.open.prompt = {};
  if (open.recompute) room.prompt.assign(open.prompt.begin(), open.prompt.end());
  room.prompt_digest = PromptDigest(open.prompt);
  room.prompt_tokens = tokens;
  room.target = target;
  room.placed.resize(tags.size());
  room.tags = std::move(tags);
  room.times.opened_us = clock_.NowUs();
  ++stats_.rooms_opened;
  room.peer = PeerFor(open.host, open.port);
  if (room.peer->open) SendRequest(open.room, room);
  return OkStatus();
}

std::shared_ptr<PdReceiver::Peer> PdReceiver::PeerFor(const std::string& host, int port) {
  const std::string key = fmt::format("{} {}", host, port);
  std::shared_ptr<Peer>& peer = peers_[key];
  if (peer == nullptr) {
    peer = std::make_shared<Peer>();
    peer->key = key;
    peer->link = transport_.Connect(host, port, &landing_);
  }
  return peer;
}

void PdReceiver::SendRequest(uint64_t id, Room& room) {
  room.generation = ++generations_;
  landing_.Add(id, room.generation, room.tags, room.prompt_tokens,
               options_.rows.format.page_tokens());
  room.peer->link->Send(
      EncodePdFrame({.type = PdFrameType::kRequest, .generation = room.generation, .room = id},
                    PdRequest{.prompt_digest = room.prompt_digest,
                              .prompt_tokens = static_cast<uint32_t>(room.prompt_tokens),
                              .tags = room.tags,
                              .tokens = room.prompt,
                              .cache_salt = room.open.cache_salt,
                              .extra_key = room.open.extra_key}));
  room.state = PdState::kWaitingForInput;
  room.times.bootstrapped_us = clock_.NowUs();
}

void PdReceiver::Abort(uint64_t id, Status why) {
  if (Room* room = Find(id)) {
    const PdCode code = PdCodeOf(why);
    Fail(id, *room, std::move(why), true, code);
  }
}

void PdReceiver::Forget(uint64_t id) {
  Room* room = Find(id);
  if (room == nullptr) return;
  Fail(id, *room, Cancelled("the request has ended"), true, PdCode::kCancelled);
  rooms_.erase(id);
}

void PdReceiver::Fail(uint64_t id, Room& room, Status why, bool tell, PdCode code) {
  if (room.state == PdState::kFailed || room.state == PdState::kSuccess) return;
  landing_.Remove(id);
  if (tell && !room.peer->closed) {
    if (room.generation != 0) {
      SendAbort(*room.peer, id, room.generation, code, why.message());
    } else {
      declined_.push_back({room.peer, id, why});
    }
  }
  ++stats_.rooms_failed;
  if (room.state == PdState::kBootstrapping) ++stats_.bootstraps_failed;
  room.state = PdState::kFailed;
  room.error = std::move(why);
  room.times.ended_us = clock_.NowUs();
  room.peer.reset();
}

// ---- Frames ---------------------------------------------------------------------------------

bool PdReceiver::PollPeer(const std::shared_ptr<Peer>& peer, int64_t* max_pages) {
  bool changed = false;
  PdEvent event;
  while (!peer->closed && *max_pages > 0 && peer->link->Poll(&event)) {
    changed = true;
    switch (event.kind) {
      case PdEvent::Kind::kOpen:
        peer->open = true;
        ++stats_.links_opened;
        if (const PdRows& wire = peer->link->wire_rows();
            !SameFormats(wire.format, options_.rows.format)) {
          peer->converter = std::make_unique<RowConverter>(ops_, wire, options_.rows);
          peer->page.resize(static_cast<size_t>(wire.format.page_bytes()));
        }
        SendDeclined(peer);
        for (auto& [id, room] : rooms_) {
          if (room.peer == peer) SendRequest(id, room);
        }
        break;
      case PdEvent::Kind::kFrame:
        if (event.header.type == PdFrameType::kPage) {
          --*max_pages;
          OnPage(*peer, event);
        } else {
          OnFrame(*peer, event);
        }
        break;
      case PdEvent::Kind::kClosed:
        OnPeerClosed(peer, event.status);
        break;
    }
  }
  return changed;
}

void PdReceiver::OnPeerClosed(const std::shared_ptr<Peer>& peer, const Status& why) {
  if (peer->closed) return;
  peer->closed = true;
  if (peer->open) ++stats_.links_closed;
  SendDeclined(peer);  // only forgets them
  for (auto& [id, room] : rooms_) {
    if (room.peer != peer) continue;
    Fail(id, room,
         peer->open ? LostLink(why, "the prefill worker " + peer->link->peer_name())
                    : why.WithContext("no connection to " + peer->link->peer_name()),
         false, PdCode::kShutdown);
    if (peer->open) lost_.push_back(id);
  }
  peer->link->Close();
}

void PdReceiver::OnFrame(Peer& peer, const PdEvent& event) {
  const PdHeader& header = event.header;
  if (header.type == PdFrameType::kAbortAck) return;
  Room* room = Live(header);
  if (header.type == PdFrameType::kAbort) {
    peer.link->Send(EncodePdFrame(
        {.type = PdFrameType::kAbortAck, .generation = header.generation, .room = header.room}));
    if (room == nullptr) return;
    const Result<PdEnd> end = DecodePdEnd(header, event.body);
    const Status why = (end.ok() ? StatusOf(*end) : end.status()).WithContext("prefill worker");
    return Fail(header.room, *room, why, false, PdCode::kCancelled);
  }
  if (header.type == PdFrameType::kLast && room != nullptr) {
    return room->last ? void() : OnLast(*room, event);
  }
  const auto used = used_.find(header.room);
  if (header.type == PdFrameType::kLast && header.generation != 0 && used != used_.end() &&
      used->second == header.generation) {
    return SendDone(peer, header.room, header.generation);  // the one before was lost
  }
  ++stats_.unknown_frames;
}

void PdReceiver::OnLast(Room& room, const PdEvent& event) {
  const uint64_t id = event.header.room;
  Result<PdLast> last = DecodePdLast(event.header, event.body);
  if (!last.ok()) return Fail(id, room, last.status(), true, PdCode::kBadPage);
  if (last->prompt_digest != room.prompt_digest || last->prompt_tokens != room.prompt_tokens) {
    return Fail(id, room,
                InvalidArgument("prefill and decode worker have different tokens for one prompt"),
                true, PdCode::kOtherPrompt);
  }
  if (last->pages != room.tags.size()) {
    return Fail(id, room,
                DataLoss(fmt::format("the prefill worker sent {} pages, the prompt has {}",
                                     last->pages, room.tags.size())),
                true, PdCode::kBadPage);
  }
  room.last = std::move(last).value();
  room.last_us = clock_.NowUs();
  CompleteIfWhole(id, room);
}

void PdReceiver::OnPage(Peer& peer, const PdEvent& event) {
  const PdHeader& header = event.header;
  Room* room = Live(header);
  const Status status = room == nullptr ? OkStatus() : Place(peer, *room, event);
  peer.link->Send(EncodePdFrame({.type = PdFrameType::kAck,
                                 .generation = header.generation,
                                 .room = header.room,
                                 .slot = header.slot,
                                 .page = header.page}));
  if (room == nullptr) {
    ++stats_.stale_frames;
  } else if (!status.ok()) {
    ++stats_.bad_pages;
    Fail(header.room, *room, status, true, PdCode::kBadPage);
  } else {
    CompleteIfWhole(header.room, *room);
  }
}

Status PdReceiver::Place(Peer& peer, Room& room, const PdEvent& event) {
  const PdHeader& header = event.header;
  const PageFormat& format = options_.rows.format;
  const PageFormat& wire = peer.converts() ? peer.link->wire_rows().format : format;
  TERN_ASSIGN_OR_RETURN(const PdPageBody body,
                        DecodePdPage(header, event.body, static_cast<size_t>(wire.layers())));
  if (header.page >= room.placed.size() || room.placed[header.page]) {
    return DataLoss(fmt::format("page {} came twice", header.page));
  }
  TERN_ASSIGN_OR_RETURN(std::byte* const page, room.target->Page(header.page));
  const int64_t first = header.page * format.page_tokens();
  std::byte* const landed = peer.converts() ? peer.page.data() : page;
  UnpackRows(wire, body.payload, header.rows, landed);
  std::vector<uint64_t> sums;
  SealSums(wire, landed, first, header.rows, &sums);
  if (sums != body.sums) {
    const auto differs = std::mismatch(sums.begin(), sums.end(), body.sums.begin()).first;
    return DataLoss(fmt::format("page {} of bootstrap_room {} fails its seal in layer {}",
                                header.page, header.room, differs - sums.begin()));
  }
  if (peer.converts()) {
    peer.converter->Convert({&landed, 1}, 0, header.rows, page);
    SealSums(format, page, first, header.rows, &sums);
  }
  room.target->Landed(header.page, header.rows, sums);
  room.placed[header.page] = true;
  ++room.pages_placed;
  ++room.times.pages;
  ++stats_.pages;
  const auto bytes = static_cast<int64_t>(kPdHeaderBytes + event.body.size());
  room.times.bytes += bytes;
  stats_.page_bytes += bytes;
  if (room.state == PdState::kWaitingForInput) {
    room.state = PdState::kTransferring;
    room.times.first_page_us = clock_.NowUs();
  }
  return OkStatus();
}

void PdReceiver::SendDone(Peer& peer, uint64_t id, uint32_t generation) {
  peer.link->Send(
      EncodePdFrame({.type = PdFrameType::kDone, .generation = generation, .room = id}));
}

void PdReceiver::CompleteIfWhole(uint64_t id, Room& room) {
  if (!room.last || room.pages_placed < static_cast<int64_t>(room.tags.size())) return;
  landing_.Remove(id);
  SendDone(*room.peer, id, room.generation);
  if (const auto used = used_.find(id); used != used_.end()) used->second = room.generation;
  room.state = PdState::kSuccess;
  room.times.ended_us = clock_.NowUs();
  room.peer.reset();
  ++stats_.rooms_succeeded;
}

// ---- Time -----------------------------------------------------------------------------------

bool PdReceiver::EndLate() {
  const int64_t now = clock_.NowUs();
  bool changed = false;
  for (auto& [id, room] : rooms_) {
    if (room.state != PdState::kWaitingForInput && room.state != PdState::kTransferring) continue;
    std::string what;
    if (room.last && now >= room.last_us + options_.timeouts.gap_us) {
      what = fmt::format("{} of {} pages of bootstrap_room {} did not arrive",
                         static_cast<int64_t>(room.tags.size()) - room.pages_placed,
                         room.tags.size(), id);
    } else if (now >= room.times.bootstrapped_us + options_.timeouts.waiting_us) {
      what = fmt::format("bootstrap_room {} was not transferred in time", id);
    } else {
      continue;
    }
    changed = true;
    Fail(id, room, {StatusCode::kDeadlineExceeded, what}, true, PdCode::kTimedOut);
  }
  return changed;
}

bool PdReceiver::Step(int64_t max_pages) {
  bool changed = false;
  // PollPeer changes no map: links are opened by Open alone.
  for (const auto& [key, peer] : peers_) changed = PollPeer(peer, &max_pages) || changed;
  changed = EndLate() || changed;
  std::erase_if(peers_, [](const auto& entry) { return entry.second->closed; });
  // A REQUEST that went down with its link may never have arrived, and prefill would wait for it.
  for (const uint64_t id : std::exchange(lost_, {})) {
    const Room& room = rooms_.at(id);
    declined_.push_back({PeerFor(room.open.host, room.open.port), id, room.error});
  }
  return changed;
}

int64_t PdReceiver::NextDeadlineUs() const {
  int64_t next = INT64_MAX;
  for (const auto& [id, room] : rooms_) {
    if (room.state != PdState::kWaitingForInput && room.state != PdState::kTransferring) continue;
    next = std::min(next, room.times.bootstrapped_us + options_.timeouts.waiting_us);
    if (room.last) next = std::min(next, room.last_us + options_.timeouts.gap_us);
  }
  return next;
}

PdState PdReceiver::state(uint64_t id) const {
  const auto it = rooms_.find(id);
  return it == rooms_.end() ? PdState::kFailed : it->second.state;
}

Status PdReceiver::error(uint64_t id) const {
  const auto it = rooms_.find(id);
  return it == rooms_.end() ? NotFound(fmt::format("bootstrap_room {} is not open", id))
                            : it->second.error;
}

const PdFirstToken& PdReceiver::first_token(uint64_t id) const {
  static const PdFirstToken kNone;
  const auto it = rooms_.find(id);
  return it == rooms_.end() || !it->second.last ? kNone : it->second.last->first;
}

PdRoomTimes PdReceiver::times(uint64_t id) const {
  const auto it = rooms_.find(id);
  return it == rooms_.end() ? PdRoomTimes{} : it->second.times;
}

}  // namespace tern
