// What the endpoints take and answer: the data of openapi.h. A property's `examples` are values
// that a server takes; the test sends each of them, and a value of a wrong type.
#include "base/check.h"
#include "server/openapi.h"

namespace tern {
namespace {

constexpr char kOperations[] = R"json({
"chat": {"summary": "Answers a conversation; OpenAI's.", "request": "ChatRequest",
  "responses": {"200": "ChatCompletion+ChatChunk"}},
"completions": {"summary": "Continues texts or token ids; OpenAI's.", "request": "CompletionRequest",
  "responses": {"200": "Completion+Completion"}},
"generate": {"summary": "Continues texts or token ids; SGLang's. A list for a list of prompts or n > 1.",
  "request": "GenerateRequest", "responses": {"200": "GenerateAnswers+Generated"}},
"tokenize": {"summary": "Token ids of texts.", "request": "TokenizeRequest", "responses": {"200": "Tokens"}},
"detokenize": {"summary": "Texts of token ids.", "request": "DetokenizeRequest", "responses": {"200": "Texts"}},
"health": {"summary": "Whether requests are taken: 503 while loading and while shutting down.",
  "responses": {"200": "text/plain", "503": "text/plain"}},
"health_generate": {"summary": "Computes one token.", "responses": {"200": "text/plain"}},
"models": {"summary": "The model that is served.", "responses": {"200": "ModelList"}},
"model": {"summary": "The model, if that is its name.", "path": "model",
  "responses": {"200": "Model", "404": "OpenAiError"}},
"model_info": {"summary": "What the model is.", "responses": {"200": "ModelInfo"}},
"server_info": {"summary": "All options, and the state of the engine.", "responses": {"200": "ServerInfo"}},
"loads": {"summary": "How busy the engine is.",
  "query": {"include": "sections, separated by commas: core, memory, spec, lora, disagg, queues, all",
            "format": "json or prometheus", "dp_rank": "0"},
  "responses": {"200": "Loads"}},
"get_load": {"summary": "How busy the engine is, in few words.", "responses": {"200": "OldLoad"}},
"metrics": {"summary": "Metrics for Prometheus; 404 when they are off.",
  "responses": {"200": "text/plain", "404": "Error"}},
"abort_request": {"summary": "Ends the requests of that id, or all.", "request": "AbortRequest",
  "responses": {"200": "text/plain"}},
"flush_cache": {"summary": "Empties the prefix cache; 400 while requests run.",
  "query": {"timeout": "seconds to wait until none runs; 0 by default"},
  "responses": {"200": "text/plain", "400": "text/plain"}},
"openapi": {"summary": "This document.", "responses": {"200": "OpenApi"}}
})json";

