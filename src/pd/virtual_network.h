// VirtualNetwork: receivers and senders of one thread, joined by real PdSessions over a network
// that exists on virtual time and loses, doubles, delays, corrupts and cuts frames as it is told.
// For tests and the simulator. Owner: the test. Thread: one; Poll and Send only queue, Pump alone
// moves anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "pd/session.h"
#include "pd/transfer.h"

namespace tern {

// What happens to one frame on its way.
struct VirtualFate {
  int copies = 1;                // 0: lost
  int64_t delay_us = 0;          // frames overtake each other when they differ
  int64_t copy_delay_us = 0;     // of a second copy, from the first
  int64_t cut_after_bytes = -1;  // >= 0: so many bytes arrive, then the connection breaks
};

class VirtualNetwork {
 public:
  // Decides a frame's fate and may change its bytes. `to_sender`: from a receiver.
  using Policy = std::function<VirtualFate(bool to_sender, std::vector<std::byte>* frame)>;

  // Which process a session belongs to, for Stop and Kill.
  using Process = int;

  VirtualNetwork(const Clock& clock, Policy policy);
  ~VirtualNetwork();

  // A sender that listens at port `port`, or a receiver, as options.self.role says. The transport
  // must not outlive the network.
  std::unique_ptr<PdTransport> AddSender(Process process, int port, PdLinkOptions options);
  std::unique_ptr<PdTransport> AddReceiver(Process process, PdLinkOptions options);

  // Delivers what is due. Returns whether anything moved.
  bool Pump();
  // When Pump must run next; INT64_MAX: never.
  int64_t NextEventUs() const;

  // A stopped process takes and sends nothing, and its timers don't run.
  void Stop(Process process, bool stopped);
  // Its connections break; its port answers no more until it is added again.
  void Kill(Process process);
  PdSessionStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  friend class VirtualLink;
  friend class VirtualTransport;
};

}  // namespace tern
