// ServedModel: what the endpoints know about the model that they serve. Filled by cmd/serve, which
// alone sees checkpoints. Immutable once serving. Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "server/disaggregation.h"
#include "text/chat_template.h"
#include "text/output_format.h"
#include "text/tokenizer.h"

namespace tern {

// Used where a request says nothing: the model's generation_config.json, else OpenAI's.
struct SamplingDefaults {
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t top_k = -1;
};

struct ServedModel {
  std::string name;  // what /v1/models calls it
  std::string path;
  std::string architecture;    // "LlamaForCausalLM"
  std::string model_type;      // "llama"
  int64_t context_length = 0;  // prompt and answer together, in tokens
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: chat requests are refused
  OutputFormat output_format;                         // of reasoning and tool calls
  std::string bos_token, eos_token;                   // texts, for the template; may be empty
  SamplingDefaults sampling;
  int64_t max_choices = 256;        // of one request: as many as may wait at once
  int64_t longest_token_bytes = 1;  // of the tokenizer's; set by ApiServer
  std::string kv_cache_format;      // "bf16": what --kv-cache-dtype came to
  Engine* engine = nullptr;         // outlives the server
  DisaggregationSettings disaggregation;
};

}  // namespace tern
