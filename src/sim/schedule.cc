#include "sim/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "sim/toy_reference.h"

namespace tern {
namespace {

int64_t Between(Rng& rng, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(high - low + 1)));
}

// Prompts repeat each other's beginnings: a stem, or an earlier request with its answer (the next
// turn of a conversation), cut anywhere, then something new.
std::vector<int32_t> MakePrompt(Rng& rng, const ToyOptions& toy, const Schedule& schedule) {
  std::vector<int32_t> prompt;
  if (!schedule.requests.empty() && rng.Chance(0.6)) {
    const SimRequest& earlier = schedule.requests[rng.Below(schedule.requests.size())];
    prompt = earlier.prompt;
    if (rng.Chance(0.5)) {
      const SamplingParams greedy = {.temperature = 0, .max_new_tokens = earlier.max_new_tokens};
      const ToyAnswer answer = AnswerOf(toy, prompt, greedy, toy.context_length, earlier.mask);
      prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
    }
    if (rng.Chance(0.3)) prompt.resize(rng.Below(prompt.size()) + 1);
  }
  const int64_t extra = Between(rng, prompt.empty() ? 1 : 0, rng.Chance(0.7) ? 4 : 12);
  for (int64_t i = 0; i < extra; ++i) {
    prompt.push_back(static_cast<int32_t>(rng.Below(static_cast<uint64_t>(toy.vocab_size))));
  }
  const int64_t capacity = std::min(schedule.context_length, schedule.pages * schedule.page_tokens);
  if (static_cast<int64_t>(prompt.size()) > capacity - 1) {
    prompt.resize(static_cast<size_t>(std::max<int64_t>(capacity - 1, 1)));
  }
  return prompt;
}

SimRequest MakeRequest(Rng& rng, const ToyOptions& toy, const Schedule& schedule) {
  SimRequest request;
  request.prompt = MakePrompt(rng, toy, schedule);
  const char* salts[] = {"", "a", "b"};
  request.salt = salts[rng.Chance(0.6) ? 0 : rng.Below(3)];
  request.max_new_tokens = rng.Chance(0.05) ? 0 : Between(rng, 1, rng.Chance(0.3) ? 32 : 12);
  request.temperature = rng.Chance(0.7) ? 0 : 0.8;
  request.seed = rng.Below(4);
  request.ignore_eos = rng.Chance(0.5);
  if (rng.Chance(0.3)) {
    request.stop_tokens.push_back(
        static_cast<int32_t>(rng.Below(static_cast<uint64_t>(toy.vocab_size))));
  }
  return request;
}

}  // namespace