constexpr char kRequests[] = R"json({
"SamplingParameters": {"type": "object", "properties": {
  "temperature": {"type": "number", "minimum": 0, "maximum": 1000000, "examples": [0, 0.7], "description": "0: the most likely token"},
  "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "examples": [0.9, 1]},
  "min_p": {"type": "number", "minimum": 0, "maximum": 1, "examples": [0.05]},
  "top_k": {"type": "integer", "minimum": -1, "examples": [40, -1, 0], "description": "-1 and 0: all"},
  "stop": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1}}], "examples": ["\n\n", ["a", "b"]]},
  "stop_regex": {"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 8, "items": {"type": "string", "minLength": 1, "maxLength": 512}}], "examples": ["[0-9]{3}", ["x+y"]], "description": "PCRE2; the answer ends behind the match"},
  "stop_token_ids": {"type": "array", "maxItems": 1024, "items": {"type": "integer", "minimum": 0}, "examples": [[5, 6]]},
  "ignore_eos": {"type": "boolean", "examples": [true]},
  "no_stop_trim": {"type": "boolean", "examples": [true], "description": "the stop string stays in the text"},
  "skip_special_tokens": {"type": "boolean", "examples": [false]},
  "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2, "examples": [0.5]},
  "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2, "examples": [-0.5]},
  "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 2, "examples": [1.1]},
  "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}, "examples": [{"5": -100}], "description": "by token id"},
  "sampling_seed": {"type": "integer", "examples": [7]}
}},
"OpenAiParameters": {"type": "object", "properties": {
  "model": {"type": "string", "examples": ["any"], "description": "echoed"},
  "n": {"type": "integer", "minimum": 1, "maximum": 128, "examples": [2]},
  "best_of": {"type": "integer", "examples": [1], "description": "must equal n"},
  "seed": {"type": "integer", "examples": [42]},
  "max_tokens": {"type": "integer", "minimum": 0, "examples": [3]},
  "max_completion_tokens": {"type": "integer", "minimum": 0, "examples": [3]},
  "min_tokens": {"type": "integer", "minimum": 0, "examples": [2]},
  "stream": {"type": "boolean", "examples": [false]},
  "return_token_ids": {"type": "boolean", "examples": [true], "description": "the ids of the prompt and of the answer; not with a chat's stream"},
  "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}, "continuous_usage_stats": {"type": "boolean"}}, "examples": [{"include_usage": true}]},
  "response_format": {"type": "object", "properties": {"type": {"const": "text"}}, "examples": [{"type": "text"}]},
  "extra_key": {"type": "string", "examples": ["tenant"]},
  "cache_salt": {"type": "string", "examples": ["salt"], "description": "prefixes are shared among requests of one salt"},
  "prompt_cache_key": {"type": "string", "examples": ["conversation"], "description": "names a conversation, whose prefix stays cached longer; else the header x-session-affinity does"}
}},
"ChatRequest": {"allOf": [{"$ref": "#/components/schemas/SamplingParameters"}, {"$ref": "#/components/schemas/OpenAiParameters"},
 {"type": "object", "required": ["messages"], "properties": {
  "messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}, "examples": [[{"role": "user", "content": "Hi"}], [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]]},
  "rid": {"type": "string", "examples": ["my-request"], "description": "the id of the answer; for /abort_request"},
  "logprobs": {"type": "boolean", "examples": [true]},
  "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20, "examples": [0], "description": "needs logprobs"},
  "return_prompt_token_ids": {"type": "boolean", "examples": [true], "description": "not with a stream"},
  "tools": {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}, "examples": [[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]]},
  "tool_choice": {"enum": ["auto", "none", null], "examples": ["auto", "none"]},
  "separate_reasoning": {"type": "boolean", "examples": [true]},
  "stream_reasoning": {"type": "boolean", "examples": [true]},
  "reasoning_effort": {"anyOf": [{"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]}, {"type": "number"}], "examples": ["low", 0.5]},
  "reasoning": {"type": "object", "properties": {"enabled": {"type": "boolean"}, "effort": {}}, "examples": [{"enabled": false}]},
  "chat_template_kwargs": {"type": "object", "examples": [{"enable_thinking": false}]},
  "continue_final_message": {"const": false, "examples": [false]}
 }}]},
"Message": {"type": "object", "required": ["role"], "properties": {
  "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
  "content": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]},
  "reasoning_content": {"type": ["string", "null"]}, "reasoning": {"type": ["string", "null"]},
  "tool_calls": {"type": ["array", "null"], "items": {"type": "object", "required": ["function"]}},
  "tool_call_id": {"type": "string"}
}},
"Tool": {"type": "object", "required": ["function"], "properties": {"type": {"type": "string"},
  "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "description": {"type": "string"}, "parameters": {"type": "object"}}}}},
"CompletionRequest": {"allOf": [{"$ref": "#/components/schemas/SamplingParameters"}, {"$ref": "#/components/schemas/OpenAiParameters"},
 {"type": "object", "required": ["prompt"], "properties": {
  "prompt": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}], "examples": ["Hi", ["a", "b"], [72, 105], [[72], [105]]]},
  "rid": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "examples": ["my-request", ["my-request"]], "description": "the id of the answer; for /abort_request; or one for each prompt"},
  "echo": {"type": "boolean", "examples": [true], "description": "the text begins with the prompt, the logprobs too"},
  "logprobs": {"type": "integer", "minimum": 0, "maximum": 20, "examples": [0, 2]},
  "suffix": {"type": "string", "maxLength": 0, "examples": [""]}
 }}]},
