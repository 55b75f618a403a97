#include "server/openapi.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tern {
namespace {

// Every request can end so, before its endpoint sees it.
constexpr std::pair<const char*, const char*> kTransportErrors[] = {
    {"400", "The request is malformed, or a field is wrong; the message names it."},
    {"408", "The request took too long to arrive."},
    {"413", "The body is larger than the server takes."},
    {"431", "The head is larger than the server takes."},
    {"500", "A bug, or memory or KV pages that do not hold what they must."},
    {"501", "A transfer encoding other than chunked."},
    {"503", "Not ready, shutting down, or too many requests; try again later."},
    {"505", "Another version of HTTP than 1.0 and 1.1."},
};

Json Ref(const std::string& schema) { return {{"$ref", "#/components/schemas/" + schema}}; }

// "text/plain" and the like stand for themselves; a name is a schema, in JSON; "Name+Chunk" is one
// answer in JSON or a stream of events.
Json ContentOf(const std::string& answer) {
  if (answer.find('/') != std::string::npos) return {{answer, {{"schema", {{"type", "string"}}}}}};
  const size_t plus = answer.find('+');
  Json content = {{"application/json", {{"schema", Ref(answer.substr(0, plus))}}}};
  if (plus != std::string::npos) {
    content["text/event-stream"] = {{"schema", Ref(answer.substr(plus + 1))}};
  }
  return content;
}

Json ResponsesOf(const Json& operation, bool open) {
  Json responses = Json::object();
  for (const auto& [status, answer] : operation["responses"].items()) {
    const std::string name = answer.get<std::string>();
    responses[status] = {{"description", status == "200" ? "The answer." : "See the schema."},
                         {"content", ContentOf(name)}};
  }
  for (const auto& [status, why] : kTransportErrors) {
    if (responses.contains(status)) continue;
    responses[status] = {{"description", why}, {"content", ContentOf("Error")}};
  }
  if (!open) {
    responses["401"] = {{"description", "The API key is missing or wrong."},
                        {"content", ContentOf("Unauthorized")}};
  }
  return responses;
}

Json OperationOf(const std::string& name, const Json& declared, bool open) {
  Json operation = {{"operationId", name}, {"summary", declared["summary"]}};
  Json parameters = Json::array();
  const Json query = declared.value("query", Json::object());
  for (const auto& [parameter, description] : query.items()) {
    parameters.push_back({{"name", parameter},
                          {"in", "query"},
                          {"schema", {{"type", "string"}}},
                          {"description", description}});
  }
  if (declared.contains("path")) {
    parameters.push_back({{"name", declared["path"]},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}}}});
  }
  if (!parameters.empty()) operation["parameters"] = parameters;
  if (declared.contains("request")) {
    operation["requestBody"] = {
        {"required", true},
        {"content",
         {{"application/json", {{"schema", Ref(declared["request"].get<std::string>())}}}}}};
  }
  operation["responses"] = ResponsesOf(declared, open);
  if (open) operation["security"] = Json::array();
  return operation;
}

// An absent property and a null are the same to the server.
void AllowNull(Json* property) {
  if (property->contains("type")) {
    Json& type = (*property)["type"];
    if (type.is_string()) type = Json::array({type});
    type.push_back("null");
  } else if (property->contains("anyOf")) {
    (*property)["anyOf"].push_back({{"type", "null"}});
  }
}

void AllowNullWhereOptional(Json* schema) {
  for (Json& part : (*schema).contains("allOf") ? (*schema)["allOf"] : *schema) {
    if (part.is_object() && part.contains("properties")) AllowNullWhereOptional(&part);
  }
  if (!schema->contains("properties")) return;
  const Json required = schema->value("required", Json::array());
  for (const auto& [name, property] : (*schema)["properties"].items()) {
    if (std::find(required.begin(), required.end(), name) == required.end()) AllowNull(&property);
  }
}

}  // namespace

Json OpenApiDocument(std::string_view version, const std::vector<ApiRoute>& routes) {
  const Json operations = OpenApiOperations();
  Json paths = Json::object();
  for (const ApiRoute& route : routes) {
    TERN_CHECK(operations.contains(route.operation));
    const Json& declared = operations[route.operation];
    std::string path = route.path;
    if (declared.contains("path"))
      path += fmt::format("{{{}}}", declared["path"].get<std::string>());
    for (size_t begin = 0; begin <= route.methods.size();) {
      const size_t end = std::min(route.methods.find('|', begin), route.methods.size());
      std::string method = route.methods.substr(begin, end - begin);
      begin = end + 1;
      // Ids differ between the paths and methods of one operation.
      std::string id = fmt::format("{}_{}{}", route.operation, method, route.path);
      for (char& c : id) c = c == '/' ? '_' : c;
      for (char& c : method) c = static_cast<char>(c | 0x20);
      paths[path][method] = OperationOf(id, declared, route.open);
    }
  }
  Json schemas = OpenApiSchemas();
  for (const auto& [name, schema] : schemas.items()) {
    if (name.ends_with("Request") || name.ends_with("Parameters")) AllowNullWhereOptional(&schema);
  }
  return {{"openapi", "3.1.0"},
          {"info",
           {{"title", "tern"},
            {"version", version},
            {"description",
             "OpenAI's chat and text completions, and SGLang's worker endpoints. Unknown fields of "
             "a request are ignored; a known field of a wrong type or range is a 400. Unknown "
             "paths are a 404, other methods than those listed a 405. Streams end with "
             "`data: [DONE]`; an error after the first event is an event with `error`."}}},
          {"paths", paths},
          {"components",
           {{"schemas", schemas},
            {"securitySchemes", {{"apiKey", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
          {"security", Json::array({Json{{"apiKey", Json::array()}}, Json::object()})}};
}

}  // namespace tern
