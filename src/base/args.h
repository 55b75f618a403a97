// Options: declared once, read from the command line, a YAML file and JSON alike.
// --help, /server_info and docs come from the same table. The one wrapper around CLI11 and
// yaml-cpp. Thread: build and parse at start, on one thread; read-only afterwards.
//
//   int64_t port = 30000;
//   OptionTable options("tern serve", "Serve a model over HTTP.");
//   options.Add("--port", &port, "PORT", "port to listen on; 0 takes a free one").Range(0, 65535);
//   Result<ParseOutcome> outcome = options.Parse(argc, argv);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tern {

// One option. The table writes through `target`; whoever owns the field owns its default.
class Option {
 public:
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*,
                              std::optional<int64_t>*, std::optional<double>*>;

  // Numbers outside [low, high] are a usage error.
  Option& Range(double low, double high);
  // Texts other than these are a usage error.
  Option& Choices(std::vector<std::string> choices);
  Option& Required();
  // A heading in --help.
  Option& Group(std::string group);
  // Other spellings of the same option ("--model" for "--model-path").
  Option& Alias(std::string name);
  // Not shown in /server_info (an API key).
  Option& Secret();
  // Takes the place in the command line instead of a flag ("tern inspect PATH").
  Option& Positional();

 private:
  friend class OptionTable;
  std::string name_;  // "--model-path"
  std::string metavar_;
  std::string help_;
  Target target_;
  std::optional<std::pair<double, double>> range_;
  std::vector<std::string> choices_;
  std::vector<std::string> aliases_;
  std::string group_ = "Options";
  bool required_ = false;
  bool secret_ = false;
  bool positional_ = false;
};

enum class ParseOutcome { kRun, kHelpShown };

class OptionTable {
 public:
  // `program`: "tern serve". `description`: what the command does, shown by --help.
  OptionTable(std::string program, std::string description);

  // REQUIRES: `name` starts with "--"; `target` outlives the table.
  Option& Add(std::string name, Option::Target target, std::string metavar, std::string help);
  // Adds `--config FILE`: a YAML map whose keys are option names without the dashes in front
  // ("model-path" or "model_path"). The command line wins over the file.
  void AddConfigFile();
  // Shown after the options in --help.
  void SetEpilog(std::string text) { epilog_ = std::move(text); }

  // `args`: what follows the command's name. --help prints to standard output and gives
  // kHelpShown. Errors: kInvalidArgument, one sentence that names the flag (exit code 2).
  Result<ParseOutcome> Parse(const std::vector<std::string>& args);

  // {"model_path": ..., "port": ...}: names without dashes, '-' as '_'; secrets left out.
  Json ToJson() const;
  std::string Help() const;

 private:
  Status ApplyConfig(const std::string& path, const std::vector<std::string>& given);

  std::string program_, description_, epilog_;
  std::vector<std::unique_ptr<Option>> options_;
  std::string config_path_;
};

}  // namespace tern
