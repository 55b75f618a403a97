// Schedule: everything that happens to an engine in one simulation: its sizes, the requests, when
// they arrive and are cancelled, which pages get damaged, which passes fail. Made from a seed or
// read from JSON; equal schedules run alike. Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tern {

struct SimRequest {
  int64_t arrive_step = 0;
  std::vector<int32_t> prompt;
  std::string salt;     // the cache namespace
  std::string session;  // the conversation that it names; "": none
  int64_t max_new_tokens = 8;
  double temperature = 0;
  uint64_t seed = 0;
  std::vector<int32_t> stop_tokens;
  bool ignore_eos = false;
  uint64_t mask = 0;         // names the token mask (ToyMaskAllows); 0: none
  int64_t cancel_step = -1;  // -1: never
  int64_t keep_tokens = -1;  // of the cancellation
};

// Before this step, one page of a generating sequence is damaged.
struct SimDamage {
  enum Kind {
    kHeader = 0,  // a bit of its tag flips
    kBits = 1,    // a bit of a sealed row flips; only where pages are sealed
    kTable = 2,   // the sequence's block table gets another page in its place
  };
  int64_t step = 0;
  uint64_t pick = 0;  // which sequence, page and bit, modulo their numbers
  int64_t kind = kHeader;
};

struct Schedule {
  uint64_t seed = 0;
  bool two_forms = false;
  bool reuse_prefixes = true;
  int64_t page_tokens = 4;
  int64_t pages = 16;
  int64_t chunk_tokens = 16;
  int64_t max_running = 4;
  int64_t context_length = 48;
  double session_fraction = 0.5;  // of the pages that sessions protect
  bool sealed = false;     // KV integrity: sealed, all pages verified after each step; else tags
  bool recompute = false;  // what becomes of victims; else they end
  std::vector<SimRequest> requests;  // by arrive_step
  std::vector<SimDamage> damages;
  std::vector<int32_t> failing_steps;  // the forward pass of these steps fails
  std::vector<int32_t> flush_steps;    // before these steps somebody flushes the cache
};

Schedule MakeSchedule(uint64_t seed);

Json ScheduleToJson(const Schedule& schedule);
// Errors: kInvalidArgument naming the field.
Result<Schedule> ScheduleFromJson(const Json& json);

}  // namespace tern
