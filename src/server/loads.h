// /v1/loads and /get_load: how busy the engine is, in SGLang's shape, as JSON or in Prometheus'
// text format. Routers poll it to choose a worker. Thread: any.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "net/http.h"
#include "server/served_model.h"

namespace tern {

struct LoadsQuery {
  std::set<std::string> sections;  // core, memory, spec, disagg, queues, lora
  bool prometheus = false;
};
// Of the query parameters include (a comma-separated list; all by default), format and dp_rank (0
// is the only one). Errors: kInvalidArgument naming the parameter.
Result<LoadsQuery> ParseLoadsQuery(const HttpRequest& request);

// What one engine reports of itself: the element of `loads`. `now`: Unix seconds.
// `disaggregation`: that section's content.
Json LoadJson(const ServedModel& model, const LoadsQuery& query, const Json& disaggregation,
              int64_t now);
// The whole document around it.
Json LoadsJson(const Json& load, std::string_view version, int64_t now);
// The same as GET /get_load says it, which sglang-router's power_of_two polls.
Json OldLoadJson(const ServedModel& model);
// Every number of `load` as a gauge: sglang_<name>, sglang_<section>_<name>.
std::string LoadsPrometheus(const Json& load);

}  // namespace tern
