// PdReceiver: the decode worker's side of all its rooms: asks the prefill worker, copies landed
// pages to the pool's, verifies them there and keeps their seal sums (docs/formats/pd_wire.md, A
// room). A state machine without threads: Step does what can be done now and never waits.
// Owner: the decode engine. Thread: the engine thread; its landing filter alone is also asked by
// the transport's thread.
//
//   Open -> kBootstrapping -(link open, REQUEST sent)-> kWaitingForInput -(a page in place)->
//   kTransferring -(all pages and LAST in place, DONE sent)-> kSuccess
//   any state -> kFailed: Abort, ABORT, a closed link, a time-out, a page that fails its check
//
// Once a room is final no frame of it can touch its pages; they may be released at once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/ops.h"
#include "pd/convert.h"
#include "pd/room.h"
#include "pd/transfer.h"

namespace tern {

// A room's pages where decode keeps them.
class PdTarget {
 public:
  virtual ~PdTarget() = default;
  // The tags that the holder recorded when it acquired its pages, ceil(prompt / P) of them.
  virtual std::vector<uint64_t> Tags() = 0;
  // Base of page `index` of the room, if it still is the page whose tag was recorded. Errors:
  // kDataLoss, which ends the room.
  virtual Result<std::byte*> Page(int64_t index) = 0;
  // Page `index` holds `rows` rows, verified in place. `sums`: their seal sums, one for
  // each layer (kv/seal.h); keep them as the page's own.
  virtual void Landed(int64_t index, int64_t rows, std::span<const uint64_t> sums) = 0;
};

struct PdOpen {
  std::string host;  // as PeerList::Resolve returned it
  int port = 8998;
  uint64_t room = 0;
  std::span<const int32_t> prompt;
  // After a retraction: the sender shall compute for this room alone. The room may have been used.
  bool recompute = false;
  std::string cache_salt, extra_key;  // for recompute
};

class PdReceiver {
 public:
  struct Options {
    PdRows rows;  // of the decode pool
    PdTimeouts timeouts;
    int64_t max_used_rooms = 65536;
  };
  // All outlive the receiver.
  PdReceiver(Options options, const Ops& ops, const Clock& clock, PdTransport& transport);
  ~PdReceiver();

  // `target` lives until Forget. Errors: kInvalidArgument (the room is open, or has been used and
  // this is no recompute; too many pages).
  Status Open(const PdOpen& open, PdTarget* target);
  // Tells the sender that a room will never be asked for: out of pages, or too long for this
  // worker. Its request there ends at once instead of by time-out. Errors: Open's for the room's
  // number.
  Status Decline(const PdOpen& open, const Status& why);
  // Ends a room that is not final; the sender hears of it. kFailed with `why`.
  void Abort(uint64_t room, Status why);
  // Drops a room; its number stays used. Aborts it when it is not final.
  void Forget(uint64_t room);

  // Takes what came, places and verifies at most `max_pages` pages (so that a decode step is not
  // held up), ends what timed out. Returns whether anything changed.
  bool Step(int64_t max_pages = INT64_MAX);
  // When Step must run again at the latest, though nothing arrives; INT64_MAX: never.
  int64_t NextDeadlineUs() const;

  // kFailed for a room that is not open.
  PdState state(uint64_t room) const;
  Status error(uint64_t room) const;  // of a failed room
  // Of a room that succeeded.
  const PdFirstToken& first_token(uint64_t room) const;
  PdRoomTimes times(uint64_t room) const;
  bool empty() const { return rooms_.empty(); }
  const PdStats& stats() const { return stats_; }

 private:
  // Which pages may still land; the one part that the network thread sees.
  class Landing final : public PdFrameFilter {
   public:
    void Add(uint64_t room, uint32_t generation, std::vector<uint64_t> tags, int64_t prompt_tokens,
             int64_t page_tokens);
    void Remove(uint64_t room);
    bool Wants(const PdHeader& header) override;

   private:
    struct Entry {
      uint32_t generation = 0;
      std::vector<uint64_t> tags;
      std::vector<bool> promised;
      int64_t prompt_tokens = 0, page_tokens = 0;
    };
    Mutex mutex_;
    std::map<uint64_t, Entry> entries_ TERN_GUARDED_BY(mutex_);
  };
  struct Peer;  // one link
  struct Declined {
    std::shared_ptr<Peer> peer;
    uint64_t room = 0;
    Status why;
  };
  struct Room {
    PdState state = PdState::kBootstrapping;
    Status error;
    PdOpen open;                  // without the prompt
    std::vector<int32_t> prompt;  // for recompute
    Sha256Digest prompt_digest{};
    int64_t prompt_tokens = 0;
    PdTarget* target = nullptr;
    std::vector<uint64_t> tags;
    std::shared_ptr<Peer> peer;
    uint32_t generation = 0;
    std::vector<bool> placed;
    int64_t pages_placed = 0;
    std::optional<PdLast> last;
    int64_t last_us = 0;
    PdRoomTimes times;
  };

  std::shared_ptr<Peer> PeerFor(const std::string& host, int port);
  bool PollPeer(const std::shared_ptr<Peer>& peer, int64_t* max_pages);
  void OnFrame(Peer& peer, const PdEvent& event);
  void OnPage(Peer& peer, const PdEvent& event);
  Status Place(Peer& peer, Room& room, const PdEvent& event);
  void OnLast(Room& room, const PdEvent& event);
  void OnPeerClosed(const std::shared_ptr<Peer>& peer, const Status& why);
  Status CheckNumber(const PdOpen& open) const;
  void NoteUsed(uint64_t id);
  void SendRequest(uint64_t id, Room& room);
  void SendAbort(Peer& peer, uint64_t id, uint32_t generation, PdCode code, std::string_view text);
  void SendDeclined(const std::shared_ptr<Peer>& peer);
  static void SendDone(Peer& peer, uint64_t id, uint32_t generation);
  void CompleteIfWhole(uint64_t id, Room& room);
  bool EndLate();
  void Fail(uint64_t id, Room& room, Status why, bool tell, PdCode code);
  // The room that a frame is for, if it is live and the generation is its.
  Room* Live(const PdHeader& header);
  Room* Find(uint64_t room);

  const Options options_;
  const Ops& ops_;
  const Clock& clock_;
  PdTransport& transport_;
  Landing landing_;
  std::map<std::string, std::shared_ptr<Peer>> peers_;  // by "host port"
  std::map<uint64_t, Room> rooms_;
  std::vector<Declined> declined_;     // until their link is open
  std::vector<uint64_t> lost_;         // rooms that this Step's closed links took with them
  std::map<uint64_t, uint32_t> used_;  // by room: the generation that succeeded; 0: none did
  std::deque<uint64_t> used_order_;
  uint32_t generations_ = 0;
  PdStats stats_;
};

}  // namespace tern
