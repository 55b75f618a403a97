// tern: dispatch to a subcommand, nothing else.
#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/thread_pool.h"
#include "cmd/commands.h"
#include "kernels/ops.h"

namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& args);
};

constexpr Command kCommands[] = {
    {"serve", "serve a model over HTTP: OpenAI's API and SGLang's", tern::ServeCommand},
    {"chat", "talk to a model in the terminal", tern::ChatCommand},
    {"tokenize", "text to token ids and back, line by line", tern::TokenizeCommand},
    {"template", "render a chat template, line by line", tern::TemplateCommand},
    {"quantize", "checkpoint in, quantized checkpoint out", tern::QuantizeCommand},
    {"inspect", "what is in a checkpoint", tern::InspectCommand},
    {"eval", "perplexity, KL and task accuracy, and whether a format is equivalent",
     tern::EvalCommand},
    {"bench", "speed: limits of the machine, models, kernels, serving, comparisons",
     tern::BenchCommand},
    {"plan", "memory, speed and cost of a model on a machine that flags describe, or on this one",
     tern::PlanCommand},
    {"parity", "compare logits with a reference file", tern::ParityCommand},
};

void PrintUsage(std::FILE* out) {
  fmt::print(out,
             "tern: an inference server for large MLA/MoE language models\n\n"
             "Usage: tern COMMAND [options]\n\nCommands:\n");
  for (const Command& command : kCommands) {
    fmt::print(out, "  {:<10} {}\n", command.name, command.summary);
  }
  fmt::print(out,
             "\n`tern COMMAND --help` explains a command. `tern --version` prints the version, "
             "`tern --isa` the kernel level.\n");
}

// The kernel level that would run and those that could; exit code 1 when TERN_ISA can't be obeyed.
int PrintIsa() {
  tern::ThreadPool pool(1);
  const auto ops = tern::Ops::Create(tern::EnvIsa().value_or(""), pool);
  if (!ops.ok()) {
    fmt::print(stderr, "tern: {}\n", ops.status().message());
    return 1;
  }
  fmt::print("{} (this machine runs: {})\n", (*ops)->isa(),
             fmt::join(tern::Ops::SupportedIsas(), ", "));
  return 0;
}

// An answer that could not be written is a failure, whatever the command thinks.
int CloseOutput(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  fmt::print(stderr, "tern: cannot write to standard output\n");
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) {
    PrintUsage(stderr);
    return 2;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    PrintUsage(stdout);
    return CloseOutput(0);
  }
  if (args[0] == "--version") {
    fmt::print("tern {}\n", TERN_VERSION);
    return CloseOutput(0);
  }
  if (args[0] == "--isa") return CloseOutput(PrintIsa());
  for (const Command& command : kCommands) {
    if (args[0] != command.name) continue;
    try {
      return CloseOutput(command.run({args.begin() + 1, args.end()}));
    } catch (const std::bad_alloc&) {
      fmt::print(stderr, "tern {}: out of memory\n", command.name);
      return 1;
    }
  }
  fmt::print(stderr, "tern: there is no command '{}'; `tern --help` lists them\n", args[0]);
  return 2;
}
