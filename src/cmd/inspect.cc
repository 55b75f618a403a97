// tern inspect: what is in a checkpoint, or what a bare config asks for.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "cmd/commands.h"
#include "kv/page_format.h"
#include "models/registry.h"

namespace tern {
namespace {

// One tensor, from the file or from the architecture's list.
struct Entry {
  std::string kind;
  std::string format;  // "BF16"
  int64_t elements = 0;
  uint64_t bytes = 0;
  uint64_t bytes_per_rank = 0;
};

struct Totals {
  int64_t count = 0, elements = 0;
  uint64_t bytes = 0, bytes_per_rank = 0;

  void Add(const Entry& entry) {
    ++count;
    elements += entry.elements;
    bytes += entry.bytes;
    bytes_per_rank += entry.bytes_per_rank;
  }
};

struct Inventory {
  std::string path, format;  // "safetensors", "gguf", "config"
  ModelConfig config;
  std::vector<int32_t> eos_token_ids;
  std::vector<Entry> entries;
};

// Bytes of the rank that holds most: ceil(units / tp) of the tensor's indivisible parts. Ranks
// beyond the number of parts (key-value heads) hold copies.
uint64_t BytesPerRank(const TensorSpec& spec, uint64_t bytes, int64_t tp) {
  if (spec.split == TensorSplit::kReplicated) return bytes;
  const int64_t units = (spec.split_units + tp - 1) / tp;
  return bytes / static_cast<uint64_t>(spec.split_units) * static_cast<uint64_t>(units);
}

DType DTypeOfConfig(const ModelConfig& config) {
  if (config.torch_dtype == "float32") return DType::kF32;
  if (config.torch_dtype == "float16") return DType::kF16;
  return DType::kBF16;
}

Status CheckRanks(const ModelConfig& config, int64_t tp) {
  if (config.num_attention_heads % tp == 0) return OkStatus();
  return InvalidArgument(fmt::format("--tp {}: {} attention heads of {} cannot be split evenly", tp,
                                     config.num_attention_heads, config.source));
}

Result<Inventory> InventoryOfConfig(const std::string& path, int64_t tp) {
  Inventory inventory{.path = path, .format = "config"};
  TERN_ASSIGN_OR_RETURN(inventory.config, LoadModelConfig(path));
  inventory.eos_token_ids = inventory.config.eos_token_ids;
  TERN_ASSIGN_OR_RETURN(const auto specs, TensorList(inventory.config));
  TERN_RETURN_IF_ERROR(CheckRanks(inventory.config, tp));
  const DType dtype = DTypeOfConfig(inventory.config);
  for (const TensorSpec& spec : specs) {
    const auto elements = spec.shape.elements();
    const auto bytes =
        elements ? StorageBytes(dtype, static_cast<uint64_t>(*elements)) : std::nullopt;
    if (!bytes) {
      return InvalidArgument(fmt::format("{}: the size of {} overflows", path, spec.name));
    }
    inventory.entries.push_back({std::string(TensorKindName(spec.kind)),
                                 std::string(InfoOf(dtype).name), *elements, *bytes,
                                 BytesPerRank(spec, *bytes, tp)});
  }
  return inventory;
}

Result<Inventory> InventoryOfCheckpoint(const std::string& path, int64_t tp) {
  TERN_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(path));
  Inventory inventory{
      .path = path,
      .format = checkpoint->format() == CheckpointFormat::kGguf ? "gguf" : "safetensors",
      .config = checkpoint->config(),
      .eos_token_ids = checkpoint->eos_token_ids()};
  // Tensors of an architecture that tern does not know are counted as "other".
  std::map<std::string, TensorSpec> specs;
  if (const auto list = TensorList(inventory.config); list.ok()) {
    for (const TensorSpec& spec : *list) specs.emplace(spec.name, spec);
    TERN_RETURN_IF_ERROR(CheckRanks(inventory.config, tp));
  } else if (tp > 1) {
    return list.status();
  }
  for (const CheckpointTensor& tensor : checkpoint->tensors()) {
    Entry entry{.kind = "other",
                .format = std::string(InfoOf(tensor.view.dtype).name),
                .elements = tensor.view.shape.elements().value_or(0),
                .bytes = tensor.view.bytes.size(),
                .bytes_per_rank = tensor.view.bytes.size()};
    if (const auto spec = specs.find(tensor.name); spec != specs.end()) {
      entry.kind = TensorKindName(spec->second.kind);
      entry.bytes_per_rank = BytesPerRank(spec->second, entry.bytes, tp);
    }
    inventory.entries.push_back(std::move(entry));
  }
  return inventory;
}

Json ConfigJson(const Inventory& inventory) {
  const ModelConfig& c = inventory.config;
  Json json = Json::object();
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.intermediate_size;
  json["num_hidden_layers"] = c.num_hidden_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_key_value_heads;
  json["head_dim"] = c.head_dim.value_or(c.hidden_size / c.num_attention_heads);
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["rope_type"] = c.rope.type;
  json["rope_theta"] = c.rope.theta;
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  json["eos_token_ids"] = inventory.eos_token_ids;
  return json;
}

Json TotalsJson(const Totals& totals) {
  Json json = Json::object();
  json["count"] = totals.count;
  json["elements"] = totals.elements;
  json["bytes"] = totals.bytes;
  json["bytes_per_rank"] = totals.bytes_per_rank;
  return json;
}

// Sums by kind and format, largest first, and over all.
struct Summary {
  struct Row {
    std::string kind, format;
    Totals totals;
  };
  std::vector<Row> rows;
  Totals all;
};

Summary Summarize(const Inventory& inventory) {
  std::map<std::pair<std::string, std::string>, Totals> groups;
  Summary summary;
  for (const Entry& entry : inventory.entries) {
    groups[{entry.kind, entry.format}].Add(entry);
    summary.all.Add(entry);
  }
  for (const auto& [key, totals] : groups) {
    summary.rows.push_back({key.first, key.second, totals});
  }
  std::stable_sort(summary.rows.begin(), summary.rows.end(),
                   [](const auto& a, const auto& b) { return a.totals.bytes > b.totals.bytes; });
  return summary;
}

void PrintJson(const Inventory& inventory, const Summary& summary, int64_t tp) {
  Json json = Json::object();
  json["path"] = inventory.path;
  json["format"] = inventory.format;
  json["architecture"] = inventory.config.architecture;
  json["model_type"] = inventory.config.model_type;
  json["config"] = ConfigJson(inventory);
  json["tp"] = tp;
  json["tensors"] = Json::array();
  for (const Summary::Row& row : summary.rows) {
    Json item = Json::object();
    item["kind"] = row.kind;
    item["format"] = row.format;
    item.update(TotalsJson(row.totals));
    json["tensors"].push_back(std::move(item));
  }
  json["total"] = TotalsJson(summary.all);
  fmt::print("{}\n", DumpJson(json, 2));
}

void PrintTable(const Inventory& inventory, const Summary& summary, int64_t tp) {
  fmt::print("{}: {} ({}), {}\n\n", inventory.path, inventory.config.architecture,
             inventory.config.model_type, inventory.format);
  const Json config = ConfigJson(inventory);
  for (const auto& [key, value] : config.items()) {
    fmt::print("  {:<24} {}\n", key,
               value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
  fmt::print("\n  {:<12} {:<8} {:>8} {:>16} {:>18}", "kind", "format", "tensors", "elements",
             "bytes");
  if (tp > 1) fmt::print(" {:>18}", fmt::format("bytes/rank, tp {}", tp));
  fmt::print("\n");
  const auto line = [&](const std::string& kind, const std::string& format, const Totals& t) {
    fmt::print("  {:<12} {:<8} {:>8} {:>16} {:>18}", kind, format, t.count, t.elements, t.bytes);
    if (tp > 1) fmt::print(" {:>18}", t.bytes_per_rank);
    fmt::print("\n");
  };
  for (const Summary::Row& row : summary.rows) line(row.kind, row.format, row.totals);
  line("total", "", summary.all);
}

}  // namespace

int InspectCommand(const std::vector<std::string>& args) {
  std::string path;
  int64_t tp = 1;
  bool as_json = false;
  OptionTable table("tern inspect",
                    "What is in a checkpoint, or what a bare config.json asks for: tensors by kind "
                    "and format, their bytes, and the bytes of one rank.");
  table.Add("--path", &path, "DIR|FILE", "checkpoint folder, .gguf, .safetensors or config.json")
      .Positional()
      .Required();
  table.Add("--tp", &tp, "N", "ranks of tensor parallelism to count bytes for").Range(1, 4096);
  table.Add("--json", &as_json, "", "print one JSON object");
  const Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) {
    fmt::print(stderr, "tern inspect: {}\n", outcome.status().message());
    return 2;
  }
  if (*outcome == ParseOutcome::kHelpShown) return 0;

  // A folder with a config and no weights is a bare config as well.
  std::string config = path;
  if (IsDirectory(path) && !FileExists(path + "/model.safetensors") &&
      !FileExists(path + "/model.safetensors.index.json")) {
    config = path + "/config.json";
  }
  const Result<Inventory> inventory =
      config.ends_with(".json") ? InventoryOfConfig(config, tp) : InventoryOfCheckpoint(path, tp);
  if (!inventory.ok()) {
    fmt::print(stderr, "tern inspect: {}\n", inventory.status().message());
    return 1;
  }
  const Summary summary = Summarize(*inventory);
  if (as_json) {
    PrintJson(*inventory, summary, tp);
  } else {
    PrintTable(*inventory, summary, tp);
  }
  return 0;
}

}  // namespace tern