"GenerateParameters": {"allOf": [{"$ref": "#/components/schemas/SamplingParameters"}, {"type": "object", "properties": {
  "max_new_tokens": {"type": "integer", "minimum": 0, "examples": [2, 0]},
  "min_new_tokens": {"type": "integer", "minimum": 0, "examples": [1]},
  "n": {"type": "integer", "minimum": 1, "maximum": 128, "examples": [2]}
}}]},
"GenerateRequest": {"type": "object", "properties": {
  "text": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "examples": ["Hi", ["a", "b"]]},
  "input_ids": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}], "description": "this or text"},
  "sampling_params": {"anyOf": [{"$ref": "#/components/schemas/GenerateParameters"}, {"type": "array", "items": {"$ref": "#/components/schemas/GenerateParameters"}}], "examples": [{"max_new_tokens": 2}]},
  "stream": {"type": "boolean", "examples": [false]},
  "return_logprob": {"type": "boolean", "examples": [true]},
  "logprob_start_len": {"type": "integer", "minimum": -1, "examples": [-1, 0], "description": "log probabilities of the prompt's tokens from here on; -1: none"},
  "top_logprobs_num": {"type": "integer", "minimum": 0, "maximum": 20, "examples": [2]},
  "token_ids_logprob": {"type": "array", "maxItems": 256, "items": {"type": "integer"}, "description": "read with return_logprob"},
  "return_text_in_logprobs": {"type": "boolean", "examples": [true]},
  "return_prompt_token_ids": {"type": "boolean", "examples": [true]},
  "require_reasoning": {"type": "boolean", "examples": [true], "description": "count the tokens up to </think>"},
  "rid": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "examples": ["my-request"]},
  "extra_key": {"type": "string", "examples": ["tenant"]},
  "cache_salt": {"type": "string", "examples": ["salt"]},
  "prompt_cache_key": {"type": "string", "examples": ["conversation"]}
}},
"TokenizeRequest": {"type": "object", "required": ["prompt"], "properties": {
  "prompt": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}], "examples": ["Hi", ["a", "b"]]},
  "add_special_tokens": {"type": "boolean", "examples": [false], "description": "true by default: what the tokenizer puts around a prompt, a BOS mostly"}}},
"DetokenizeRequest": {"type": "object", "required": ["tokens"], "properties": {
  "tokens": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}], "examples": [[72], [[72], [105]]]},
  "skip_special_tokens": {"type": "boolean", "examples": [false]}}},
"AbortRequest": {"type": "object", "properties": {
  "rid": {"type": "string", "examples": ["my-request"]},
  "abort_all": {"type": "boolean", "examples": [true]}}}
})json";

constexpr char kAnswers[] = R"json({
"Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"], "properties": {
  "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
  "prompt_tokens_details": {"type": ["object", "null"], "properties": {"cached_tokens": {"type": "integer"}}},
  "reasoning_tokens": {"type": "integer"},
  "completion_tokens_details": {"type": "object", "properties": {"reasoning_tokens": {"type": "integer"}}}}},
"TokenIds": {"type": "array", "items": {"type": "integer"}},
"FinishReason": {"enum": ["stop", "length", "tool_calls", "abort"]},
"MatchedStop": {"type": ["string", "integer", "null"], "description": "the stop string, expression or token"},
"ToolCall": {"type": "object", "properties": {"index": {"type": "integer"}, "id": {"type": ["string", "null"]}, "type": {"const": "function"},
  "function": {"type": "object", "properties": {"name": {"type": ["string", "null"]}, "arguments": {"type": "string"}}}}},
"ChatMessage": {"type": "object", "properties": {"role": {"const": "assistant"}, "content": {"type": ["string", "null"]},
  "reasoning_content": {"type": ["string", "null"]}, "reasoning": {"type": ["string", "null"]},
  "tool_calls": {"type": ["array", "null"], "items": {"$ref": "#/components/schemas/ToolCall"}}}},
"ChatLogprob": {"type": "object", "required": ["token", "bytes", "logprob"], "properties": {"token": {"type": "string"},
  "bytes": {"type": "array", "items": {"type": "integer"}}, "logprob": {"type": "number"},
  "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/ChatLogprob"}}}},
