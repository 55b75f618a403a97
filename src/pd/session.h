// PdSession: one end of a connection, as a function of the bytes that come and of time: handshake,
// framing, sequence numbers, macs, landing slots, heartbeats (docs/formats/pd_wire.md). It does no
// I/O: a transport gives it bytes and takes bytes (pd/tcp_transfer.cc), and so does the simulator.
// Private to transports. Thread: one, the transport's.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "pd/transfer.h"

namespace tern {

// Of one connection, or of many added up.
struct PdSessionStats {
  int64_t dropped_frames = 0;    // the filter did not want them: payload read over
  int64_t duplicate_frames = 0;  // by sequence number: read over
  PdSessionStats& operator+=(const PdSessionStats& other) {
    dropped_frames += other.dropped_frames;
    duplicate_frames += other.duplicate_frames;
    return *this;
  }
};

// A frame as a session gives it out. A PAGE's body lies in its landing slot; other bodies in
// `bytes`.
struct PdIncoming {
  PdEvent::Kind kind = PdEvent::Kind::kFrame;
  PdHeader header;
  std::span<const std::byte> landed;
  std::vector<std::byte> bytes;
  Status status;
  std::span<const std::byte> body() const { return landed.empty() ? std::span(bytes) : landed; }
};

// Accepts each number once, within the newest 64.
class SequenceWindow {
 public:
  // Seen before, or too old to tell.
  bool Seen(uint64_t sequence) const;
  void Mark(uint64_t sequence);

 private:
  uint64_t newest_ = 0;
  uint64_t seen_ = 0;  // bit i: newest_ - i
};

class PdSession {
 public:
  // options.self.role says which end this is; its nonce is taken as it is. `rows`: this side's,
  // what `self` describes. `filter`: a receiver's, outlives the session. A receiver's session has
  // HELLO to send at once.
  PdSession(const PdLinkOptions& options, PdRows rows, PdFrameFilter* filter, int64_t now_us);

  // Where the next bytes belong, at least one; empty when the session is closed.
  std::span<std::byte> ReadBuffer();
  // So many have been put there.
  void OnRead(size_t bytes, int64_t now_us);
  // Bytes to write; empty: nothing now. They stay where they are until OnWritten, whatever ends the
  // session meanwhile: a transport may be writing them.
  std::span<const std::byte> Output();
  void OnWritten(size_t bytes, int64_t now_us);
  // Whole frames not yet taken by OnWritten, for transports that carry frames.
  size_t queued_frames() const { return output_.size(); }

  // A frame of EncodePdFrame; ignored before the handshake is done and after the end.
  void Send(std::vector<std::byte> frame, int64_t now_us);
  bool Poll(PdIncoming* incoming);
  // Heartbeats and time-outs. Call at NextDeadlineUs().
  void OnTime(int64_t now_us);
  int64_t NextDeadlineUs() const;
  // The connection is over, from the transport's side: kClosed with `why` follows, once.
  void OnClosed(Status why);

  bool open() const { return phase_ == Phase::kOpen; }
  // Nothing more is read. What Output has left (a REFUSE) may still be written.
  bool closed() const { return phase_ == Phase::kClosed; }
  bool refused() const { return refused_; }  // the handshake failed
  // It is closed by a REFUSE of its own, which the peer shall read.
  bool lingers() const { return lingers_; }
  const PdHello& peer() const { return peer_; }
  const PdRows& wire_rows() const { return *wire_rows_; }
  const PdSessionStats& stats() const { return stats_; }

 private:
  enum class Phase { kHello, kWelcome, kConfirm, kOpen, kClosed };  // what is awaited; then open
  enum class Reading {
    kHeader,
    kSlot,  // a page's body, into its landing slot
    kBody,  // any other body
    kSkip   // a body that is read over
  };

  bool receiver() const { return self_.role == PdHello::Role::kReceiver; }
  void OnHeader(int64_t now_us);
  Status CheckHandshakeHeader(PdCode* code) const;
  Status CheckOpenHeader() const;
  void BeginBody(int64_t now_us);
  void OnBody(int64_t now_us);
  void OnHandshakeBody(std::span<const std::byte> body, std::span<const std::byte> mac,
                       int64_t now_us);
  Status CheckPeer(PdCode* code);
  void SendWelcome(int64_t now_us);
  void SendConfirm(int64_t now_us);
  Sha256Digest WelcomeMac(std::span<const std::byte> welcome) const;
  Sha256Digest ConfirmMac(std::span<const std::byte> confirm) const;
  void BecomeOpen();
  void Refuse(PdCode code, const Status& why);
  void Close(Status why);
  void Queue(std::vector<std::byte> frame, int64_t now_us);
  // Acknowledges a page that has been read over.
  void AcknowledgeDropped(int64_t now_us);

  PdHello self_;
  const PdRows rows_;
  const std::string secret_;
  const PdTimeouts timeouts_;
  PdFrameFilter* const filter_;

  Phase phase_;
  bool refused_ = false, lingers_ = false;
  Status end_;
  PdHello peer_;
  std::optional<PdRows> wire_rows_;
  std::vector<std::byte> hello_frame_, welcome_frame_;  // whole, for macs
  Sha256Digest in_key_{}, out_key_{};
  uint64_t out_sequence_ = 0;
  SequenceWindow in_window_;

  Reading reading_ = Reading::kHeader;
  std::array<std::byte, kPdHeaderBytes> header_bytes_{};
  PdHeader header_;
  size_t got_ = 0;        // of the header or the body with mac
  size_t body_want_ = 0;  // body and mac
  std::vector<std::byte> body_;
  std::vector<std::vector<std::byte>> slots_;  // landing memory, made when first used
  std::vector<bool> slot_busy_;
  std::vector<std::byte> skip_;
  bool duplicate_ = false;  // the frame being read has been here before
  bool unwanted_ = false;   // it is a page that the filter does not want

  std::deque<std::vector<std::byte>> output_;
  size_t written_ = 0;                // of the first of output_
  bool lent_ = false;                 // Output has given it out
  std::vector<std::byte> last_lent_;  // what was lent when the connection broke
  std::deque<PdIncoming> incoming_;
  int64_t opened_us_, last_in_us_, last_out_us_, write_since_us_;
  PdSessionStats stats_;
};

}  // namespace tern
