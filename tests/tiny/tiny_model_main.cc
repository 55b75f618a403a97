// The trained model of tests/data/tiny against transformers' run of it (reference.json, float32):
// greedy token ids of every task item, and perplexity of a text.
// usage: tiny_model_check FOLDER reference|production
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "base/topology.h"
#include "kernels/ops.h"
#include "models/registry.h"
#include "models/single_sequence.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tern {
namespace {

constexpr int64_t kMaxNewTokens = 64, kPageTokens = 64, kWindow = 511;
constexpr double kTieMargin = 0.02, kProductionShare = 0.98, kPerplexityTolerance = 0.002;

struct Run {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;
  bool production = false;
  KvFormat kv() const { return production ? KvFormat::kBf16 : KvFormat::kF32; }
};

Result<Run> Load(const std::string& folder, bool production) {
  Run run;
  run.production = production;
  run.pool = std::make_unique<ThreadPool>(AvailableThreads());
  TERN_ASSIGN_OR_RETURN(run.ops, Ops::Create("", *run.pool));
  LoadOptions options;
  options.precision = production ? Precision::kProduction : Precision::kReference;
  TERN_ASSIGN_OR_RETURN(run.model, LoadModel(folder + "/model", *run.ops, options));
  TERN_ASSIGN_OR_RETURN(const std::string json, ReadFile(folder + "/model/tokenizer.json"));
  TERN_ASSIGN_OR_RETURN(const std::string config,
                        ReadFile(folder + "/model/tokenizer_config.json"));
  TERN_ASSIGN_OR_RETURN(run.tokenizer, Tokenizer::FromTokenizerJson(json, config));
  TERN_ASSIGN_OR_RETURN(std::string source, ReadFile(folder + "/model/chat_template.jinja"));
  TERN_ASSIGN_OR_RETURN(run.chat_template, ChatTemplate::Compile(std::move(source)));
  return run;
}

// Ids up to the stop token, which is left out.
Result<std::vector<int32_t>> Generate(Run& run, const std::vector<int32_t>& prompt) {
  TERN_ASSIGN_OR_RETURN(SingleSequence sequence,
                        SingleSequence::Make(*run.model, run.kv(), kPageTokens,
                                             static_cast<int64_t>(prompt.size()) + kMaxNewTokens));
  const ModelInfo& info = run.model->info();
  std::vector<float> last(static_cast<size_t>(info.vocab_size));
  TERN_RETURN_IF_ERROR(sequence.AppendForLast(prompt, RowForm::kPrefill, last.data()));
  std::vector<int32_t> ids;
  for (int64_t step = 0; step < kMaxNewTokens; ++step) {
    const auto token = static_cast<int32_t>(run.ops->ArgMax(last.data(), info.vocab_size));
    const auto& stops = info.eos_token_ids;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    ids.push_back(token);
    TERN_RETURN_IF_ERROR(sequence.AppendForLast({&token, 1}, RowForm::kDecode, last.data()));
  }
  return ids;
}

struct Counts {
  int64_t items = 0, equal = 0, exempt = 0, unequal = 0;
};

Result<Counts> CheckTasks(Run& run, const std::string& folder, const Json& reference) {
  Counts counts;
  std::ifstream lines(folder + "/tasks_dev.jsonl");
  for (std::string line; std::getline(lines, line);) {
    TERN_ASSIGN_OR_RETURN(const Json item, ParseJson(line));
    Json inputs = Json::object();
    inputs["messages"] = item["messages"];
    if (item.contains("tools")) inputs["tools"] = item["tools"];
    inputs["add_generation_prompt"] = true;
    TERN_ASSIGN_OR_RETURN(const std::string text, run.chat_template->Render(inputs));
    TERN_ASSIGN_OR_RETURN(const auto ids, Generate(run, run.tokenizer->Encode(text)));
    const std::string id = std::to_string(item["id"].get<int64_t>());
    const Json& expected = reference["items"][id];
    ++counts.items;
    if (ids == expected["ids"].get<std::vector<int32_t>>()) {
      ++counts.equal;
    } else if (expected["min_margin"].get<double>() < kTieMargin) {
      ++counts.exempt;
    } else {
      ++counts.unequal;
      fmt::print(stderr, "item {}: other ids, smallest margin {}\n", id,
                 expected["min_margin"].get<double>());
    }
  }
  return counts;
}

// Windows of [BOS] and 511 tokens, all of the latter counted.
Result<double> Perplexity(Run& run, const std::string& path, int64_t* tokens) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const std::vector<TokenId> ids = run.tokenizer->Encode(text);
  const std::vector<TokenId> bos = run.tokenizer->Encode("[BOS]");
  if (bos.size() != 1) return InvalidArgument("[BOS] is no single token");
  const int64_t vocab = run.model->info().vocab_size;
  double negative_log = 0;
  *tokens = 0;
  for (size_t at = 0; at + 1 < ids.size(); at += kWindow) {
    std::vector<int32_t> window = bos;
    const size_t count = std::min<size_t>(kWindow, ids.size() - at);
    window.insert(window.end(), ids.begin() + static_cast<int64_t>(at),
                  ids.begin() + static_cast<int64_t>(at + count));
    TERN_ASSIGN_OR_RETURN(SingleSequence sequence,
                          SingleSequence::Make(*run.model, run.kv(), kPageTokens,
                                               static_cast<int64_t>(window.size())));
    std::vector<float> logits(window.size() * static_cast<size_t>(vocab));
    TERN_RETURN_IF_ERROR(sequence.Append(window, RowForm::kPrefill, logits.data()));
    for (size_t i = 0; i + 1 < window.size(); ++i, ++*tokens) {
      const float* row = logits.data() + static_cast<int64_t>(i) * vocab;
      negative_log += run.ops->LogSumExp(row, vocab) - row[window[i + 1]];
    }
  }
  return std::exp(negative_log / static_cast<double>(*tokens));
}