"ChatLogprobs": {"type": ["object", "null"], "properties": {"content": {"type": "array", "items": {"$ref": "#/components/schemas/ChatLogprob"}}}},
"ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
  "id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"}, "model": {"type": "string"},
  "choices": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["index", "message", "finish_reason"], "properties": {
    "index": {"type": "integer"}, "message": {"$ref": "#/components/schemas/ChatMessage"}, "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
    "finish_reason": {"$ref": "#/components/schemas/FinishReason"}, "matched_stop": {"$ref": "#/components/schemas/MatchedStop"},
    "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"}, "response_token_ids": {"$ref": "#/components/schemas/TokenIds"}}}},
  "usage": {"$ref": "#/components/schemas/Usage"}, "metadata": {"$ref": "#/components/schemas/AnswerMetadata"}}},
"ChatChunk": {"type": "object", "required": ["id", "object", "created", "model", "choices"], "properties": {
  "id": {"type": "string"}, "object": {"const": "chat.completion.chunk"}, "created": {"type": "integer"}, "model": {"type": "string"},
  "choices": {"type": "array", "items": {"type": "object", "required": ["index", "delta", "finish_reason"], "properties": {
    "index": {"type": "integer"}, "delta": {"$ref": "#/components/schemas/ChatMessage"}, "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
    "finish_reason": {"anyOf": [{"$ref": "#/components/schemas/FinishReason"}, {"type": "null"}]}, "matched_stop": {"$ref": "#/components/schemas/MatchedStop"}}}},
  "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]}}},
"AnswerMetadata": {"type": "object", "required": ["weight_version"], "properties": {"weight_version": {"type": "string"}}},
"Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices"], "properties": {
  "id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"}, "model": {"type": "string"},
  "choices": {"type": "array", "items": {"type": "object", "required": ["index", "text", "finish_reason"], "properties": {
    "index": {"type": "integer"}, "text": {"type": "string"},
    "logprobs": {"type": ["object", "null"], "required": ["text_offset", "token_logprobs", "tokens", "top_logprobs"], "properties": {
      "text_offset": {"type": "array", "items": {"type": "integer"}}, "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
      "tokens": {"type": "array", "items": {"type": "string"}},
      "top_logprobs": {"type": "array", "items": {"type": ["object", "null"], "additionalProperties": {"type": "number"}}}}},
    "finish_reason": {"anyOf": [{"$ref": "#/components/schemas/FinishReason"}, {"type": "null"}]}, "matched_stop": {"$ref": "#/components/schemas/MatchedStop"},
    "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"}, "token_ids": {"$ref": "#/components/schemas/TokenIds"}}}},
  "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]}, "metadata": {"$ref": "#/components/schemas/AnswerMetadata"}}},
"TokenLogprob": {"type": "array", "prefixItems": [{"type": ["number", "null"]}, {"type": "integer"}, {"type": ["string", "null"]}], "minItems": 3, "maxItems": 3, "description": "log probability, id, text"},
"TokenLogprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}},
"TokenLogprobLists": {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/TokenLogprobs"}, {"type": "null"}]}},
"Generated": {"type": "object", "required": ["text", "output_ids", "meta_info"], "properties": {
  "text": {"type": "string"}, "output_ids": {"$ref": "#/components/schemas/TokenIds"}, "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"}, "index": {"type": "integer"},
  "meta_info": {"type": "object", "required": ["id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"], "properties": {
    "id": {"type": "string"}, "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "cached_tokens": {"type": "integer"},
    "reasoning_tokens": {"type": "integer"}, "num_retractions": {"type": "integer"}, "weight_version": {"type": "string"}, "e2e_latency": {"type": "number"},
    "finish_reason": {"type": ["object", "null"], "required": ["type"], "properties": {"type": {"enum": ["stop", "length", "abort"]},
      "matched": {"type": ["string", "integer", "null"]}, "length": {"type": "integer"}, "message": {"type": "string"}, "status_code": {"type": ["integer", "null"]}, "err_type": {"type": ["string", "null"]}}},
    "input_token_logprobs": {"$ref": "#/components/schemas/TokenLogprobs"}, "output_token_logprobs": {"$ref": "#/components/schemas/TokenLogprobs"},
    "output_token_logprobs_length": {"type": "integer"},
    "input_top_logprobs": {"$ref": "#/components/schemas/TokenLogprobLists"}, "output_top_logprobs": {"$ref": "#/components/schemas/TokenLogprobLists"},
    "input_token_ids_logprobs": {"$ref": "#/components/schemas/TokenLogprobLists"}, "output_token_ids_logprobs": {"$ref": "#/components/schemas/TokenLogprobLists"}}}}},
