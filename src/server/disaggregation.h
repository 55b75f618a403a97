// The two halves of a request: how a prefill or decode worker learns from SGLang's bootstrap fields
// where its other half is, and tells it when the request is refused here.
// Thread: the network thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/disaggregation.h"
#include "net/http.h"
#include "pd/peers.h"
#include "server/forwarding_writer.h"
#include "server/generation.h"

namespace tern {

struct ServedModel;

// What a server knows of its part. Immutable once serving.
struct DisaggregationSettings {
  std::string mode = "null";  // as /server_info says it: null, prefill, decode, local
  EngineRole role = EngineRole::kUnified;
  int bootstrap_port = 8998;  // where a request names none
  PeerList peers;             // which bootstrap hosts are allowed
};

// Gives each choice its rendezvous, from the body's bootstrap_host, _port and _room: one value for
// all, or a list with one for each prompt or for each choice. Where several choices share a room's
// number, all but the first get numbers made from it, alike at both workers. Does nothing for a
// worker that computes both halves. A health check (host 2.2.2.2, room 0) has no other half.
// Errors: kInvalidArgument naming the field; a host that is not among the peers.
Status AddRendezvous(const Json& body, const ServedModel& model, std::vector<ChoiceSpec>* choices);

// While a handler runs, an answer that is an error refuses the request's other half too. Wrap the
// writer, call the handler, then HandlerDone.
class RefusalNotice : public ForwardingWriter {
 public:
  using ForwardingWriter::ForwardingWriter;
  virtual void HandlerDone() = 0;
};
// Null for a worker that computes both halves.
std::shared_ptr<RefusalNotice> WatchForRefusal(const ServedModel& model, const HttpRequest& request,
                                               std::shared_ptr<ResponseWriter> writer);

// The `disaggregation` object of /v1/loads.
Json DisaggregationLoads(const ServedModel& model);

}  // namespace tern
