#include "jinja/template.h"

#include "base/utf8.h"
#include "jinja/interpreter.h"
#include "jinja/parser.h"

namespace tern::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{16} << 20;

class TreeTemplate final : public Template {
 public:
  explicit TreeTemplate(Body body) : body_(std::move(body)) {}
  Result<std::string> Render(const Dict& inputs, const Limits& limits,
                             const Clock& clock) const override {
    return Interpreter(inputs, limits, clock).Render(body_);
  }

 private:
  const Body body_;
};

}  // namespace

Result<std::shared_ptr<const Template>> Template::Compile(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return InvalidArgument("line 1: a template of more than 16 MiB");
  }
  if (!IsValidUtf8(source)) return InvalidArgument("line 1: the template is not valid UTF-8");
  TERN_ASSIGN_OR_RETURN(Body body, Parse(source));
  return std::shared_ptr<const Template>(std::make_shared<TreeTemplate>(std::move(body)));
}

}  // namespace tern::jinja
