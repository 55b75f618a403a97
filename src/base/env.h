// Environment variables: the only place that reads them. Every name starts with TERN_.
// docs/ENV.md lists them. Thread: call at start, before threads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tern {

struct EnvVariable {
  const char* name;
  const char* help;
};

// Every variable that tern reads; a test compares them with docs/ENV.md.
const std::vector<EnvVariable>& EnvVariables();

// The value of TERN_ISA: the kernel level to force ("ref", "generic", "avx2", "avx512").
std::optional<std::string> EnvIsa();

}  // namespace tern
