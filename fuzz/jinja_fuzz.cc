// Compiles and renders arbitrary templates under small bounds. Whatever the template: a text or
// an error that names a line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "jinja/json_value.h"
#include "jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tern::jinja::Value* const inputs = [] {
    const auto json = tern::ParseJson(
        R"({"messages": [{"role": "user", "content": "Hi", "n": 1.5}, {"role": "tool", "x": null}],
            "tools": [{"name": "f", "a": {"b": [1, 2]}}], "n": 7, "s": "ab \u00e9", "t": true})");
    return new tern::jinja::Value(tern::jinja::FromJson(*json).value());
  }();
  const auto compiled =
      tern::jinja::Template::Compile(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!compiled.ok()) {
    if (!compiled.status().message().starts_with("line ")) std::abort();
    return 0;
  }
  const auto text = (*compiled)->Render(
      inputs->dict(),
      {.steps = 20'000, .memory_bytes = 4 << 20, .output_bytes = 1 << 20, .depth = 200});
  if (!text.ok() && !text.status().message().starts_with("line ")) std::abort();
  return 0;
}
