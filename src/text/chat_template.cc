#include "text/chat_template.h"

#include "jinja/json_value.h"
#include "jinja/template.h"

namespace tern {
namespace {

class JinjaChatTemplate final : public ChatTemplate {
 public:
  explicit JinjaChatTemplate(std::shared_ptr<const jinja::Template> compiled)
      : compiled_(std::move(compiled)) {}

  Result<std::string> Render(const Json& inputs) const override {
    if (!inputs.is_object()) return InvalidArgument("the inputs must be a JSON object");
    if (!inputs.contains("messages")) return InvalidArgument("the inputs have no 'messages'");
    TERN_ASSIGN_OR_RETURN(const jinja::Value value, jinja::FromJson(inputs));
    jinja::Dict names = value.dict();
    const auto add_default = [&names](const char* name, jinja::Value fallback) {
      if (names.Find(name) == nullptr) names.Set(jinja::Value::Str(name), std::move(fallback));
    };
    add_default("tools", jinja::Value::None());
    add_default("documents", jinja::Value::None());
    add_default("add_generation_prompt", jinja::Value::Bool(false));
    return compiled_->Render(names);
  }

 private:
  const std::shared_ptr<const jinja::Template> compiled_;
};

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::Compile(std::string source) {
  TERN_ASSIGN_OR_RETURN(auto compiled, jinja::Template::Compile(source));
  return std::shared_ptr<const ChatTemplate>(
      std::make_shared<JinjaChatTemplate>(std::move(compiled)));
}

}  // namespace tern
