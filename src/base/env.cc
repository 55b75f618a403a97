#include "base/env.h"

#include <cstdlib>

namespace tern {

const std::vector<EnvVariable>& EnvVariables() {
  static const std::vector<EnvVariable> variables = {
      {"TERN_ISA",
       "kernel level to use instead of the best one: ref, generic, avx2 or avx512; a level that "
       "this machine cannot run, or an unknown name, is an error at start"},
  };
  return variables;
}

std::optional<std::string> EnvIsa() {
  const char* value = std::getenv("TERN_ISA");
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace tern
