// EvalOptions: the options of `tern eval`. Owner: the command. Thread: the command's.
#pragma once

#include <cstdint>
#include <string>

#include "base/args.h"
#include "cmd/serving.h"
#include "eval/bootstrap.h"
#include "eval/url_answers.h"

namespace tern {

struct EvalOptions {
  ModelOptions model;
  std::string precision = "production";
  std::string text;
  int64_t window = 512;
  std::string bos = "auto";
  std::string kl_against, kl_kv_cache_dtype, kl_activation_dtype, kl_precision;
  std::string tasks;
  int64_t limit = 0, max_new_tokens = 64;
  std::string calls_in_content = "auto";
  UrlAnswersOptions server;
  int64_t timeout_s = 600;
  std::string baseline, json, plot;
  bool resume = false;
  BootstrapOptions bootstrap;
  int64_t seed = 1;
};

// `options` outlives the table.
OptionTable MakeEvalTable(EvalOptions& options);
// Options that contradict each other or lack another one: wrong usage.
Status CheckEvalUsage(const EvalOptions& options);
// A long run is not lost to a misspelled folder: its outputs can be written, as far as can be told.
Status CheckEvalOutputs(const EvalOptions& options);

}  // namespace tern
