#include "text/prompt_text.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/utf8.h"

namespace tern {
namespace {

constexpr std::string_view kReasoningMarkers[] = {"<think>", "</think>"};

bool IsAsciiPunctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

std::string_view FirstCharacter(std::string_view text) {
  size_t length = 0;
  DecodeUtf8(text, 0, &length);
  return text.substr(0, length);
}

// Where a text could be part of a control token. Every punctuation mark that one begins or ends
// with counts, so that neither templates which cut pieces out of a text nor what they write next to
// it can make one; a token that begins otherwise (with a letter, a space) counts only where all of
// it stands.
class ControlTexts {
 public:
  explicit ControlTexts(const Tokenizer& tokenizer) : texts_(tokenizer.AddedTexts()) {
    for (const std::string& text : texts_) {
      starts_[static_cast<unsigned char>(text[0])] = true;
      for (const char c : {text.front(), text.back()}) {
        if (IsAsciiPunctuation(c)) marks_[static_cast<unsigned char>(c)] = true;
      }
      longest_ = std::max(longest_, text.size());
    }
  }

  bool PartAt(std::string_view text, size_t pos) const {
    return marks_[static_cast<unsigned char>(text[pos])] || WholeAt(text, pos);
  }
  // Whether a template that writes around all of the text could make a control token of it.
  bool IsInside(std::string_view text) const {
    if (text.empty() || text.size() + 2 > longest_) return false;
    return std::any_of(texts_.begin(), texts_.end(), [text](const std::string& t) {
      const size_t at = t.find(text, 1);
      return at != std::string::npos && at + text.size() < t.size();
    });
  }
  bool WholeAt(std::string_view text, size_t pos) const {
    if (!starts_[static_cast<unsigned char>(text[pos])]) return false;
    const std::string_view rest = text.substr(pos);
    return std::any_of(texts_.begin(), texts_.end(),
                       [rest](const std::string& t) { return rest.starts_with(t); });
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
  std::array<bool, 256> starts_{}, marks_{};
  size_t longest_ = 0;
};

// What a string of a request is to a template.
enum class TextKind {
  kText,       // something to write
  kAssistant,  // the same, that the model wrote
  kChoice,     // something to look at: a role, a type, an option; the server knows all roles
};

// Calls use(string, kind) for every string in the inputs that a request brings, and puts what it
// returns in its place; keys of nested objects too.
template <typename Use>
class StringWalk {
 public:
  explicit StringWalk(Use use) : use_(std::move(use)) {}

  void Inputs(Json* inputs) {
    for (auto& [key, value] : inputs->items()) {
      if (key == "bos_token" || key == "eos_token") continue;
      if (key == "messages" && value.is_array()) {
        for (Json& message : value) Message(&message);
      } else {
        Value(&value, value.is_string() ? TextKind::kChoice : TextKind::kText);
      }
    }
  }

 private:
  void Message(Json* message) {
    if (!message->is_object()) return Value(message, TextKind::kText);
    const Json* role = JsonMember(*message, "role");
    const bool assistant = role != nullptr && *role == "assistant";
    for (auto& [key, value] : message->items()) {
      const bool own = assistant && (key == "content" || key == "reasoning_content");
      Value(&value, own             ? TextKind::kAssistant
                    : key == "role" ? TextKind::kChoice
                                    : TextKind::kText);
    }
  }

  void Value(Json* value, TextKind kind) {
    if (value->is_string()) {
      std::string& text = value->get_ref<std::string&>();
      if (std::optional<std::string> changed = use_(text, kind)) {
        text = *std::move(changed);
      }
    } else if (value->is_array()) {
      for (Json& item : *value) Value(&item, kind);
    } else if (value->is_object()) {
      Json::object_t& object = value->get_ref<Json::object_t&>();
      Json::object_t renamed;
      bool any = false;
      for (auto& [key, item] : object) {
        Value(&item, key == "type" ? TextKind::kChoice : kind);
        std::optional<std::string> changed = use_(key, TextKind::kChoice);
        any = any || changed.has_value();
        // Not operator[], which searches: keys stay different from each other.
        renamed.emplace_back(changed ? *std::move(changed) : key, std::move(item));
      }
      object.swap(renamed);
    }
  }