"GenerateAnswers": {"anyOf": [{"$ref": "#/components/schemas/Generated"}, {"type": "array", "items": {"$ref": "#/components/schemas/Generated"}}]},
"Tokens": {"type": "object", "required": ["tokens", "count", "max_model_len"], "properties": {
  "tokens": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}},
  "count": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}, "max_model_len": {"type": "integer"}}},
"Texts": {"type": "object", "required": ["text"], "properties": {"text": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by"], "properties": {"id": {"type": "string"}, "object": {"const": "model"},
  "created": {"type": "integer"}, "owned_by": {"const": "sglang"}, "root": {"type": "string"}, "parent": {"type": "null"}, "max_model_len": {"type": "integer"}}},
"ModelList": {"type": "object", "required": ["object", "data"], "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"ModelInfo": {"type": "object", "required": ["model_path", "served_model_name", "is_generation"], "properties": {"model_path": {"type": "string"}, "served_model_name": {"type": "string"},
  "tokenizer_path": {"type": "string"}, "is_generation": {"const": true}, "load_format": {"type": "string"}, "tool_call_parser": {"type": ["string", "null"]}, "reasoning_parser": {"type": ["string", "null"]},
  "preferred_sampling_params": {"type": "null"}, "weight_version": {"type": "string"}, "has_image_understanding": {"const": false}, "has_audio_understanding": {"const": false},
  "model_type": {"type": "string"}, "architectures": {"type": "array", "items": {"type": "string"}}},
  "additionalProperties": true},
"ServerInfo": {"type": "object", "required": ["served_model_name", "version", "disaggregation_mode", "max_total_num_tokens", "internal_states", "startup_time"], "properties": {
  "startup_time": {"type": "object", "properties": {"scheduler_e2e": {"type": "number"}}}, "frontend": {"type": "string"}, "kv_events": {"type": "null"},
  "served_model_name": {"type": "string"}, "version": {"type": "string"}, "disaggregation_mode": {"type": "string"}, "max_total_num_tokens": {"type": "integer"},
  "internal_states": {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": true}}}, "additionalProperties": true},
"Loads": {"type": "object", "required": ["timestamp", "version", "dp_rank_count", "loads"], "properties": {"timestamp": {"type": "string"}, "version": {"type": "string"},
  "accelerator": {"type": "null"}, "num_accelerators": {"type": "integer"}, "dp_rank_count": {"type": "integer"},
  "loads": {"type": "array", "items": {"type": "object", "required": ["dp_rank", "num_running_reqs", "num_waiting_reqs", "max_total_num_tokens", "token_usage"], "additionalProperties": {"type": ["number", "null", "object"]}}}}},
"OldLoad": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"], "properties": {
  "dp_rank": {"type": "integer"}, "num_reqs": {"type": "integer"}, "num_waiting_reqs": {"type": "integer"}, "num_tokens": {"type": "integer"}}}},
"OpenApi": {"type": "object", "required": ["openapi", "info", "paths"], "additionalProperties": true},
"Unauthorized": {"type": "object", "required": ["error"], "properties": {"error": {"const": "Unauthorized"}}},
"SglangError": {"type": "object", "required": ["object", "message", "type", "code"], "properties": {"object": {"const": "error"}, "message": {"type": "string", "minLength": 1},
  "type": {"type": "string"}, "param": {"type": "null"}, "code": {"type": "integer"}}},
"OpenAiError": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object", "required": ["message", "type", "code"], "properties": {
  "message": {"type": "string", "minLength": 1}, "type": {"const": "invalid_request_error"}, "param": {"type": ["string", "null"]}, "code": {"enum": ["context_length_exceeded", "model_not_found"]}}}}},
"Error": {"anyOf": [{"$ref": "#/components/schemas/SglangError"}, {"$ref": "#/components/schemas/OpenAiError"}], "description": "OpenAI's shape for a prompt that is too long"}
})json";

Json MustParse(const char* text) {
  Result<Json> json = ParseJson(text);
  TERN_CHECK(json.ok());
  return std::move(json).value();
}

}  // namespace

Json OpenApiOperations() { return MustParse(kOperations); }

Json OpenApiSchemas() {
  Json schemas = MustParse(kRequests);
  schemas.update(MustParse(kAnswers));
  return schemas;
}

}  // namespace tern
