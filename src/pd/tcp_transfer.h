// TcpTransport: frames over TCP, one connection for each pair of workers. A network thread of its
// own does handshakes, reads headers, asks the landing filter, fills landing slots, signs and
// writes; the engine thread sees whole frames. Also answers GET /health on the bootstrap port.
// Owner: the engine's owner; outlives sender or receiver. Thread: PdTransport's calls on the engine
// thread; Start and the destructor on the owner's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "pd/peers.h"
#include "pd/transfer.h"

namespace tern {

struct TcpTransportOptions {
  PdLinkOptions link;
  PeerList peers = PeerList::LoopbackAndOwnSubnets();
  // A sender listens here (port 0: a free one); a receiver does not listen.
  bool listen = false;
  std::string host = "127.0.0.1";
  int port = 8998;
  int64_t max_connections = 256;
  // Called on the network thread when the engine's Step has something to do; must not block.
  std::function<void()> wake;
};

// Since the start. Any thread.
struct TcpTransportStats {
  int64_t refused_addresses = 0, refused_handshakes = 0, health_checks = 0;
  int64_t dropped_frames = 0;    // the filter did not want them: payload read over
  int64_t duplicate_frames = 0;  // by sequence number
  uint64_t bytes_sent = 0, bytes_received = 0;
};

class TcpTransport : public PdTransport {
 public:
  // Errors: kInvalidArgument (host, a secret shorter than 16 bytes), kFailedPrecondition naming the
  // port when it is in use.
  static Result<std::unique_ptr<TcpTransport>> Start(TcpTransportOptions options);
  ~TcpTransport() override = default;  // cuts all connections; links are closed
  virtual int port() const = 0;        // listening on; 0: not
  virtual TcpTransportStats stats() const = 0;
};

// The secret in a file, without trailing line breaks. Errors: name the file; kInvalidArgument when
// it is shorter than 16 bytes or others may read it.
Result<std::string> ReadPdSecret(const std::string& path);

}  // namespace tern