  Use use_;
};

// The reasoning marker at text[pos]; empty when there is none.
std::string_view ReasoningMarkerAt(std::string_view text, size_t pos) {
  for (const std::string_view marker : kReasoningMarkers) {
    if (text.substr(pos).starts_with(marker)) return marker;
  }
  return {};
}

struct Found {
  std::set<std::string> characters;  // that could be part of control tokens
  bool whole = false;                // a whole control token is there
};

// Calls mark(pos) for every character of the text that must not be part of a control token.
template <typename Mark>
void ForEachPart(const ControlTexts& controls, std::string_view text, TextKind kind, Mark mark) {
  const bool inside = kind != TextKind::kChoice && controls.IsInside(text);
  for (size_t pos = 0; pos < text.size(); ++pos) {
    const std::string_view reasoning =
        kind == TextKind::kAssistant ? ReasoningMarkerAt(text, pos) : std::string_view();
    if (!reasoning.empty()) {
      pos += reasoning.size() - 1;
    } else if ((inside && pos == 0) || controls.PartAt(text, pos)) {
      mark(pos);
    }
  }
}

void Look(const ControlTexts& controls, std::string_view text, TextKind kind, Found* found) {
  ForEachPart(controls, text, kind, [&](size_t pos) {
    found->characters.emplace(FirstCharacter(text.substr(pos)));
    found->whole = found->whole || controls.WholeAt(text, pos);
  });
}

std::optional<std::string> Masked(const ControlTexts& controls, const Disguise& disguise,
                                  std::string_view text, TextKind kind) {
  std::string masked;
  size_t done = 0;
  ForEachPart(controls, text, kind, [&](size_t pos) {
    const std::string_view first = FirstCharacter(text.substr(pos));
    masked += text.substr(done, pos - done);
    masked += disguise.For(first);
    done = pos + first.size();
  });
  if (done == 0) return std::nullopt;
  masked += text.substr(done);
  return masked;
}

// How often each control token stands in a text.
std::map<TokenId, int64_t> CountControls(const Tokenizer& tokenizer, const ControlTexts& controls,
                                         const std::vector<TokenId>& ids) {
  std::set<TokenId> control_ids;
  for (const std::string& text : controls.texts()) {
    if (const auto id = tokenizer.IdOf(text)) control_ids.insert(*id);
  }
  std::map<TokenId, int64_t> counts;
  for (const TokenId id : ids) {
    if (control_ids.contains(id)) ++counts[id];
  }
  return counts;
}

}  // namespace

Result<PromptText> RenderPrompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                const Json& inputs) {
  PromptText plain;
  TERN_ASSIGN_OR_RETURN(plain.text, chat_template.Render(inputs));
  const ControlTexts controls(tokenizer);
  Found found;
  Json masked_inputs = inputs;
  StringWalk([&](std::string_view text, TextKind kind) -> std::optional<std::string> {
    Look(controls, text, kind, &found);
    return std::nullopt;
  }).Inputs(&masked_inputs);
  if (found.characters.empty()) return plain;

  PromptText masked;
  const std::string all_inputs = DumpJson(inputs);
  for (const std::string& character : found.characters) {
    if (masked.disguise.Add(character, {all_inputs, plain.text}).empty()) {
      return InvalidArgument("the messages hold too many kinds of unusual characters");
    }
  }
  StringWalk([&](std::string_view text, TextKind kind) {
    return Masked(controls, masked.disguise, text, kind);
  }).Inputs(&masked_inputs);
  TERN_ASSIGN_OR_RETURN(masked.text, chat_template.Render(masked_inputs));
  if (masked.Plain() == plain.text) return masked;

  // The template looks at these characters, or escapes them.
  if (!found.whole && CountControls(tokenizer, controls, tokenizer.Encode(plain.text)) ==
                          CountControls(tokenizer, controls,
                                        tokenizer.EncodeDisguised(masked.text, masked.disguise))) {
    return plain;
  }
  constexpr std::string_view kEscapes[] = {"\\ud836", "\\uD836", "\\U0001d8", "&#120", "%F0%9D"};
  for (const std::string_view escape : kEscapes) {
    if (masked.text.find(escape) != std::string::npos) {
      return InvalidArgument(
          "a message holds the text of a control token, which the model's chat template escapes; "
          "it can't be kept apart from a real one");
    }
  }
  return masked;
}

}  // namespace tern