Schedule MakeSchedule(uint64_t seed) {
  Rng rng(seed);
  Schedule schedule;
  schedule.seed = seed;
  schedule.two_forms = rng.Chance(0.3);
  schedule.reuse_prefixes = rng.Chance(0.9);
  schedule.page_tokens = int64_t{1} << rng.Below(4);
  // Half of the pools are too small for what comes: they evict and retract.
  const int64_t pool_tokens = rng.Chance(0.6) ? 40 : 96;
  schedule.pages = Between(rng, 2, std::max<int64_t>(2, pool_tokens / schedule.page_tokens));
  schedule.chunk_tokens = Between(rng, 1, 24);
  schedule.max_running = Between(rng, 1, 8);
  schedule.context_length = Between(rng, 12, 48);
  const ToyOptions toy = {.context_length = schedule.context_length,
                          .two_forms = schedule.two_forms};
  const int64_t requests = Between(rng, 1, 10);
  int64_t step = 0;
  for (int64_t i = 0; i < requests; ++i) {
    if (rng.Chance(0.4)) step += Between(rng, 0, 6);
    SimRequest request = MakeRequest(rng, toy, schedule);
    request.arrive_step = step;
    if (rng.Chance(0.25)) {
      request.cancel_step = step + Between(rng, 0, 12);
      request.keep_tokens = rng.Chance(0.5) ? -1 : Between(rng, 0, 8);
    }
    schedule.requests.push_back(std::move(request));
  }
  if (rng.Chance(0.15)) schedule.damages.push_back({Between(rng, 1, 1 + step), rng.Next() >> 32});
  for (SimRequest& request : schedule.requests) {
    if (rng.Chance(0.15)) request.mask = 1 + rng.Below(3);
  }
  const auto some_step = [&] { return static_cast<int32_t>(Between(rng, 0, step + 20)); };
  if (rng.Chance(0.1)) schedule.failing_steps.push_back(some_step());
  for (uint64_t n = rng.Chance(0.4) ? rng.Below(8) : 0; n > 0; --n) {
    schedule.flush_steps.push_back(some_step());
  }
  // Draws for what came later come last: a seed's other choices stay what they were.
  schedule.sealed = rng.Chance(0.15);
  schedule.recompute = rng.Chance(0.4);
  for (uint64_t n = rng.Chance(0.1) ? rng.Below(4) : 0; n > 0; --n) {
    schedule.damages.push_back({Between(rng, 1, 12 + step), rng.Next() >> 32});
  }
  for (SimDamage& damage : schedule.damages) {
    damage.kind = static_cast<int64_t>(rng.Below(3));
    if (damage.kind == SimDamage::kBits && !schedule.sealed) damage.kind = SimDamage::kHeader;
  }
  if (rng.Chance(0.5)) {
    schedule.session_fraction = static_cast<double>(rng.Below(5)) * 0.25;
    const char* sessions[] = {"", "s", "t", "u"};
    for (SimRequest& request : schedule.requests) request.session = sessions[rng.Below(4)];
  }
  return schedule;
}

Json ScheduleToJson(const Schedule& schedule) {
  Json json = {{"seed", schedule.seed},
               {"two_forms", schedule.two_forms},
               {"reuse_prefixes", schedule.reuse_prefixes},
               {"page_tokens", schedule.page_tokens},
               {"pages", schedule.pages},
               {"chunk_tokens", schedule.chunk_tokens},
               {"max_running", schedule.max_running},
               {"context_length", schedule.context_length},
               {"session_fraction", schedule.session_fraction},
               {"sealed", schedule.sealed},
               {"recompute", schedule.recompute},
               {"requests", Json::array()},
               {"damages", Json::array()},
               {"failing_steps", schedule.failing_steps},
               {"flush_steps", schedule.flush_steps}};
  for (const SimRequest& request : schedule.requests) {
    json["requests"].push_back({{"arrive_step", request.arrive_step},
                                {"prompt", request.prompt},
                                {"salt", request.salt},
                                {"session", request.session},
                                {"max_new_tokens", request.max_new_tokens},
                                {"temperature", request.temperature},
                                {"seed", request.seed},
                                {"stop_tokens", request.stop_tokens},
                                {"ignore_eos", request.ignore_eos},
                                {"mask", request.mask},
                                {"cancel_step", request.cancel_step},
                                {"keep_tokens", request.keep_tokens}});
  }
  for (const SimDamage& damage : schedule.damages) {
    json["damages"].push_back(
        {{"step", damage.step}, {"pick", damage.pick}, {"kind", damage.kind}});
  }
  return json;
}

namespace {

// Reads the fields of one JSON object; the first error stays.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  void Int(const char* key, int64_t* value) { Take(JsonInt(object_, key, *value, where_), value); }
  void Seed(const char* key, uint64_t* value) {
    if (!object_.contains(key)) return;
    if (!object_[key].is_number_unsigned()) return Fail(key, "a number from 0 up");
    *value = object_[key].get<uint64_t>();
  }
  void Bool(const char* key, bool* value) { Take(JsonBool(object_, key, *value, where_), value); }
  void Double(const char* key, double* value) {
    Take(JsonDouble(object_, key, *value, where_), value);
  }
  void String(const char* key, std::string* value) {
    Take(JsonString(object_, key, *value, where_), value);
  }
  void Ints(const char* key, std::vector<int32_t>* value) {
    if (!object_.contains(key)) return;
    if (!object_[key].is_array()) return Fail(key, "an array of integers");
    for (const Json& token : object_[key]) {
      if (!token.is_number_integer()) return Fail(key, "an array of integers");
      value->push_back(token.get<int32_t>());
    }
  }
  const Status& status() const { return status_; }

