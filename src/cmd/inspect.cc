// tern inspect: what is in a checkpoint, or what a bare config asks for.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/file.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "cmd/commands.h"
#include "kv/page_format.h"
#include "models/registry.h"
#include "models/weight_recipe.h"

namespace tern {
namespace {

// One weight (or one tensor that is none), from the file or from the architecture's list.
struct Entry {
  std::string kind;
  std::string format;  // "BF16", "INT4 g32"
  int64_t count = 1;   // tensors
  int64_t parameters = 0;
  uint64_t bytes = 0;
  bool replicated = false;  // tensor parallelism leaves it whole on every rank
  bool next_token = false;
};

struct Totals {
  int64_t count = 0, parameters = 0;
  uint64_t bytes = 0;

  void Add(const Entry& entry) {
    count += entry.count;
    parameters += entry.parameters;
    bytes += entry.bytes;
  }
};

struct Inventory {
  std::string path, format;  // "safetensors", "gguf", "config"
  ModelConfig config;
  std::vector<int32_t> eos_token_ids;
  std::vector<Entry> entries;
};

// A tensor in more equal parts than it can be cut into is copied as well: key-value heads.
bool IsReplicated(const TensorSpec& spec, int64_t tp) {
  return spec.split == TensorSplit::kReplicated || spec.split_units < tp;
}

Status CheckRanks(const ModelConfig& config, int64_t tp) {
  if (config.num_attention_heads % tp == 0) return OkStatus();
  return InvalidArgument(fmt::format("--tp {}: {} attention heads of {} cannot be split evenly", tp,
                                     config.num_attention_heads, config.source));
}

Result<Inventory> InventoryOfConfig(const std::string& path, int64_t tp, WeightRecipe recipe) {
  Inventory inventory{.path = path, .format = "config"};
  TERN_ASSIGN_OR_RETURN(inventory.config, LoadModelConfig(path));
  inventory.eos_token_ids = inventory.config.eos_token_ids;
  TERN_ASSIGN_OR_RETURN(const auto specs, TensorList(inventory.config));
  TERN_RETURN_IF_ERROR(CheckRanks(inventory.config, tp));
  for (const TensorSpec& spec : specs) {
    TERN_ASSIGN_OR_RETURN(const RecipeWeight weight, StoredAs(spec, inventory.config, recipe));
    inventory.entries.push_back({.kind = std::string(TensorKindName(spec.kind)),
                                 .format = weight.format,
                                 .count = static_cast<int64_t>(weight.tensors.size()),
                                 .parameters = spec.shape.elements().value_or(0),
                                 .bytes = weight.bytes,
                                 .replicated = IsReplicated(spec, tp),
                                 .next_token = spec.next_token});
  }
  return inventory;
}

// The name of a stored weight's format, told by the tensors that it consists of.
std::string FormatOf(const Checkpoint& checkpoint, const std::string& weight,
                     const CheckpointTensor& tensor) {
  const QuantizationConfig& config = checkpoint.config().quantization;
  if (const CheckpointTensor* packed = checkpoint.Find(weight + "_packed")) {
    const CheckpointTensor* scales = checkpoint.Find(weight + "_scale");
    const bool known = scales != nullptr && scales->view.shape.rank() == 2 &&
                       packed->view.shape.rank() == 2 && scales->view.shape[1] > 0;
    return known ? fmt::format("INT4 g{}", packed->view.shape[1] * 8 / scales->view.shape[1])
                 : "INT4";
  }
  if (checkpoint.Find(weight + "_scale_inv") != nullptr) {
    return fmt::format("FP8 {}x{}", config.block_rows, config.block_columns);
  }
  return std::string(InfoOf(tensor.view.dtype).name);
}

// Scales and shapes hold no parameters; a packed word holds eight.
int64_t ParametersOf(const CheckpointTensor& tensor, const std::string& weight) {
  const int64_t elements = tensor.view.shape.elements().value_or(0);
  if (tensor.name == weight) return elements;
  return tensor.name == weight + "_packed" ? elements * 8 : 0;
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
    const std::string weight = WeightOf(tensor.name);
    Entry entry{.kind = "other",
                .format = FormatOf(*checkpoint, weight, tensor),
                .parameters = ParametersOf(tensor, weight),
                .bytes = tensor.view.bytes.size(),
                .replicated = true};
    if (const auto spec = specs.find(weight); spec != specs.end()) {
      entry.kind = TensorKindName(spec->second.kind);
      entry.replicated = IsReplicated(spec->second, tp);
      entry.next_token = spec->second.next_token;
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
  if (!c.mla) json["head_dim"] = c.head_dim.value_or(c.hidden_size / c.num_attention_heads);
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["rms_norm_eps"] = c.rms_norm_eps;
  if (c.mla) {
    json["q_lora_rank"] = c.mla->q_lora_rank ? Json(*c.mla->q_lora_rank) : Json();
    json["kv_lora_rank"] = c.mla->kv_lora_rank;
    json["qk_nope_head_dim"] = c.mla->qk_nope_head_dim;
    json["qk_rope_head_dim"] = c.mla->qk_rope_head_dim;
    json["v_head_dim"] = c.mla->v_head_dim;
  }
  if (c.moe) {
    json["n_routed_experts"] = c.moe->n_routed_experts;
    json["num_experts_per_tok"] = c.moe->num_experts_per_tok;
    json["n_shared_experts"] = c.moe->n_shared_experts;
    json["moe_intermediate_size"] = c.moe->moe_intermediate_size;
  }
  if (c.dsa) {
    const auto& full = c.dsa->full_layers;
    json["index_topk"] = c.dsa->index_topk;
    json["index_full_layers"] = std::count(full.begin(), full.end(), true);
  }
  json["num_nextn_predict_layers"] = c.num_nextn_predict_layers;
  json["quantization"] = QuantizationMethodName(c.quantization.method);
  json["rope_type"] = c.rope.type;
  json["rope_theta"] = c.rope.theta;
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  json["eos_token_ids"] = inventory.eos_token_ids;
  return json;
}

// Sums by kind and format, largest first, and over all.
struct Summary {
  struct Row {
    std::string kind, format;
    Totals totals;
  };
  std::vector<Row> rows;
  Totals all, replicated, next_token;
};

Summary Summarize(const Inventory& inventory) {
  std::map<std::pair<std::string, std::string>, Totals> groups;
  Summary summary;
  for (const Entry& entry : inventory.entries) {
    groups[{entry.kind, entry.format}].Add(entry);
    summary.all.Add(entry);
    if (entry.replicated) summary.replicated.Add(entry);
    if (entry.next_token) summary.next_token.Add(entry);
  }
  for (const auto& [key, totals] : groups) {
    summary.rows.push_back({key.first, key.second, totals});
  }
  std::stable_sort(summary.rows.begin(), summary.rows.end(),
                   [](const auto& a, const auto& b) { return a.totals.bytes > b.totals.bytes; });
  return summary;
}

// Bytes of an even share, as checkpoints are divided by ranks in published figures.
uint64_t PerRank(uint64_t bytes, int64_t tp) {
  const auto ranks = static_cast<uint64_t>(tp);
  return bytes / ranks + (bytes % ranks != 0);
}

Json TotalsJson(const Totals& totals, int64_t tp) {
  Json json = Json::object();
  json["count"] = totals.count;
  json["parameters"] = totals.parameters;
  json["bytes"] = totals.bytes;
  json["gib"] = Gib(totals.bytes);
  json["bytes_per_rank"] = PerRank(totals.bytes, tp);
  return json;
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
    item.update(TotalsJson(row.totals, tp));
    json["tensors"].push_back(std::move(item));
  }
  json["total"] = TotalsJson(summary.all, tp);
  json["replicated_bytes"] = summary.replicated.bytes;
  json["next_token"] = TotalsJson(summary.next_token, tp);
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
  fmt::print("\n  {:<14} {:<12} {:>8} {:>16} {:>18} {:>10}", "kind", "format", "tensors",
             "parameters", "bytes", "GiB");
  if (tp > 1) fmt::print(" {:>18}", fmt::format("bytes/rank, tp {}", tp));
  fmt::print("\n");
  const auto line = [&](const std::string& kind, const std::string& format, const Totals& t) {
    fmt::print("  {:<14} {:<12} {:>8} {:>16} {:>18} {:>10.2f}", kind, format, t.count, t.parameters,
               t.bytes, Gib(t.bytes));
    if (tp > 1) fmt::print(" {:>18}", PerRank(t.bytes, tp));
    fmt::print("\n");
  };
  for (const Summary::Row& row : summary.rows) line(row.kind, row.format, row.totals);
  line("total", "", summary.all);
  if (summary.next_token.count > 0) line("of next-token layers", "", summary.next_token);
  if (tp > 1) {
    fmt::print(
        "\n  {} bytes ({:.2f} GiB) are not split by tensor parallelism: each rank would "
        "hold them whole.\n",
        summary.replicated.bytes, Gib(summary.replicated.bytes));
  }
}

}  // namespace

int InspectCommand(const std::vector<std::string>& args) {
  std::string path;
  int64_t tp = 1;
  bool as_json = false;
  std::string recipe_name;
  OptionTable table("tern inspect",
                    "What is in a checkpoint, or what a bare config.json asks for: tensors by kind "
                    "and format, their bytes, and the bytes of one rank.");
  table.Add("--path", &path, "DIR|FILE", "checkpoint folder, .gguf, .safetensors or config.json")
      .Positional()
      .Required();
  table.Add("--tp", &tp, "N", "ranks of tensor parallelism to count bytes for").Range(1, 4096);
  table
      .Add("--recipe", &recipe_name, "NAME",
           "count the tensors of the config, stored so: bf16, fp8 (128x128 blocks), kimi or int4 "
           "(routed experts in INT4 groups of 32), config (what its quantization_config says); "
           "default: the files, and config where there are none")
      .Choices({"config", "bf16", "fp8", "int4", "kimi", "fp8-linear", "int4-linear"});
  table.Add("--json", &as_json, "", "print one JSON object");
  const Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) {
    fmt::print(stderr, "tern inspect: {}\n", outcome.status().message());
    return 2;
  }
  if (*outcome == ParseOutcome::kHelpShown) return 0;

  // A folder with a config and no weights is a bare config as well.
  std::string config = path;
  if (IsDirectory(path) &&
      (!recipe_name.empty() || (!FileExists(path + "/model.safetensors") &&
                                !FileExists(path + "/model.safetensors.index.json")))) {
    config = path + "/config.json";
  }
  if (!recipe_name.empty() && !config.ends_with(".json")) {
    fmt::print(stderr, "tern inspect: --recipe needs a folder or a config.json, {} is neither\n",
               path);
    return 2;
  }
  const WeightRecipe recipe =
      recipe_name.empty() ? WeightRecipe::kConfig : *WeightRecipeNamed(recipe_name);
  const Result<Inventory> inventory = config.ends_with(".json")
                                          ? InventoryOfConfig(config, tp, recipe)
                                          : InventoryOfCheckpoint(path, tp);
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
