#include "base/args.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/file.h"

namespace tern {
namespace {

template <class... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overload(Fs...) -> Overload<Fs...>;

std::string Bare(const std::string& name) { return name.substr(2); }

std::string Underscored(std::string name) {
  name = Bare(name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string Join(const std::vector<std::string>& items) {
  return fmt::format("{}", fmt::join(items, ", "));
}

Result<double> Number(const std::string& name, const std::string& text) {
  try {
    size_t used = 0;
    const double value = std::stod(text, &used);
    if (used == text.size() && std::isfinite(value)) return value;
  } catch (const std::exception&) {  // std::stod's way to say no
  }
  return InvalidArgument(fmt::format("{}: '{}' is not a number", name, text));
}

Result<int64_t> Integer(const std::string& name, const std::string& text) {
  try {
    size_t used = 0;
    const int64_t value = std::stoll(text, &used);
    if (used == text.size()) return value;
  } catch (const std::exception&) {
  }
  return InvalidArgument(fmt::format("{}: '{}' is not an integer", name, text));
}

Result<bool> Boolean(const std::string& name, std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "0" || text == "no" || text == "off") return false;
  return InvalidArgument(fmt::format("{}: '{}' is neither true nor false", name, text));
}

}  // namespace

Option& Option::Range(double low, double high) {
  range_ = {low, high};
  return *this;
}
Option& Option::Choices(std::vector<std::string> c) {
  choices_ = std::move(c);
  return *this;
}
Option& Option::Required() {
  required_ = true;
  return *this;
}
Option& Option::Group(std::string group) {
  group_ = std::move(group);
  return *this;
}
Option& Option::Alias(std::string name) {
  aliases_.push_back(std::move(name));
  return *this;
}
Option& Option::Secret() {
  secret_ = true;
  return *this;
}
Option& Option::Positional() {
  positional_ = true;
  return *this;
}

OptionTable::OptionTable(std::string program, std::string description)
    : program_(std::move(program)), description_(std::move(description)) {}

Option& OptionTable::Add(std::string name, Option::Target target, std::string metavar,
                         std::string help) {
  TERN_CHECK(name.rfind("--", 0) == 0);
  auto option = std::make_unique<Option>();
  option->name_ = std::move(name);
  option->target_ = target;
  option->metavar_ = std::move(metavar);
  option->help_ = std::move(help);
  options_.push_back(std::move(option));
  return *options_.back();
}

void OptionTable::AddConfigFile() {
  Add("--config", &config_path_, "FILE",
      "YAML file with options (model-path: DIR); the command line wins over it");
}

namespace {

// Checks and stores one value given as text. `name` is how the user wrote the option.
Status Store(const std::string& name, const Option::Target& target,
             const std::optional<std::pair<double, double>>& range,
             const std::vector<std::string>& choices, const std::vector<std::string>& values) {
  if (values.empty()) return InvalidArgument(fmt::format("{} needs a value", name));
  const std::string& text = values.back();
  const auto in_range = [&](double value) -> Status {
    if (!range || (value >= range->first && value <= range->second)) return OkStatus();
    return InvalidArgument(
        fmt::format("{}: {} is not in [{}, {}]", name, text, range->first, range->second));
  };
  const auto chosen = [&](const std::string& value) -> Status {
    if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) {
      return OkStatus();
    }
    return InvalidArgument(fmt::format("{}: '{}' is not one of {}", name, value, Join(choices)));
  };
  const auto integer = [&](auto* field) -> Status {
    TERN_ASSIGN_OR_RETURN(const int64_t value, Integer(name, text));
    TERN_RETURN_IF_ERROR(in_range(static_cast<double>(value)));
    *field = value;
    return OkStatus();
  };
  const auto number = [&](auto* field) -> Status {
    TERN_ASSIGN_OR_RETURN(const double value, Number(name, text));
    TERN_RETURN_IF_ERROR(in_range(value));
    *field = value;
    return OkStatus();
  };
  return std::visit(Overload{
                        [&](bool* field) -> Status {
                          TERN_ASSIGN_OR_RETURN(*field, Boolean(name, text));
                          return OkStatus();
                        },
                        [&](int64_t* field) { return integer(field); },
                        [&](std::optional<int64_t>* field) { return integer(field); },
                        [&](double* field) { return number(field); },
                        [&](std::optional<double>* field) { return number(field); },
                        [&](std::string* field) -> Status {
                          TERN_RETURN_IF_ERROR(chosen(text));
                          *field = text;
                          return OkStatus();
                        },
                        [&](std::vector<std::string>* field) -> Status {
                          for (const std::string& value : values)
                            TERN_RETURN_IF_ERROR(chosen(value));
                          *field = values;
                          return OkStatus();
                        },
                    },
                    target);
}

std::string ShowDefault(const Option::Target& target) {
  return std::visit(
      Overload{
          [](bool* f) { return std::string(*f ? "true" : "false"); },
          [](int64_t* f) { return fmt::format("{}", *f); },
          [](double* f) { return fmt::format("{}", *f); },
          [](std::string* f) { return *f; },
          [](std::vector<std::string>* f) { return Join(*f); },
          [](std::optional<int64_t>* f) { return *f ? fmt::format("{}", **f) : std::string(); },
          [](std::optional<double>* f) { return *f ? fmt::format("{}", **f) : std::string(); },
      },
      target);
}

}  // namespace

Result<ParseOutcome> OptionTable::Parse(const std::vector<std::string>& args) {
  CLI::App app{description_, program_};
  app.set_help_flag();  // --help is ours: it prints the same table as the docs
  bool help = false;
  app.add_flag("--help,-h", help);
  std::vector<std::vector<std::string>> values(options_.size());
  std::vector<CLI::Option*> handles;
  for (size_t i = 0; i < options_.size(); ++i) {
    const Option& option = *options_[i];
    std::string names = option.positional_ ? Bare(option.name_) : option.name_;
    for (const std::string& alias : option.aliases_) names += "," + alias;
    if (std::holds_alternative<bool*>(option.target_)) {
      // --name or --name=value: what follows it is not its own.
      handles.push_back(app.add_flag(names, values[i]));
      continue;
    }
    CLI::Option* handle = app.add_option(names, values[i]);
    if (!std::holds_alternative<std::vector<std::string>*>(option.target_)) {
      handle->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      handle->allow_extra_args(false);  // the next word is not this option's
    }
    handles.push_back(handle);
  }
  try {
    std::vector<std::string> reversed(args.rbegin(), args.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& e) {
    return InvalidArgument(e.what());
  }
  if (help) {
    std::fputs(Help().c_str(), stdout);
    return ParseOutcome::kHelpShown;
  }
  std::vector<std::string> given;
  for (size_t i = 0; i < options_.size(); ++i) {
    if (handles[i]->count() == 0) continue;
    Option& option = *options_[i];
    TERN_RETURN_IF_ERROR(
        Store(option.name_, option.target_, option.range_, option.choices_, values[i]));
    given.push_back(option.name_);
  }
  if (!config_path_.empty()) TERN_RETURN_IF_ERROR(ApplyConfig(config_path_, given));
  for (const auto& option : options_) {
    if (option->required_ && ShowDefault(option->target_).empty()) {
      return InvalidArgument(
          fmt::format("{} is required", option->positional_ ? option->metavar_ : option->name_));
    }
  }
  return ParseOutcome::kRun;
}

Status OptionTable::ApplyConfig(const std::string& path, const std::vector<std::string>& given) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return InvalidArgument(fmt::format("{} is not a YAML map", path));
    for (const auto& entry : root) {
      std::string key = entry.first.as<std::string>();
      std::replace(key.begin(), key.end(), '_', '-');
      const std::string name = "--" + key;
      const auto found = std::find_if(options_.begin(), options_.end(), [&](const auto& option) {
        return option->name_ == name || std::find(option->aliases_.begin(), option->aliases_.end(),
                                                  name) != option->aliases_.end();
      });
      if (found == options_.end()) {
        return InvalidArgument(fmt::format("{}: there is no option '{}'", path, key));
      }
      Option& option = **found;
      if (std::find(given.begin(), given.end(), option.name_) != given.end()) continue;
      std::vector<std::string> values;
      if (entry.second.IsSequence()) {
        for (const auto& item : entry.second) values.push_back(item.as<std::string>());
      } else if (entry.second.IsScalar()) {
        values.push_back(entry.second.as<std::string>());
      } else {
        return InvalidArgument(fmt::format("{}: '{}' must be a value or a list", path, key));
      }
      const Status stored =
          Store(option.name_, option.target_, option.range_, option.choices_, values);
      if (!stored.ok()) return stored.WithContext(path);
    }
  } catch (const YAML::Exception& e) {
    return InvalidArgument(fmt::format("{}: {}", path, e.what()));
  }
  return OkStatus();
}

