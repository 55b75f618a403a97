// The subcommands of tern. Each takes what follows its name and returns the exit code:
// 0 ok, 1 failed, 2 wrong usage. Thread: the main thread.
#pragma once

#include <string>
#include <vector>

namespace tern {

int BenchCommand(const std::vector<std::string>& args);
int ChatCommand(const std::vector<std::string>& args);
int EvalCommand(const std::vector<std::string>& args);
int InspectCommand(const std::vector<std::string>& args);
int ParityCommand(const std::vector<std::string>& args);
int PlanCommand(const std::vector<std::string>& args);
int QuantizeCommand(const std::vector<std::string>& args);
int ServeCommand(const std::vector<std::string>& args);
int TemplateCommand(const std::vector<std::string>& args);
int TokenizeCommand(const std::vector<std::string>& args);

}  // namespace tern
