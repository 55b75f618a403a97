// tern template: chat messages to the prompt that a model sees, line by line. For scripts and for
// comparisons with transformers' apply_chat_template.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/file.h"
#include "base/json.h"
#include "cmd/commands.h"
#include "cmd/line_filter.h"
#include "text/chat_template.h"

namespace tern {
namespace {

Result<std::shared_ptr<const ChatTemplate>> LoadTemplate(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(std::string source, ReadFile(path));
  auto compiled = ChatTemplate::Compile(std::move(source));
  if (!compiled.ok()) return compiled.status().WithContext(path);
  return compiled;
}

Result<std::string> RenderLine(const ChatTemplate& chat_template, const std::string& line) {
  TERN_ASSIGN_OR_RETURN(const Json inputs, ParseJson(line));
  TERN_ASSIGN_OR_RETURN(const std::string text, chat_template.Render(inputs));
  return JsonQuote(text);
}

int Fail(const Status& status, int exit_code) {
  fmt::print(stderr, "tern template: {}\n", status.message());
  return exit_code;
}

}  // namespace

int TemplateCommand(const std::vector<std::string>& args) {
  std::string path;
  OptionTable table("tern template",
                    "Reads one JSON object a line, {messages, tools?, documents?, "
                    "add_generation_prompt?, bos_token?, eos_token?, ...}, and writes the rendered "
                    "prompt, one JSON string a line. Absent tools and documents are none, absent "
                    "add_generation_prompt is false, any other absent key is undefined.");
  table.Add("--template", &path, "F.jinja", "the chat template").Required();
  const Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) return Fail(outcome.status(), 2);
  if (*outcome == ParseOutcome::kHelpShown) return 0;

  const auto chat_template = LoadTemplate(path);
  if (!chat_template.ok()) return Fail(chat_template.status(), 1);
  // "input": the message itself names a line, of the template.
  const Status status = FilterLines(
      "input", [&](const std::string& line) { return RenderLine(**chat_template, line); });
  return status.ok() ? 0 : Fail(status, 1);
}

}  // namespace tern