Result<bool> Check(const std::string& folder, bool production) {
  TERN_ASSIGN_OR_RETURN(Run run, Load(folder, production));
  TERN_ASSIGN_OR_RETURN(const Json reference, ParseJsonFile(folder + "/reference.json"));
  TERN_ASSIGN_OR_RETURN(const Counts counts, CheckTasks(run, folder, reference));
  int64_t tokens = 0;
  TERN_ASSIGN_OR_RETURN(const double perplexity,
                        Perplexity(run, folder + "/perplexity_dev.txt", &tokens));
  const Json& expected = reference["perplexity"];
  const double ratio = perplexity / expected["value"].get<double>();
  fmt::print(
      "{} items: {} equal, {} with a near tie differ, {} differ; perplexity {:.5f} over {} "
      "tokens, {:.5f} of the reference\n",
      counts.items, counts.equal, counts.exempt, counts.unequal, perplexity, tokens, ratio);
  const double share = static_cast<double>(counts.equal) / static_cast<double>(counts.items);
  const bool ids_hold = production ? share >= kProductionShare : counts.unequal == 0;
  return counts.items == static_cast<int64_t>(reference["items"].size()) && ids_hold &&
         tokens == expected["tokens"].get<int64_t>() &&
         std::fabs(ratio - 1) <= kPerplexityTolerance;
}

}  // namespace
}  // namespace tern

int main(int argc, char** argv) {
  const std::string precision = argc == 3 ? argv[2] : "";
  if (precision != "reference" && precision != "production") {
    fmt::print(stderr, "usage: tiny_model_check FOLDER reference|production\n");
    return 2;
  }
  const auto holds = tern::Check(argv[1], precision == "production");
  if (!holds.ok()) {
    fmt::print(stderr, "{}\n", holds.status().message());
    return 1;
  }
  return *holds ? 0 : 1;
}