 private:
  template <typename T>
  void Take(Result<T> result, T* value) {
    if (result.ok()) {
      *value = std::move(result).value();
    } else if (status_.ok()) {
      status_ = result.status();
    }
  }
  void Fail(const char* key, const char* type) {
    if (status_.ok()) status_ = InvalidArgument(fmt::format("{}.{} must be {}", where_, key, type));
  }

  const Json& object_;
  const std::string where_;
  Status status_;
};

Result<const Json*> ArrayOf(const Json& json, const char* key) {
  static const Json kEmpty = Json::array();
  if (!json.contains(key)) return &kEmpty;
  if (!json[key].is_array())
    return InvalidArgument(fmt::format("schedule.{} must be an array", key));
  return &json[key];
}

}  // namespace

Result<Schedule> ScheduleFromJson(const Json& json) {
  if (!json.is_object()) return InvalidArgument("a schedule must be an object");
  Schedule schedule;
  FieldReader fields(json, "schedule");
  fields.Seed("seed", &schedule.seed);
  fields.Bool("two_forms", &schedule.two_forms);
  fields.Bool("reuse_prefixes", &schedule.reuse_prefixes);
  fields.Int("page_tokens", &schedule.page_tokens);
  fields.Int("pages", &schedule.pages);
  fields.Int("chunk_tokens", &schedule.chunk_tokens);
  fields.Int("max_running", &schedule.max_running);
  fields.Int("context_length", &schedule.context_length);
  fields.Double("session_fraction", &schedule.session_fraction);
  fields.Bool("sealed", &schedule.sealed);
  fields.Bool("recompute", &schedule.recompute);
  fields.Ints("failing_steps", &schedule.failing_steps);
  fields.Ints("flush_steps", &schedule.flush_steps);
  TERN_RETURN_IF_ERROR(fields.status());
  TERN_ASSIGN_OR_RETURN(const Json* const requests, ArrayOf(json, "requests"));
  for (const Json& item : *requests) {
    SimRequest request;
    FieldReader reader(item, fmt::format("schedule.requests[{}]", schedule.requests.size()));
    reader.Int("arrive_step", &request.arrive_step);
    reader.Ints("prompt", &request.prompt);
    reader.String("salt", &request.salt);
    reader.String("session", &request.session);
    reader.Int("max_new_tokens", &request.max_new_tokens);
    reader.Double("temperature", &request.temperature);
    reader.Seed("seed", &request.seed);
    reader.Ints("stop_tokens", &request.stop_tokens);
    reader.Bool("ignore_eos", &request.ignore_eos);
    reader.Seed("mask", &request.mask);
    reader.Int("cancel_step", &request.cancel_step);
    reader.Int("keep_tokens", &request.keep_tokens);
    TERN_RETURN_IF_ERROR(reader.status());
    schedule.requests.push_back(std::move(request));
  }
  TERN_ASSIGN_OR_RETURN(const Json* const damages, ArrayOf(json, "damages"));
  for (const Json& item : *damages) {
    SimDamage damage;
    FieldReader reader(item, fmt::format("schedule.damages[{}]", schedule.damages.size()));
    reader.Int("step", &damage.step);
    reader.Seed("pick", &damage.pick);
    reader.Int("kind", &damage.kind);
    TERN_RETURN_IF_ERROR(reader.status());
    schedule.damages.push_back(damage);
  }
  return schedule;
}

}  // namespace tern
