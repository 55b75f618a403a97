// The document's form; what it says is tried against a running server in tests/e2e/test_openapi.py.
#include "server/openapi.h"

#include "server/test_server.h"

namespace tern {
namespace {

TEST_F(ServerTest, OpenApiDocumentHasEveryRoute) {
  const HttpResponse response = Call("GET", "/openapi.json");  // while loading too
  ASSERT_EQ(response.status, 200);
  const Json document = ParseJson(response.body).value();
  EXPECT_EQ(document["openapi"], "3.1.0");
  EXPECT_EQ(document["info"]["version"], "test");
  const Json& paths = document["paths"];
  EXPECT_EQ(paths.size(), 23u);
  EXPECT_TRUE(paths["/generate"].contains("put") && paths["/generate"].contains("post"));
  EXPECT_EQ(paths["/v1/models/{model}"]["get"]["parameters"][0]["in"], "path");
  EXPECT_EQ(paths["/v1/loads"]["get"]["parameters"].size(), 3u);
  EXPECT_FALSE(paths["/health"]["get"]["responses"].contains("401"));
  EXPECT_TRUE(paths["/v1/models"]["get"]["responses"].contains("401"));
  const Json& schemas = document["components"]["schemas"];
  EXPECT_EQ(schemas["SamplingParameters"]["properties"]["top_p"]["type"], Json({"number", "null"}));
  const Json& chat = schemas["ChatRequest"]["allOf"][2]["properties"];
  EXPECT_EQ(chat["logprobs"]["type"], Json({"boolean", "null"}));
  EXPECT_EQ(chat["messages"]["type"], "array");  // required
}

}  // namespace
}  // namespace tern
