// Transfer: how frames get from one worker to the other. A PdTransport makes PdLinks; a PdLink
// carries whole frames between one receiver (decode) and one sender (prefill). Implementations:
// memory (pd/memory_transfer.h, two engines of one process), tcp (pd/tcp_transfer.h), and the
// simulator's lossy network. All of them: do the handshake or refuse; drop frames that the filter
// does not want before their payload is stored; never write a pool's page; end with kClosed when
// the peer is gone, slow or broken. Owner: a PdSender or PdReceiver, on its engine thread. What
// runs on another (network) thread is behind these calls.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "pd/wire.h"
#include "pd/wire_rows.h"

namespace tern {

// SGLang's defaults where it has them (its environment variables in the comments).
struct PdTimeouts {
  int64_t bootstrap_us =
      300'000'000;                   // sender: no REQUEST (SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT)
  int64_t waiting_us = 300'000'000;  // receiver: since REQUEST (.._WAITING_TIMEOUT)
  int64_t heartbeat_us = 5'000'000;  // PING when nothing else is sent (.._HEARTBEAT_INTERVAL)
  int64_t heartbeat_failures = 2;    // intervals of silence that end a link (.._MAX_FAILURE)
  int64_t handshake_us = 5'000'000;  // connecting included
  int64_t write_us = 10'000'000;     // a peer that takes no byte for so long is cut
  int64_t ack_us = 10'000'000;       // sender: a page without ACK, LAST without DONE
  int64_t last_us = 500'000;         // sender: LAST goes out again without ACK or DONE
  int64_t gap_us = 1'000'000;        // receiver: pages missing after LAST
};

// What a side says in the handshake and how it behaves.
struct PdLinkOptions {
  PdHello self;        // its nonce is made for each connection
  std::string secret;  // empty: none
  PdTimeouts timeouts;
};

// Which PAGE frames a receiver still wants. Asked between header and payload, on the network
// thread; true promises a place: a second frame for the same page is not wanted.
class PdFrameFilter {
 public:
  virtual ~PdFrameFilter() = default;
  virtual bool Wants(const PdHeader& header) = 0;
};

struct PdEvent {
  enum class Kind {
    kOpen,    // the handshake is done: peer() and wire_rows() are known
    kFrame,   // REQUEST, PAGE, LAST, ACK, DONE, ABORT, ABORT_ACK
    kClosed,  // the last event; `status` says why
  } kind = Kind::kFrame;
  PdHeader header;
  // Of the frame. A PAGE's lies in its landing slot until the ACK for it is sent; any other is
  // valid until the next call of Poll.
  std::span<const std::byte> body;
  Status status;
};

class PdLink {
 public:
  virtual ~PdLink() = default;  // closes
  // The next event; false when there is none now.
  virtual bool Poll(PdEvent* event) = 0;
  // Sends a frame that EncodePdFrame or SealPdPage made, in order, after kOpen; the link numbers
  // and signs it. Sending ACK gives the landing slot that it names back. Ignored when closed.
  virtual void Send(std::vector<std::byte> frame) = 0;
  // Ends the connection; rooms on it can't go on. No event follows, and the filter is not asked any
  // more once it returns.
  virtual void Close() = 0;

  // After kOpen.
  virtual const PdHello& peer() const = 0;
  virtual const PdRows& wire_rows() const = 0;  // NegotiateRows of both sides
  // "127.0.0.1:41234", for messages.
  virtual std::string peer_name() const = 0;
};

class PdTransport {
 public:
  virtual ~PdTransport() = default;
  // A link to the sender's bootstrap port. Never waits: kOpen or kClosed comes as an event.
  // `filter` outlives the link. `host`: what PeerList::Resolve returned.
  virtual std::unique_ptr<PdLink> Connect(const std::string& host, int port,
                                          PdFrameFilter* filter) = 0;
  // The next link that a receiver has opened, after its handshake; null when there is none.
  virtual std::unique_ptr<PdLink> Accept() = 0;
};

}  // namespace tern
