// Bare values to JSON by a tool's schema. Expected values follow JSON Schema's meaning of each
// keyword.
#include "text/argument_types.h"

#include <fmt/format.h>

#include <chrono>

#include "text/testing.h"

namespace tern {
namespace {

std::string ToJson(const char* schema, std::string_view raw) {
  const Json member = ParseJson(schema).value();
  const Json parameters = {{"type", "object"}, {"properties", {{"k", member}}}};
  return ArgumentToJson(&parameters, "k", raw);
}

TEST(ArgumentTypes, StringsStayAsTheyAre) {
  const char* string = R"({"type":"string"})";
  EXPECT_EQ(ToJson(string, "Paris"), R"("Paris")");
  EXPECT_EQ(ToJson(string, "5"), R"("5")");
  EXPECT_EQ(ToJson(string, "true"), R"("true")");
  EXPECT_EQ(ToJson(string, " a\n"), R"(" a\n")");
  EXPECT_EQ(ToJson(string, R"({"a": 1})"), R"("{\"a\": 1}")");
  EXPECT_EQ(ToJson(string, ""), R"("")");
  EXPECT_EQ(ToJson(string, "Zürich 北京"), R"("Zürich 北京")");
}

TEST(ArgumentTypes, OthersAreJson) {
  EXPECT_EQ(ToJson(R"({"type":"integer"})", " 5\n"), "5");
  EXPECT_EQ(ToJson(R"({"type":"number"})", "-1.5"), "-1.5");
  EXPECT_EQ(ToJson(R"({"type":"number"})", "12345678901234567890123"), "12345678901234567890123");
  EXPECT_EQ(ToJson(R"({"type":"boolean"})", "true"), "true");
  EXPECT_EQ(ToJson(R"({"type":"array"})", "[1, \"x\"]"), "[1, \"x\"]");
  EXPECT_EQ(ToJson(R"({"type":"object"})", R"({"b": {"c": null}})"), R"({"b": {"c": null}})");
  EXPECT_EQ(ToJson(R"({"type":"null"})", "null"), "null");
}

TEST(ArgumentTypes, ValuesOfAnotherTypeAreNotLost) {
  EXPECT_EQ(ToJson(R"({"type":"integer"})", "about five"), R"("about five")");
  EXPECT_EQ(ToJson(R"({"type":"integer"})", R"("5")"), "5");
  EXPECT_EQ(ToJson(R"({"type":"integer"})", R"("1.5")"), R"("1.5")");
  EXPECT_EQ(ToJson(R"({"type":"number"})", R"("1.5")"), "1.5");
  EXPECT_EQ(ToJson(R"({"type":"boolean"})", "True"), "true");
  EXPECT_EQ(ToJson(R"({"type":"boolean"})", "False"), "false");
  EXPECT_EQ(ToJson(R"({"type":["object","null"]})", "None"), "null");
  EXPECT_EQ(ToJson(R"({"type":"array"})", "[1, 2"), R"("[1, 2")");
  EXPECT_EQ(ToJson(R"({"type":"object"})", "NaN"), R"("NaN")");
  EXPECT_EQ(ToJson(R"({"type":"integer"})", std::string_view("3\0}", 3)), R"("3\u0000}")");
  EXPECT_EQ(ToJson(R"({"type":"integer"})",
                   "\xEF\xBB\xBF"
                   "3"),
            "\"\xEF\xBB\xBF"
            "3\"");
}

TEST(ArgumentTypes, UnionsTakeJsonOfAnAllowedTypeElseTheText) {
  const char* either = R"({"type":["string","integer"]})";
  EXPECT_EQ(ToJson(either, "7"), "7");
  EXPECT_EQ(ToJson(either, "seven"), R"("seven")");
  EXPECT_EQ(ToJson(either, "[7]"), R"("[7]")");
  EXPECT_EQ(ToJson(R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "null"), "null");
  EXPECT_EQ(ToJson(R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "5"), R"("5")");
  EXPECT_EQ(ToJson(R"({"oneOf":[{"type":"integer"},{"type":"boolean"}]})", "False"), "false");
  EXPECT_EQ(ToJson(R"({"allOf":[{"type":["string","integer"]},{"type":"string"}]})", "5"),
            R"("5")");
  EXPECT_EQ(ToJson(R"({"enum":["c","f"]})", "c"), R"("c")");
  EXPECT_EQ(ToJson(R"({"enum":["7", 8]})", "7"), R"("7")");
  EXPECT_EQ(ToJson(R"({"enum":["7", 8]})", "8"), "8");
  EXPECT_EQ(ToJson(R"({"const":"1"})", "1"), R"("1")");
  // Nothing known: JSON if it is JSON.
  EXPECT_EQ(ToJson("{}", "5"), "5");
  EXPECT_EQ(ToJson("true", "x y"), R"("x y")");
  EXPECT_EQ(ArgumentToJson(nullptr, "k", "[1]"), "[1]");
  EXPECT_EQ(ArgumentToJson(nullptr, "k", "None"), R"("None")");
}

TEST(ArgumentTypes, SchemasReferToTheirParts) {
  const Json parameters = ParseJson(R"({
    "$defs": {"Unit": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"},
              "All": {"properties": {"deep": {"type": "string"}}}},
    "properties": {"unit": {"$ref": "#/$defs/Unit"}, "loop": {"$ref": "#/$defs/Loop"},
                   "lost": {"$ref": "#/$defs/None"}, "far": {"$ref": "https://x/y"}},
    "allOf": [{"$ref": "#/$defs/All"}],
    "additionalProperties": {"type": "integer"}})")
                              .value();
  EXPECT_EQ(ArgumentTypes(&parameters, "unit"), json_type::kString);
  EXPECT_EQ(ArgumentTypes(&parameters, "loop"), std::nullopt);
  EXPECT_EQ(ArgumentTypes(&parameters, "lost"), std::nullopt);
  EXPECT_EQ(ArgumentTypes(&parameters, "far"), std::nullopt);
  EXPECT_EQ(ArgumentTypes(&parameters, "other"), json_type::kInteger);
  Json listed = parameters;
  listed.erase("additionalProperties");
  EXPECT_EQ(ArgumentTypes(&listed, "deep"), json_type::kString);
  EXPECT_EQ(ArgumentTypes(&listed, "other"), std::nullopt);
}

TEST(ArgumentTypes, ToolsAreFoundByName) {
  const Json tools =
      ParseJson(R"([{"type":"function","function":{"name":"bare"}}, 5, {"function":1},
      {"function":{"name":"f","parameters":{"type":"object"}}}])")
          .value();
  EXPECT_EQ(*ParametersOfTool(&tools, "f"), Json({{"type", "object"}}));
  EXPECT_EQ(*ParametersOfTool(&tools, "bare"), Json::object());
  EXPECT_EQ(ParametersOfTool(&tools, "g"), nullptr);
  EXPECT_EQ(ParametersOfTool(nullptr, "f"), nullptr);
}

TEST(ArgumentTypes, WorkIsBoundedWhateverTheSchema) {
  // Each level refers to the next twice, and the last to the first: 2^64 ways without a bound.
  Json defs = Json::object();
  for (int i = 0; i < 64; ++i) {
    const Json next = {{"$ref", fmt::format("#/$defs/d{}", (i + 1) % 64)}};
    defs[fmt::format("d{}", i)] = {{"anyOf", Json::array({next, next})}};
  }
  const Json parameters = {{"$defs", defs}, {"properties", {{"k", {{"$ref", "#/$defs/d0"}}}}}};
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ArgumentTypes(&parameters, "k"), std::nullopt);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace tern
