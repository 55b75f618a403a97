// MemoryTransport: two engines of one process (--disaggregation-mode local). Frames pass as they
// are, without sequence numbers and secrets; the frame itself is the landing slot.
// Owner: whoever owns both engines. Thread: each end belongs to its engine's thread; what lies
// between them is locked.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "pd/transfer.h"

namespace tern {

// Both ends; host and port mean nothing here.
struct MemoryTransports {
  std::unique_ptr<PdTransport> receiver, sender;
};
// `wake_*` is called, on the other side's thread, when something has come for that side; it must
// not block. Either may be empty.
MemoryTransports MakeMemoryTransports(PdHello receiver, PdHello sender,
                                      std::function<void()> wake_receiver = {},
                                      std::function<void()> wake_sender = {});

}  // namespace tern
