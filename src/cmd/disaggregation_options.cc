#include "cmd/disaggregation_options.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "pd/memory_transfer.h"

namespace tern {
namespace {

constexpr const char* kGroup = "Prefill and decode apart";
constexpr double kMaxSeconds = 86400;

int64_t Us(double seconds) { return static_cast<int64_t>(seconds * 1e6); }

PdTimeouts TimeoutsOf(const DisaggregationOptions& o) {
  PdTimeouts timeouts;
  timeouts.bootstrap_us = Us(o.bootstrap_timeout_s);
  timeouts.waiting_us = Us(o.waiting_timeout_s);
  timeouts.heartbeat_us = Us(o.heartbeat_interval_s);
  return timeouts;
}

uint64_t BootNonce() {
  uint64_t nonce = 0;
  while (nonce == 0) nonce = RandomSeed();
  return nonce;
}

// What the prefill side of `local` is.
void DeclarePrefillOptions(OptionTable& table, DisaggregationOptions& o) {
  table
      .Add("--prefill-model-path", &o.prefill_model_path, "DIR|FILE.gguf",
           "local: the checkpoint that prompts are computed with; by default that of --model-path")
      .Group(kGroup);
  table
      .Add("--prefill-kv-cache-dtype", &o.prefill_kv_cache_dtype, "FORMAT",
           "local: how prefill stores keys and values; auto: bf16, from which every format can be "
           "made")
      .Group(kGroup);
  table
      .Add("--prefill-max-total-tokens", &o.prefill_max_total_tokens, "N",
           "local: tokens that prefill's KV cache holds, before decode's gets its share; 0: one "
           "context")
      .Range(0, 1e12)
      .Group(kGroup);
}

}  // namespace

EngineRole DisaggregationOptions::role() const {
  if (mode == "prefill") return EngineRole::kPrefill;
  if (mode == "decode") return EngineRole::kDecode;
  return EngineRole::kUnified;
}

void DeclareLocalMode(OptionTable& table, DisaggregationOptions& o) {
  table
      .Add("--disaggregation-mode", &o.mode, "MODE",
           "local: this machine with a prefill and a decode engine in one process")
      .Choices({"null", "local"})
      .Group(kGroup);
  DeclarePrefillOptions(table, o);
}

void DeclareDisaggregationOptions(OptionTable& table, DisaggregationOptions& o) {
  table
      .Add("--disaggregation-mode", &o.mode, "MODE",
           "null: prompts and answers by one engine; prefill or decode: one half, behind a router "
           "with --pd-disaggregation; local: two engines in this process")
      .Choices({"null", "prefill", "decode", "local"})
      .Group(kGroup);
  table
      .Add("--disaggregation-bootstrap-port", &o.bootstrap_port, "PORT",
           "prefill: where decode workers connect; decode: where, if a request does not say")
      .Range(1, 65535)
      .Group(kGroup);
  table
      .Add("--disaggregation-peers", &o.peers, "LIST",
           "networks that the other half may be in, such as 10.0.0.0/8,192.168.1.7; by default "
           "loopback and this machine's own subnets")
      .Group(kGroup);
  table
      .Add("--disaggregation-secret-file", &o.secret_file, "FILE",
           "16 bytes or more that both halves know; frames are signed with them")
      .Group(kGroup);
  table
      .Add("--disaggregation-convert-at", &o.convert_at, "SIDE",
           "decode: which side makes its rows out of prefill's; the sender halves what crosses the "
           "wire")
      .Choices({"sender", "receiver"})
      .Group(kGroup);
  table
      .Add("--num-reserved-decode-tokens", &o.num_reserved_decode_tokens, "N",
           "decode, local: tokens of an answer that a request gets pages for when it is admitted")
      .Range(0, 1 << 20)
      .Group(kGroup);
  table
      .Add("--disaggregation-bootstrap-timeout", &o.bootstrap_timeout_s, "SECONDS",
           "prefill: how long a prompt waits for its decode worker")
      .Range(0.1, kMaxSeconds)
      .Group(kGroup);
  table
      .Add("--disaggregation-waiting-timeout", &o.waiting_timeout_s, "SECONDS",
           "decode: how long a request waits for its rows")
      .Range(0.1, kMaxSeconds)
      .Group(kGroup);
  table
      .Add("--disaggregation-heartbeat-interval", &o.heartbeat_interval_s, "SECONDS",
           "two of them without a sign of life end a connection")
      .Range(0.1, kMaxSeconds)
      .Group(kGroup);
  DeclarePrefillOptions(table, o);
  table
      .Add("--prefill-threads", &o.prefill_threads, "N",
           "local: how many of --threads are prefill's alone, the others decode's; 0: both use all")
      .Range(0, 4096)
      .Group(kGroup);
}

Status CheckDisaggregationOptions(const DisaggregationOptions& o) {
  for (const auto& [flag, given] :
       {std::pair("--prefill-model-path", !o.prefill_model_path.empty()),
        std::pair("--prefill-kv-cache-dtype", o.prefill_kv_cache_dtype != "auto"),
        std::pair("--prefill-max-total-tokens", o.prefill_max_total_tokens != 0),
        std::pair("--prefill-threads", o.prefill_threads != 0)}) {
    if (given && !o.local()) {
      return InvalidArgument(fmt::format("{} needs --disaggregation-mode local", flag));
    }
  }
  return SettingsOf(o).status();
}

Result<EngineOptions> PrefillEngineOptions(const DisaggregationOptions& o, EngineOptions engine,
                                           const ModelInfo& model) {
  engine.kv_format = KvFormat::kBf16;
  engine.kv_bf16_layers.clear();
  if (o.prefill_kv_cache_dtype != "auto") {
    Result<KvFormat> format = KvFormatNamed(o.prefill_kv_cache_dtype);
    if (!format.ok()) return format.status().WithContext("--prefill-kv-cache-dtype");
    engine.kv_format = *format;
  }
  const int64_t context = engine.context_length > 0 ? engine.context_length : model.context_length;
  const int64_t tokens = o.prefill_max_total_tokens > 0 ? o.prefill_max_total_tokens : context;
  // Whole pages: a context that is no multiple of a page must fit.
  engine.max_total_tokens =
      (tokens + engine.page_tokens - 1) / engine.page_tokens * engine.page_tokens;
  return engine;
}

Result<DisaggregationSettings> SettingsOf(const DisaggregationOptions& o) {
  DisaggregationSettings settings;
  settings.mode = o.mode;
  settings.role = o.role();
  settings.bootstrap_port = static_cast<int>(o.bootstrap_port);
  if (o.peers.empty()) {
    settings.peers = PeerList::LoopbackAndOwnSubnets();
    return settings;
  }
  Result<PeerList> peers = PeerList::Parse(o.peers);
  if (!peers.ok()) return peers.status().WithContext("--disaggregation-peers");
  settings.peers = *std::move(peers);
  return settings;
}

Result<Disaggregation> MakeWorkerDisaggregation(const DisaggregationOptions& o,
                                                const std::string& host, const ModelInfo& model,
                                                const EngineOptions& engine, const ModelId& id) {
  Disaggregation d;
  d.role = o.role();
  d.boot_nonce = BootNonce();
  d.timeouts = TimeoutsOf(o);
  d.num_reserved_decode_tokens = o.num_reserved_decode_tokens;
  d.waker = std::make_shared<EngineWaker>();
  TcpTransportOptions tcp;
  TERN_ASSIGN_OR_RETURN(tcp.link.self, MakePdHello(d.role, model, engine, id, d.boot_nonce));
  tcp.link.self.convert_at_receiver = d.role == EngineRole::kDecode && o.convert_at == "receiver";
  tcp.link.timeouts = d.timeouts;
  if (!o.secret_file.empty()) {
    Result<std::string> secret = ReadPdSecret(o.secret_file);
    if (!secret.ok()) return secret.status().WithContext("--disaggregation-secret-file");
    tcp.link.secret = *std::move(secret);
  }
  TERN_ASSIGN_OR_RETURN(const DisaggregationSettings settings, SettingsOf(o));
  tcp.peers = settings.peers;
  tcp.listen = d.role == EngineRole::kPrefill;
  tcp.host = host;
  tcp.port = settings.bootstrap_port;
  tcp.wake = [waker = d.waker] { waker->Wake(); };
  TERN_ASSIGN_OR_RETURN(auto transport, TcpTransport::Start(std::move(tcp)));
  if (d.role == EngineRole::kPrefill) {
    TERN_LOG(kInfo, "decode workers connect to port {} from {}", transport->port(),
             settings.peers.ToString());
  }
  d.transport = std::move(transport);
  return d;
}

Result<LocalDisaggregation> MakeLocalDisaggregation(
    const DisaggregationOptions& o, const ModelId& id, const ModelInfo& prefill_model,
    const EngineOptions& prefill_engine, const ModelInfo& decode_model,
    const EngineOptions& decode_engine, LocalTransport transport) {
  LocalDisaggregation local;
  local.prefill.role = EngineRole::kPrefill;
  local.decode.role = EngineRole::kDecode;
  for (Disaggregation* d : {&local.prefill, &local.decode}) {
    d->boot_nonce = BootNonce();
    d->timeouts = TimeoutsOf(o);
    d->num_reserved_decode_tokens = o.num_reserved_decode_tokens;
    d->waker = std::make_shared<EngineWaker>();
  }
  TERN_ASSIGN_OR_RETURN(PdHello prefill, MakePdHello(EngineRole::kPrefill, prefill_model,
                                                     prefill_engine, id, local.prefill.boot_nonce));
  TERN_ASSIGN_OR_RETURN(PdHello decode, MakePdHello(EngineRole::kDecode, decode_model,
                                                    decode_engine, id, local.decode.boot_nonce));
  decode.convert_at_receiver = o.convert_at == "receiver";
  // Rows that can't be converted would fail every request: say so now.
  TERN_ASSIGN_OR_RETURN(const PdRows prefill_rows, RowsOf(prefill));
  TERN_ASSIGN_OR_RETURN(const PdRows decode_rows, RowsOf(decode));
  TERN_RETURN_IF_ERROR(
      NegotiateRows(prefill_rows, decode_rows, decode.convert_at_receiver).status());
  const auto wake_prefill = [waker = local.prefill.waker] { waker->Wake(); };
  const auto wake_decode = [waker = local.decode.waker] { waker->Wake(); };
  if (transport == LocalTransport::kMemory) {
    MemoryTransports ends =
        MakeMemoryTransports(std::move(decode), std::move(prefill), wake_decode, wake_prefill);
    local.decode.transport = std::move(ends.receiver);
    local.prefill.transport = std::move(ends.sender);
    local.meeting.host = "local";
    return local;
  }
  TcpTransportOptions tcp;
  tcp.link.self = std::move(prefill);
  tcp.link.timeouts = local.prefill.timeouts;
  tcp.listen = true;
  tcp.port = 0;
  tcp.wake = wake_prefill;
  TERN_ASSIGN_OR_RETURN(auto listening, TcpTransport::Start(std::move(tcp)));
  local.meeting.host = "127.0.0.1";
  local.meeting.port = listening->port();
  local.prefill.transport = std::move(listening);
  TcpTransportOptions other;
  other.link.self = std::move(decode);
  other.link.timeouts = local.decode.timeouts;
  other.wake = wake_decode;
  TERN_ASSIGN_OR_RETURN(local.decode.transport, TcpTransport::Start(std::move(other)));
  return local;
}

}  // namespace tern
