// Chat templates against what transformers 5.24 renders (tests/data/templates/make_chat_cases.py).
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

const std::string kData = std::string(TERN_SOURCE_DIR) + "/tests/data/templates/";
const std::string kShared = std::string(TERN_SOURCE_DIR) + "/../shared/text/templates/";

std::shared_ptr<const ChatTemplate> Load(const std::string& path) {
  auto source = ReadFile(path);
  EXPECT_TRUE(source.ok()) << source.status().ToString();
  auto compiled = ChatTemplate::Compile(std::move(source).value());
  EXPECT_TRUE(compiled.ok()) << path << ": " << compiled.status().ToString();
  return std::move(compiled).value();
}

struct Tally {
  int rendered = 0, failed = 0;
};

// Renders every case of a reference file; the text must be equal to the byte, and what transformers
// cannot render must fail with its message.
Tally CheckCases(const std::string& cases_path, const std::string& folder) {
  Tally tally;
  const auto cases = ParseJsonFile(cases_path);
  EXPECT_TRUE(cases.ok()) << cases.status().ToString();
  std::map<std::string, std::shared_ptr<const ChatTemplate>> templates;
  for (const Json& c : *cases) {
    const auto name = c["template"].get<std::string>();
    SCOPED_TRACE(name + " " + c["case"].get<std::string>());
    auto& compiled = templates[name];
    if (!compiled) compiled = Load(folder + name + ".jinja");
    Json inputs = c["kwargs"];
    inputs["messages"] = c["messages"];
    inputs["bos_token"] = "[BOS]";
    inputs["eos_token"] = "[EOS]";
    const auto text = compiled->Render(inputs);
    if (c.contains("text")) {
      ++tally.rendered;
      EXPECT_TRUE(text.ok()) << text.status().ToString();
      EXPECT_EQ(text.ok() ? *text : "", c["text"].get<std::string>());
    } else {
      ++tally.failed;
      EXPECT_FALSE(text.ok());
      // "TypeError: message"
      const auto error = c["error"].get<std::string>();
      EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(text.status().message(), HasSubstr(error.substr(error.find(": ") + 2)));
      EXPECT_EQ(text.status().message().rfind("line ", 0), 0u) << text.status().message();
    }
  }
  return tally;
}

TEST(ChatTemplateTest, RendersSmolLm2AndTinyAsTransformers) {
  const Tally tally = CheckCases(kData + "chat_cases.json", kData);
  EXPECT_EQ(tally.rendered, 24);
  EXPECT_EQ(tally.failed, 2);
}

TEST(ChatTemplateTest, RendersAllReferenceTemplatesAsTransformers) {
  if (!FileExists(kShared + "golden.json")) {
    GTEST_SKIP() << "needs the reference templates of other models, which are not in the project";
  }
  const Tally tally = CheckCases(kShared + "golden.json", kShared);
  EXPECT_EQ(tally.rendered, 114);
  EXPECT_EQ(tally.failed, 16);
}

std::string Render(const std::string& source, const Json& inputs) {
  const auto compiled = ChatTemplate::Compile(source);
  if (!compiled.ok()) return "compile: " + compiled.status().message();
  const auto text = (*compiled)->Render(inputs);
  return text.ok() ? *text : "render: " + text.status().message();
}

TEST(ChatTemplateTest, AbsentInputsHaveTheDefaultsOfTransformers) {
  const Json inputs = {{"messages", Json::array()}};
  EXPECT_EQ(Render("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} "
                   "{{ bos_token is defined }} {{ enable_thinking is defined }}",
                   inputs),
            "True True False False False");
  Json given = inputs;
  given["tools"] = Json::array({1});
  given["add_generation_prompt"] = true;
  given["enable_thinking"] = false;
  EXPECT_EQ(Render("{{ tools }} {{ add_generation_prompt }} {{ enable_thinking }}", given),
            "[1] True False");
}

TEST(ChatTemplateTest, RefusesInputsThatAreNotAConversation) {
  EXPECT_THAT(Render("x", Json::array()), HasSubstr("must be a JSON object"));
  EXPECT_THAT(Render("x", Json::object()), HasSubstr("'messages'"));
  const Json huge = {{"messages", Json::array()}, {"n", uint64_t{1} << 63}};
  EXPECT_THAT(Render("x", huge), HasSubstr("9223372036854775808 does not fit in 64 bits"));
}

TEST(ChatTemplateTest, ErrorsNameTheLine) {
  const Json inputs = {{"messages", Json::array()}};
  EXPECT_EQ(Render("a\nb\n{% if %}", inputs).rfind("compile: line 3: ", 0), 0u);
  EXPECT_EQ(Render("a\n\n{{ messages[0].role.x }}", inputs).rfind("render: line 3: ", 0), 0u);
  EXPECT_EQ(Render("a\n{{ raise_exception('no ' ~ 'way') }}", inputs), "render: line 2: no way");
}

}  // namespace
}  // namespace tern
