#include "cmd/calibration_text.h"

#include <fmt/format.h>

#include <string_view>

#include "base/file.h"
#include "base/json.h"

namespace tern {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

std::string TokenText(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::string(tokenizer.TokenBytes(*id)) : std::string();
}

// A text, as a document: behind a BOS where the tokenizer has one.
std::vector<int32_t> Document(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.Encode(text, /*parse_special=*/false);
  if (!ids.empty() && tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
  return ids;
}

Result<std::vector<int32_t>> Line(const Json& json, const Tokenizer& tokenizer,
                                  const ChatTemplate* chat_template) {
  if (!json.is_object()) return InvalidArgument("not a JSON object");
  if (const Json* text = JsonMember(json, "text")) {
    if (!text->is_string()) return InvalidArgument("text must be a string");
    return Document(text->get<std::string>(), tokenizer);
  }
  const Json* messages = JsonMember(json, "messages");
  if (messages == nullptr) return InvalidArgument("neither text nor messages");
  if (chat_template == nullptr) {
    return InvalidArgument("messages need a chat template, and the model has none");
  }
  Json inputs = Json::object();
  inputs["messages"] = *messages;
  if (const Json* tools = JsonMember(json, "tools")) inputs["tools"] = *tools;
  inputs["add_generation_prompt"] = false;
  inputs["bos_token"] = TokenText(tokenizer, tokenizer.bos());
  inputs["eos_token"] = TokenText(tokenizer, tokenizer.eos());
  TERN_ASSIGN_OR_RETURN(const std::string prompt, chat_template->Render(inputs));
  return tokenizer.Encode(prompt);
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> LoadCalibrationText(const std::string& path,
                                                              const Tokenizer& tokenizer,
                                                              const ChatTemplate* chat_template) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxTextBytes));
  std::vector<std::vector<int32_t>> sequences;
  if (!path.ends_with(".jsonl") && !path.ends_with(".json")) {
    if (std::vector<int32_t> ids = Document(text, tokenizer); !ids.empty()) {
      sequences.push_back(std::move(ids));
    }
  } else {
    size_t number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string where = fmt::format("{}: line {}", path, number);
      Result<Json> json = ParseJson(line);
      if (!json.ok()) return json.status().WithContext(where);
      Result<std::vector<int32_t>> ids = Line(*json, tokenizer, chat_template);
      if (!ids.ok()) return ids.status().WithContext(where);
      if (!ids->empty()) sequences.push_back(std::move(*ids));
    }
  }
  if (sequences.empty()) return InvalidArgument(fmt::format("{} holds no text", path));
  return sequences;
}

}  // namespace tern
