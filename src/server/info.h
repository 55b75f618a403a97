// Documents about the model and the server, in SGLang's shapes: what routers read of a worker.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "server/served_model.h"

namespace tern {

// An entry of /v1/models. `created`: Unix seconds.
Json ModelCard(const ServedModel& model, int64_t created);
// `server_args`: the options of `serve` by their names with underscores.
Json ModelInfoJson(const ServedModel& model, const Json& server_args);
// `server_args`: every option and its value; they come first, as SGLang has it. `startup_s`:
// seconds from the start of the server to the model being ready.
Json ServerInfoJson(const ServedModel& model, const Json& server_args, const std::string& version,
                    double startup_s);

}  // namespace tern
