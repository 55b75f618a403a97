// Prefill and decode apart: the flags of `serve`, and what is made of them: transports, allowed
// peers, model ids. Thread: call at start.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/args.h"
#include "base/result.h"
#include "engine/disaggregation.h"
#include "engine/engine.h"
#include "pd/tcp_transfer.h"
#include "server/disaggregation.h"

namespace tern {

struct DisaggregationOptions {
  std::string mode = "null";
  int64_t bootstrap_port = 8998;
  std::string peers;        // empty: loopback and own subnets
  std::string secret_file;  // empty: no secret
  std::string convert_at = "sender";
  int64_t num_reserved_decode_tokens = 512;
  double bootstrap_timeout_s = 300, waiting_timeout_s = 300, heartbeat_interval_s = 5;
  // mode local
  std::string prefill_model_path;  // empty: --model-path's
  std::string prefill_kv_cache_dtype = "auto";
  int64_t prefill_max_total_tokens = 0;  // 0: one context
  int64_t prefill_threads = 0;           // 0: both engines have all

  bool local() const { return mode == "local"; }
  EngineRole role() const;  // of the process' one engine; kUnified for null and local
};

// The flags of commands that know `local` alone: the mode, and what its prefill side is.
void DeclareLocalMode(OptionTable& table, DisaggregationOptions& options);
// All of them. `options` outlives the table.
void DeclareDisaggregationOptions(OptionTable& table, DisaggregationOptions& options);
// What is wrong with the flags alone. Errors: kInvalidArgument, naming the flag.
Status CheckDisaggregationOptions(const DisaggregationOptions& options);

// The options of `local`'s prefill engine, from those of the decode engine. `model`: prefill's.
// Errors: kInvalidArgument, naming the flag.
Result<EngineOptions> PrefillEngineOptions(const DisaggregationOptions& options,
                                           EngineOptions engine, const ModelInfo& model);

// What the server needs to know. Errors: --disaggregation-peers can't be read.
Result<DisaggregationSettings> SettingsOf(const DisaggregationOptions& options);

// A worker's half: its transport over TCP. `host`: where a prefill worker listens for decode
// workers. Errors: the port is taken, the secret can't be read, those of MakePdHello.
Result<Disaggregation> MakeWorkerDisaggregation(const DisaggregationOptions& options,
                                                const std::string& host, const ModelInfo& model,
                                                const EngineOptions& engine, const ModelId& id);

// Both halves of one process, and where decode's transport finds prefill's.
struct LocalDisaggregation {
  Disaggregation prefill, decode;
  Rendezvous meeting;
};
enum class LocalTransport { kMemory, kTcp };  // kTcp: over loopback, as two workers of one host
// `id`: of both models. Errors: those of MakePdHello and NegotiateRows; no port.
Result<LocalDisaggregation> MakeLocalDisaggregation(
    const DisaggregationOptions& options, const ModelId& id, const ModelInfo& prefill_model,
    const EngineOptions& prefill_engine, const ModelInfo& decode_model,
    const EngineOptions& decode_engine, LocalTransport transport = LocalTransport::kMemory);

}  // namespace tern
