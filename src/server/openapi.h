// The OpenAPI document at /openapi.json. Paths and methods come from ApiServer's own table of
// routes; what they take and answer is declared in openapi_schemas.cc. A test asks the running
// server about every endpoint, field and status of the document (tests/e2e/test_openapi.py).
// Thread: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace tern {

struct ApiRoute {
  std::string methods;    // separated by '|'
  std::string path;       // "/v1/models/" stands for /v1/models/{model}
  std::string operation;  // its name in OpenApiOperations
  bool open = false;      // asks for no API key
};

// OpenAPI 3.1. REQUIRES: every route's operation is declared.
Json OpenApiDocument(std::string_view version, const std::vector<ApiRoute>& routes);

// By operation: {"summary", "request"?, "query"?, "responses": {status: schema name or media
// type}}.
Json OpenApiOperations();
// By name, as JSON Schema. In those called ...Request an optional property may also be null.
Json OpenApiSchemas();

}  // namespace tern
