#include "server/info.h"

#include "engine/engine.h"
#include "server/disaggregation.h"

namespace tern {
namespace {

constexpr double kGiB = 1 << 30;

Json MemoryUsage(const EngineStats& stats) {
  return {{"weight", static_cast<double>(stats.weight_bytes) / kGiB},
          {"kvcache", static_cast<double>(stats.kv_bytes) / kGiB},
          {"graph", 0.0},
          {"token_capacity", stats.total_tokens}};
}

Json NameOrNull(std::string_view parser) {
  return parser == "none" ? Json() : Json(std::string(parser));
}

}  // namespace

Json ModelCard(const ServedModel& model, int64_t created) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "sglang"},
          {"root", model.path},
          {"parent", nullptr},
          {"max_model_len", model.context_length}};
}

Json ModelInfoJson(const ServedModel& model, const Json& server_args) {
  return {{"model_path", model.path},
          {"served_model_name", model.name},
          {"tokenizer_path", model.path},
          {"is_generation", true},
          {"disaggregation_mode", model.disaggregation.mode},
          {"load_format", server_args.value("load_format", "auto")},
          {"tool_call_parser", NameOrNull(ToolCallFormatName(model.output_format.tool_calls))},
          {"reasoning_parser", NameOrNull(ReasoningFormatName(model.output_format.reasoning))},
          {"preferred_sampling_params", nullptr},
          {"weight_version", "default"},
          {"has_image_understanding", false},
          {"has_audio_understanding", false},
          {"model_type", model.model_type},
          {"architectures", Json::array({model.architecture})}};
}

Json ServerInfoJson(const ServedModel& model, const Json& server_args, const std::string& version,
                    double startup_s) {
  const EngineStats stats = model.engine->Stats();
  Json info = server_args;
  info["served_model_name"] = model.name;
  info["model_path"] = model.path;
  info["version"] = version;
  info["frontend"] = "tern";
  info["startup_time"] = {{"scheduler_e2e", startup_s}};
  info["kv_events"] = nullptr;
  info["tp_size"] = 1;
  info["dp_size"] = 1;
  info["pp_size"] = 1;
  info["disaggregation_mode"] = model.disaggregation.mode;
  info["is_embedding"] = false;
  info["weight_version"] = "default";
  info["resolved_kv_cache_dtype"] = model.kv_cache_format;
  info["context_length"] = stats.context_length;
  info["max_total_num_tokens"] = stats.total_tokens;
  info["max_total_tokens"] = stats.total_tokens;
  info["max_req_input_len"] = std::max<int64_t>(stats.context_length - 1, 0);
  info["internal_states"] =
      Json::array({Json{{"last_gen_throughput", stats.generated_tokens_per_s},
                        {"effective_max_running_requests_per_dp", stats.max_running_requests},
                        {"num_running_reqs", stats.running_requests},
                        {"num_queue_reqs", stats.queued_requests},
                        {"num_used_tokens", stats.used_tokens},
                        {"num_cached_tokens", stats.cached_tokens},
                        {"num_free_tokens", stats.free_tokens},
                        {"num_finished_reqs", stats.finished_requests},
                        {"num_aborted_reqs", stats.aborted_requests},
                        {"num_retractions", stats.retractions},
                        {"prompt_tokens", stats.prompt_tokens},
                        {"cached_prompt_tokens", stats.cached_prompt_tokens},
                        {"generated_tokens", stats.generated_tokens},
                        {"memory_usage", MemoryUsage(stats)}}});
  return info;
}

}  // namespace tern
