#include "server/disaggregation.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/rng.h"
#include "server/served_model.h"

namespace tern {
namespace {

// SGLang's FAKE_BOOTSTRAP_HOST: with room 0, a health check.
constexpr std::string_view kNobody = "2.2.2.2";
constexpr size_t kMaxRooms = 1024;

// The i-th of `count` values of a field that is a value or a list; null when there is none.
Result<const Json*> ValueFor(const Json& body, const char* key, size_t i, size_t count) {
  const Json* field = JsonMember(body, key);
  if (field == nullptr || !field->is_array()) return field;
  if (field->empty() || count % field->size() != 0) {
    return InvalidArgument(
        fmt::format("body.{} has {} elements for {} choices", key, field->size(), count));
  }
  const Json& value = (*field)[i / (count / field->size())];
  return value.is_null() ? nullptr : &value;
}

Result<Rendezvous> RendezvousFor(const Json& body, const DisaggregationSettings& settings, size_t i,
                                 size_t count) {
  Rendezvous at;
  TERN_ASSIGN_OR_RETURN(const Json* host, ValueFor(body, "bootstrap_host", i, count));
  TERN_ASSIGN_OR_RETURN(const Json* port, ValueFor(body, "bootstrap_port", i, count));
  TERN_ASSIGN_OR_RETURN(const Json* room, ValueFor(body, "bootstrap_room", i, count));
  if (host == nullptr || room == nullptr) {
    return InvalidArgument(fmt::format(
        "body.bootstrap_{} is missing: this is a {} worker, whose requests come through "
        "a router with --pd-disaggregation",
        host == nullptr ? "host" : "room", settings.mode));
  }
  if (!host->is_string()) return InvalidArgument("body.bootstrap_host must be a string");
  at.host = host->get<std::string>();
  if (port != nullptr && !(port->is_number_integer() && *port >= 1 && *port <= 65535)) {
    return InvalidArgument("body.bootstrap_port must be from 1 to 65535");
  }
  at.port = port != nullptr ? port->get<int>() : settings.bootstrap_port;
  const bool negative = room->is_number_integer() && !room->is_number_unsigned() && *room < 0;
  if (!room->is_number_integer() || negative) {
    return InvalidArgument("body.bootstrap_room must be an integer of 0 or more");
  }
  at.room = room->get<uint64_t>();
  return at;
}

// How many of the choices before the i-th share its element of a list, or the one value.
size_t PlaceInRoom(const Json& body, size_t i, size_t count) {
  const Json* room = JsonMember(body, "bootstrap_room");
  const size_t rooms = room != nullptr && room->is_array() ? room->size() : 1;
  return i % (count / rooms);
}

class Notice final : public RefusalNotice {
 public:
  Notice(Engine& engine, std::vector<Rendezvous> halves, std::shared_ptr<ResponseWriter> next)
      : RefusalNotice(std::move(next)), engine_(engine), halves_(std::move(halves)) {}

  void HandlerDone() override { halves_.clear(); }
  void Send(int status, HttpHeaders headers, std::string body) override {
    Note(status, body);
    ForwardingWriter::Send(status, std::move(headers), std::move(body));
  }
  void BeginStream(int status, HttpHeaders headers) override {
    begun_with_ = status;
    ForwardingWriter::BeginStream(status, std::move(headers));
  }
  void Write(std::string_view data) override {
    Note(begun_with_, data);
    ForwardingWriter::Write(data);
  }

 private:
  void Note(int status, std::string_view body) {
    if (status < 400) return;
    std::string why = "the request was refused";
    if (const Result<Json> json = ParseJson(body); json.ok()) {
      // SGLang's shape has the message on top, OpenAI's inside of "error" (server/errors.h).
      const Json* error = JsonMember(*json, "error");
      Result<std::string> message =
          JsonString(error != nullptr ? *error : *json, "message", why, "");
      if (message.ok()) {
        why = *std::move(message);
      }
    }
    for (const Rendezvous& half : std::exchange(halves_, {})) {
      engine_.RefuseRendezvous(half, InvalidArgument(why));
    }
  }

  Engine& engine_;
  std::vector<Rendezvous> halves_;
  int begun_with_ = 0;
};

}  // namespace

Status AddRendezvous(const Json& body, const ServedModel& model, std::vector<ChoiceSpec>* choices) {
  const DisaggregationSettings& settings = model.disaggregation;
  if (settings.role == EngineRole::kUnified) return OkStatus();
  std::string resolved_host, resolved;
  for (size_t i = 0; i < choices->size(); ++i) {
    GenerateRequest& request = (*choices)[i].request;
    TERN_ASSIGN_OR_RETURN(Rendezvous at, RendezvousFor(body, settings, i, choices->size()));
    if (at.host == kNobody && at.room == 0) {
      if (settings.role == EngineRole::kPrefill) request.sampling.max_new_tokens = 1;
      continue;
    }
    if (resolved.empty() || at.host != resolved_host) {
      Result<std::string> address = settings.peers.Resolve(at.host);
      if (!address.ok()) return address.status().WithContext("body.bootstrap_host");
      resolved_host = at.host;
      resolved = *std::move(address);
    }
    at.host = resolved;
    if (const size_t place = PlaceInRoom(body, i, choices->size()); place > 0) {
      at.room = Mix64(at.room + place) >> 1;
    }
    request.rendezvous = std::move(at);
  }
  return OkStatus();
}

std::shared_ptr<RefusalNotice> WatchForRefusal(const ServedModel& model, const HttpRequest& request,
                                               std::shared_ptr<ResponseWriter> writer) {
  const DisaggregationSettings& settings = model.disaggregation;
  if (settings.role == EngineRole::kUnified) return nullptr;
  const Result<Json> body = ParseJson(request.body);
  std::vector<ChoiceSpec> rooms;
  if (body.ok() && body->is_object()) {
    const Json* room = JsonMember(*body, "bootstrap_room");
    rooms.resize(room != nullptr && room->is_array() ? std::min(room->size(), kMaxRooms) : 1);
    if (rooms.empty() || !AddRendezvous(*body, model, &rooms).ok()) rooms.clear();
  }
  std::vector<Rendezvous> halves;
  for (const ChoiceSpec& spec : rooms) {
    if (spec.request.rendezvous) halves.push_back(*spec.request.rendezvous);
  }
  return std::make_shared<Notice>(*model.engine, std::move(halves), std::move(writer));
}

Json DisaggregationLoads(const ServedModel& model) {
  const HandoffStats stats = model.engine->Stats().handoff;
  return {{"mode", model.disaggregation.mode},
          {"prefill_bootstrap_queue_reqs", stats.bootstrap_queue},
          {"prefill_inflight_queue_reqs", stats.inflight_queue},
          {"decode_prealloc_queue_reqs", stats.prealloc_queue},
          {"decode_transfer_queue_reqs", stats.transfer_queue},
          {"decode_retracted_queue_reqs", stats.retracted_queue},
          {"kv_transfer_speed_gb_s", stats.speed_gb_s},
          {"kv_transfer_latency_ms", stats.latency_ms}};
}

}  // namespace tern