Json OptionTable::ToJson() const {
  Json json = Json::object();
  for (const auto& option : options_) {
    if (option->secret_) continue;
    Json& value = json[Underscored(option->name_)];
    std::visit(Overload{
                   [&](std::optional<int64_t>* f) {
                     if (*f) value = **f;
                   },
                   [&](std::optional<double>* f) {
                     if (*f) value = **f;
                   },
                   [&](auto* f) { value = *f; },
               },
               option->target_);
  }
  return json;
}

std::string OptionTable::Help() const {
  std::string text = fmt::format("{}\n\nUsage: {}", description_, program_);
  for (const auto& option : options_) {
    if (option->positional_) text += " " + option->metavar_;
  }
  text += " [options]\n";
  std::vector<std::string> groups;
  for (const auto& option : options_) {
    if (std::find(groups.begin(), groups.end(), option->group_) == groups.end()) {
      groups.push_back(option->group_);
    }
  }
  for (const std::string& group : groups) {
    text += "\n" + group + ":\n";
    for (const auto& option : options_) {
      if (option->group_ != group) continue;
      std::string head = option->positional_ ? option->metavar_ : option->name_;
      if (!option->positional_) {
        for (const std::string& alias : option->aliases_) head += ", " + alias;
        if (!option->metavar_.empty()) head += " " + option->metavar_;
      }
      std::string help = option->help_;
      if (!option->choices_.empty()) help += fmt::format(" (one of: {})", Join(option->choices_));
      if (option->required_) {
        help += " (required)";
      } else if (const std::string shown = ShowDefault(option->target_);
                 !shown.empty() && !(shown == "false")) {
        help += fmt::format(" (default: {})", shown);
      }
      text += fmt::format("  {}\n", head);
      // Wrap the help text at 78 columns, indented under the option.
      std::string line = "     ";
      size_t pos = 0;
      while (pos < help.size()) {
        size_t end = help.find(' ', pos);
        if (end == std::string::npos) end = help.size();
        const std::string word = help.substr(pos, end - pos);
        if (line.size() + 1 + word.size() > 78) {
          text += line + "\n";
          line = "     ";
        }
        line += " " + word;
        pos = end + 1;
      }
      text += line + "\n";
    }
  }
  text += "  --help, -h\n      show this text\n";
  if (!epilog_.empty()) text += "\n" + epilog_ + "\n";
  return text;
}

}  // namespace tern
