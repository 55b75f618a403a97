// PdSender: the prefill worker's side of all its rooms: converts pages as their rows are computed
// and sends them to the decode worker that asks for them (docs/formats/pd_wire.md, A room).
// A state machine without threads: Step does what can be done now and never waits. Owner: the
// prefill engine. Thread: the engine thread; the transport's own thread is behind PdLink.
//
//   Open -> kBootstrapping -(REQUEST)-> kWaitingForInput -(Computed, Step)-> kTransferring
//        -(all pages acknowledged, DONE)-> kSuccess
//   any state -> kFailed: Abort, ABORT, a closed link, a time-out, another prompt digest
//
// The engine keeps a room's pages until its state is final, then calls Forget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kernels/ops.h"
#include "pd/convert.h"
#include "pd/room.h"
#include "pd/transfer.h"

namespace tern {

// A room's rows where prefill keeps them.
class PdSource {
 public:
  virtual ~PdSource() = default;
  // Bases of the pages with positions [0, first + tokens), page i has [i * P, (i+1) * P) for the
  // pool's P; those that hold [first, first + tokens) have been checked: tags, and seals where they
  // are kept. Valid until the next engine action. Errors: kDataLoss, which ends the room.
  virtual Result<std::span<std::byte* const>> Read(int64_t first, int64_t tokens) = 0;
};

// A receiver asks for a prompt that no local request computes: after a retraction.
struct PdRecompute {
  uint64_t room = 0;
  std::vector<int32_t> tokens;
  std::string cache_salt, extra_key;
};

class PdSender {
 public:
  struct Options {
    PdRows rows;  // of the prefill pool
    PdTimeouts timeouts;
    int64_t max_early_requests = 4096;  // REQUESTs that wait for their local request
    int64_t max_used_rooms = 65536;     // numbers remembered as used
  };
  // All outlive the sender.
  PdSender(Options options, const Ops& ops, const Clock& clock, PdTransport& transport);
  ~PdSender();

  // A local request with this bootstrap_room. `source` lives until Forget. Errors: kInvalidArgument
  // (the room is open or has been used; more tokens than a room's pages can hold).
  Status Open(uint64_t room, std::span<const int32_t> prompt, PdSource* source);
  // Rows [0, rows) of the prompt are written and will not change. Their whole pages go out in the
  // next Step, while later rows are computed.
  void Computed(uint64_t room, int64_t rows);
  // The prompt is complete. The room succeeds when the receiver has verified all of it.
  void Finish(uint64_t room, PdFirstToken first);
  // Ends a room that is not final: the client is gone, the engine can't go on. The receiver hears
  // of it. kFailed with `why`.
  void Abort(uint64_t room, Status why);
  // Drops a room; its number stays used. Aborts it when it is not final.
  void Forget(uint64_t room);

  // Takes what came, sends what can be sent, ends what timed out. Returns whether anything changed.
  bool Step();
  // When Step must run again at the latest, though nothing arrives; INT64_MAX: never.
  int64_t NextDeadlineUs() const;
  // REQUESTs that bring their tokens, since the last call. The engine makes a request of each and
  // Opens its room, or calls Refuse.
  std::vector<PdRecompute> TakeRecomputes();
  void Refuse(uint64_t room, Status why);

  // kFailed for a room that is not open.
  PdState state(uint64_t room) const;
  Status error(uint64_t room) const;  // of a failed room
  PdRoomTimes times(uint64_t room) const;
  bool empty() const { return rooms_.empty(); }
  const PdStats& stats() const { return stats_; }

 private:
  struct Peer;    // one link
  struct Asked {  // a REQUEST
    std::shared_ptr<Peer> peer;
    uint32_t generation = 0;
    Sha256Digest prompt_digest{};
    uint32_t prompt_tokens = 0;
    std::vector<uint64_t> tags;
    int64_t came_us = 0;
    bool taken = false;  // by TakeRecomputes, or it has no tokens
    Status declined;     // not asked for: an ABORT came first
    PdRecompute recompute;
  };
  struct Room {
    PdState state = PdState::kBootstrapping;
    Status error;
    Sha256Digest prompt_digest{};
    int64_t prompt_tokens = 0;
    PdSource* source = nullptr;
    std::optional<Asked> asked;
    int64_t computed = 0;
    int64_t next_page = 0;  // the receiver's pages below this have been sent
    int64_t unacked = 0;    // pages under way
    std::optional<PdFirstToken> first;
    bool last_sent = false;
    int64_t last_us = 0;           // when
    int64_t waiting_since_us = 0;  // for ACK or DONE
    int64_t LastAgainUs(const PdTimeouts& t) const {
      return std::max(last_us, waiting_since_us) + t.last_us;
    }
    PdRoomTimes times;
  };
  // Who used a room's number last, so that it is accepted once.
  struct Used {
    uint64_t boot_nonce = 0;
    uint32_t generation = 0;
    Status ended;  // why the room ended before anybody asked for it
  };

  bool PollPeer(const std::shared_ptr<Peer>& peer);
  void OnFrame(const std::shared_ptr<Peer>& peer, const PdEvent& event);
  void OnRequest(const std::shared_ptr<Peer>& peer, const PdEvent& event);
  // Why a REQUEST is not accepted; ok when it is.
  Status CheckRequest(const Peer& peer, const PdHeader& header, const PdRequest& request);
  void OnAck(Peer& peer, const PdHeader& header);
  void OnAbort(const std::shared_ptr<Peer>& peer, const PdEvent& event);
  void OnPeerClosed(const std::shared_ptr<Peer>& peer, const Status& why);
  void Match(uint64_t id, Room& room, Asked asked);
  bool Advance(uint64_t id, Room& room);
  Status SendPage(uint64_t id, Room& room, Peer& peer);
  void SendLast(uint64_t id, Room& room);
  // To those whose DONE does not come: a receiver that is done says so again.
  bool RepeatLasts();
  void SendEnd(Peer& peer, uint64_t id, uint32_t generation, PdCode code, std::string_view text);
  bool EndLate();
  // Final: nothing more is sent for it but, with `tell`, an ABORT.
  void Fail(uint64_t id, Room& room, Status why, bool tell, PdCode code);
  void NoteUsed(uint64_t id, Used used);
  static Used UsedBy(const Asked& asked);
  Room* Find(uint64_t room);

  const Options options_;
  const Ops& ops_;
  const Clock& clock_;
  PdTransport& transport_;
  std::vector<std::shared_ptr<Peer>> peers_;
  std::map<uint64_t, Room> rooms_;
  std::map<uint64_t, Asked> early_;  // REQUESTs without a local request, by room
  std::map<uint64_t, Used> used_;
  std::deque<uint64_t> used_order_;
  PdStats stats_;
};

}  // namespace tern
