#include "server/sampling_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/errors.h"

namespace tern {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxStopTokens = 1024;
constexpr size_t kMaxBiases = 1024;

Status WrongRange(std::string_view where, const char* key, std::string_view range) {
  return InvalidArgument(fmt::format("{}.{} must be {}", where, key, range));
}

// One string, or a list of them.
Result<std::vector<std::string>> ParseStrings(const Json& object, const char* key,
                                              std::string_view where) {
  std::vector<std::string> strings;
  const Json* given = JsonMember(object, key);
  if (given == nullptr) return strings;
  if (given->is_string()) return std::vector{given->get<std::string>()};
  const Status wrong = WrongRange(where, key, "a string or a list of strings");
  if (!given->is_array()) return wrong;
  if (given->size() > kMaxStops) {
    return WrongRange(where, key, fmt::format("at most {} strings", kMaxStops));
  }
  for (const Json& item : *given) {
    if (!item.is_string()) return wrong;
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

Result<std::vector<std::string>> ParseStops(const Json& object, std::string_view where) {
  TERN_ASSIGN_OR_RETURN(std::vector<std::string> stops, ParseStrings(object, "stop", where));
  for (const std::string& text : stops) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      return WrongRange(where, "stop", fmt::format("strings of 1 to {} bytes", kMaxStopBytes));
    }
  }
  return stops;
}

Result<std::shared_ptr<const StopRegexes>> ParseStopRegexes(const Json& object,
                                                            std::string_view where) {
  TERN_ASSIGN_OR_RETURN(const std::vector<std::string> patterns,
                        ParseStrings(object, "stop_regex", where));
  if (patterns.empty()) return std::shared_ptr<const StopRegexes>();
  Result<std::shared_ptr<const StopRegexes>> regexes = StopRegexes::Compile(patterns);
  if (!regexes.ok()) return regexes.status().WithContext(where);
  return regexes;
}

// Parameters that exist in OpenAI's or SGLang's API and that tern does not do: the value that asks
// for nothing passes.
Status RefuseUnsupported(const Json& object, std::string_view where) {
  TERN_RETURN_IF_ERROR(RefuseKeys(
      object, {"json_schema", "regex", "ebnf", "structural_tag", "custom_logit_processor"}, where));
  const Json* format = JsonMember(object, "response_format");
  if (format != nullptr) {
    TERN_ASSIGN_OR_RETURN(const std::string type,
                          JsonString(*format, "type", "", "response_format"));
    if (type != "text") {
      return InvalidArgument(fmt::format(
          "{}.response_format.type '{}' is not supported, only 'text' is", where, type));
    }
  }
  return OkStatus();
}

// OpenAI's ranges; SGLang's for repetition_penalty.
Status ParsePenalties(const Json& object, std::string_view where, SamplingParams* s) {
  TERN_ASSIGN_OR_RETURN(s->presence_penalty, JsonDouble(object, "presence_penalty", 0, where));
  if (!(std::abs(s->presence_penalty) <= 2)) {
    return WrongRange(where, "presence_penalty", "from -2 to 2");
  }
  TERN_ASSIGN_OR_RETURN(s->frequency_penalty, JsonDouble(object, "frequency_penalty", 0, where));
  if (!(std::abs(s->frequency_penalty) <= 2)) {
    return WrongRange(where, "frequency_penalty", "from -2 to 2");
  }
  TERN_ASSIGN_OR_RETURN(s->repetition_penalty, JsonDouble(object, "repetition_penalty", 1, where));
  if (!(s->repetition_penalty >= 1e-6 && s->repetition_penalty <= 2)) {
    return WrongRange(where, "repetition_penalty", "over 0 and at most 2");
  }
  return OkStatus();
}

// {"token id": bias}
Status ParseLogitBias(const Json& object, std::string_view where, SamplingParams* s) {
  const Json* biases = JsonMember(object, "logit_bias");
  if (biases == nullptr) return OkStatus();
  if (!biases->is_object() || biases->size() > kMaxBiases) {
    return WrongRange(where, "logit_bias", fmt::format("an object of at most {} ids", kMaxBiases));
  }
  for (const auto& [key, value] : biases->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0) {
      return InvalidArgument(fmt::format("{}.logit_bias: '{}' is not a token id", where, key));
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100)) {
      return InvalidArgument(
          fmt::format("{}.logit_bias.{} must be a number from -100 to 100", where, key));
    }
    s->logit_bias.emplace_back(token, value.get<float>());
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<int32_t>> ParseTokenIds(const Json& list, std::string_view where) {
  const Status wrong = InvalidArgument(fmt::format("{} must be a list of token ids", where));
  if (!list.is_array()) return wrong;
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    if (!item.is_number_integer()) return wrong;
    // An unsigned number over INT64_MAX wraps to a negative one, which is refused too.
    const int64_t id = item.get<int64_t>();
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument(fmt::format("{}: {} is not a token id", where, item.dump()));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

namespace {

bool AsksForNothing(const Json& value) {
  if (value.is_array()) return std::ranges::all_of(value, AsksForNothing);
  return value == false || value == "" || value.empty();
}

}  // namespace

Status RefuseKeys(const Json& object, std::initializer_list<const char*> keys,
                  std::string_view where) {
  for (const char* key : keys) {
    const Json* value = JsonMember(object, key);
    if (value == nullptr || AsksForNothing(*value)) continue;
    return InvalidArgument(fmt::format("{}.{} is not supported", where, key));
  }
  return OkStatus();
}

Result<TextParams> ParseTextParams(const Json& object, const SamplingDefaults& defaults,
                                   std::string_view where) {
  TERN_RETURN_IF_ERROR(RefuseUnsupported(object, where));
  TextParams p;
  SamplingParams& s = p.sampling;
  TERN_ASSIGN_OR_RETURN(s.temperature,
                        JsonDouble(object, "temperature", defaults.temperature, where));
  if (!(s.temperature >= 0 && s.temperature <= 1e6)) {
    return WrongRange(where, "temperature", "0 or more");
  }
  TERN_ASSIGN_OR_RETURN(s.top_p, JsonDouble(object, "top_p", defaults.top_p, where));
  if (!(s.top_p > 0 && s.top_p <= 1)) return WrongRange(where, "top_p", "over 0 and at most 1");
  TERN_ASSIGN_OR_RETURN(s.min_p, JsonDouble(object, "min_p", defaults.min_p, where));
  if (!(s.min_p >= 0 && s.min_p <= 1)) return WrongRange(where, "min_p", "from 0 to 1");
  TERN_ASSIGN_OR_RETURN(s.top_k, JsonInt(object, "top_k", defaults.top_k, where));
  if (s.top_k < -1) return WrongRange(where, "top_k", "-1 (all) or positive");
  for (const char* key : {"seed", "sampling_seed"}) {
    if (JsonMember(object, key) == nullptr) continue;
    TERN_ASSIGN_OR_RETURN(const int64_t seed, JsonInt(object, key, 0, where));
    s.seed = static_cast<uint64_t>(seed);
  }
  TERN_RETURN_IF_ERROR(ParsePenalties(object, where, &s));
  TERN_RETURN_IF_ERROR(ParseLogitBias(object, where, &s));
  for (const char* key : {"min_tokens", "min_new_tokens"}) {
    TERN_ASSIGN_OR_RETURN(s.min_new_tokens, JsonInt(object, key, s.min_new_tokens, where));
    if (s.min_new_tokens < 0) return WrongRange(where, key, "0 or more");
  }
  TERN_ASSIGN_OR_RETURN(p.stops, ParseStops(object, where));
  TERN_ASSIGN_OR_RETURN(p.stop_regexes, ParseStopRegexes(object, where));
  if (const Json* ids = JsonMember(object, "stop_token_ids")) {
    TERN_ASSIGN_OR_RETURN(s.stop_token_ids,
                          ParseTokenIds(*ids, fmt::format("{}.stop_token_ids", where)));
    if (s.stop_token_ids.size() > kMaxStopTokens) {
      return WrongRange(where, "stop_token_ids", fmt::format("at most {} ids", kMaxStopTokens));
    }
  }
  TERN_ASSIGN_OR_RETURN(s.ignore_eos, JsonBool(object, "ignore_eos", false, where));
  TERN_ASSIGN_OR_RETURN(p.no_stop_trim, JsonBool(object, "no_stop_trim", false, where));
  TERN_ASSIGN_OR_RETURN(p.skip_special_tokens,
                        JsonBool(object, "skip_special_tokens", true, where));
  return p;
}

Status ResolveMaxTokens(int64_t prompt_tokens, int64_t context_length, TextParams* params) {
  if (prompt_tokens == 0) return InvalidArgument("the prompt is empty");
  const int64_t least = params->max_tokens == 0 ? 0 : 1;
  if (prompt_tokens + least > context_length) {
    return ContextOverflow(
        context_length,
        fmt::format("your messages resulted in {} tokens{}. Please reduce the length of the "
                    "messages.",
                    prompt_tokens, least > 0 ? ", and an answer needs at least one" : ""));
  }
  const int64_t room = context_length - prompt_tokens;
  if (params->max_tokens && *params->max_tokens > room) {
    return ContextOverflow(
        context_length,
        fmt::format("you requested {} tokens ({} in the messages, {} in the completion). Please "
                    "reduce the length of the messages or completion.",
                    // A float64 sum, which can't overflow.
                    static_cast<double>(prompt_tokens) + static_cast<double>(*params->max_tokens),
                    prompt_tokens, *params->max_tokens));
  }
  params->sampling.max_new_tokens = params->max_tokens.value_or(room);
  if (params->sampling.min_new_tokens > params->sampling.max_new_tokens) {
    return InvalidArgument(
        fmt::format("min_tokens {} is more than the {} tokens the answer may have",
                    params->sampling.min_new_tokens, params->sampling.max_new_tokens));
  }
  return OkStatus();
}

}  // namespace tern
