#include "cmd/eval_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"

namespace tern {

OptionTable MakeEvalTable(EvalOptions& o) {
  OptionTable table(
      "tern eval",
      "Perplexity of a text, KL divergence between two formats of a model, accuracy "
      "on chat tasks:\neach figure with a 95 % interval. With --baseline: are the two "
      "runs equivalent?");
  table.Add("--perplexity", &o.text, "FILE", "text to score; needs --model-path").Group("What");
  table
      .Add("--kl-against", &o.kl_against, "DIR|FILE.gguf",
           "another format of the model, on the same text: KL(that one || this one)")
      .Group("What");
  table
      .Add("--tasks", &o.tasks, "FILE.jsonl",
           "chat tasks: messages, tools, and expect or expect_tool")
      .Group("What");
  table.Add("--limit", &o.limit, "N", "only the first N tasks; 0: all").Range(0, 1e9).Group("What");
  table
      .Add("--baseline", &o.baseline, "FILE.json",
           "result of an earlier run, compared item by item and block by block")
      .Group("What");
  table.Add("--json", &o.json, "FILE", "write the result, all items included").Group("Output");
  table.Add("--plot", &o.plot, "FILE.svg", "write a picture").Group("Output");
  table
      .Add("--resume", &o.resume, "",
           "go on with the answers that a broken-off run left beside --json")
      .Group("Output");
  table.Add("--resamples", &o.bootstrap.resamples, "N", "resamples of the bootstrap")
      .Range(1000, 1e7)
      .Group("Output");
  table.Add("--seed", &o.seed, "N", "seed of the bootstrap").Range(0, 9e15).Group("Output");
  table.Add("--window", &o.window, "N", "tokens of a window of the text, BOS included")
      .Range(2, 1 << 24)
      .Group("Text");
  table
      .Add("--bos", &o.bos, "TOKEN",
           "token in front of each window; auto: the one that the chat template puts in front of a "
           "conversation; none")
      .Group("Text");
  table
      .Add("--kl-kv-cache-dtype", &o.kl_kv_cache_dtype, "FORMAT",
           "KV cache of the --kl-against model; default: as --kv-cache-dtype")
      .Group("Text");
  table
      .Add("--kl-activation-dtype", &o.kl_activation_dtype, "FORMAT",
           "activations of the --kl-against model; default: as --activation-dtype")
      .Choices({"auto", "int8"})
      .Group("Text");
  table
      .Add("--kl-precision", &o.kl_precision, "NAME",
           "precision of the --kl-against model; default: as --precision")
      .Choices({"production", "reference"})
      .Group("Text");
  table.Add("--max-new-tokens", &o.max_new_tokens, "N", "most tokens of an answer")
      .Range(1, 1 << 20)
      .Group("Tasks");
  table
      .Add("--calls-in-content", &o.calls_in_content, "FORMAT",
           "how tool calls are written in an answer's text; auto: as the chat template has it, or, "
           "with --url, the one whose marker is there")
      .Choices({"auto", "none", "kimi_k2", "glm45", "glm47"})
      .Group("Tasks");
  table.Add("--url", &o.server.url, "URL", "ask a server instead: http://host:port")
      .Group("Server");
  table.Add("--api-key", &o.server.api_key, "KEY", "key that the server asks for")
      .Secret()
      .Group("Server");
  table.Add("--served-model-name", &o.server.model, "NAME", "model to ask for").Group("Server");
  table.Add("--concurrency", &o.server.concurrency, "N", "requests at a time")
      .Range(1, 1024)
      .Group("Server");
  table.Add("--timeout", &o.timeout_s, "SECONDS", "longest wait for an answer")
      .Range(1, 86400)
      .Group("Server");
  table
      .Add("--tries", &o.server.tries, "N",
           "tries of a request while the server is away or busy (429, 502, 503, 504)")
      .Range(1, 100)
      .Group("Server");
  DeclareModelOptions(table, o.model);
  table
      .Add("--precision", &o.precision, "NAME",
           "production: as served; reference: float32 on dequantized weights")
      .Choices({"production", "reference"})
      .Group("Model");
  DeclareLocalMode(table, o.model.disaggregation);
  table.SetEpilog(
      "Verdicts: equivalent (95 % interval of the paired accuracy difference within +-1.0 point "
      "and "
      "of the\nperplexity ratio within +-0.5 %), not equivalent (an interval lies beyond a "
      "margin), "
      "undecided (it\nreaches beyond one), no verdict. Task kinds on which the baseline is outside "
      "60-98 % don't count.");
  return table;
}

Status CheckEvalUsage(const EvalOptions& o) {
  if (o.text.empty() && o.tasks.empty()) {
    return InvalidArgument("nothing to do: give --perplexity FILE, --tasks FILE or both");
  }
  if (o.server.url.empty() == o.model.model_path.empty()) {
    return InvalidArgument("give one of --model-path and --url");
  }
  if (!o.server.url.empty() && !o.text.empty()) {
    return InvalidArgument("--perplexity needs --model-path: servers give no logits");
  }
  TERN_RETURN_IF_ERROR(CheckDisaggregationOptions(o.model.disaggregation));
  if (o.model.disaggregation.local() &&
      (!o.server.url.empty() || o.precision != "production" || o.model.load_format == "dummy")) {
    return InvalidArgument(
        "--disaggregation-mode local is for models as they are served: no --url, --precision "
        "reference or --load-format dummy");
  }
  if (!o.kl_against.empty() && o.text.empty()) {
    return InvalidArgument("--kl-against needs the text of --perplexity");
  }
  if (o.resume && (o.json.empty() || o.tasks.empty())) {
    return InvalidArgument("--resume needs --tasks and --json, beside which the answers are kept");
  }
  return OkStatus();
}

Status CheckEvalOutputs(const EvalOptions& o) {
  for (const std::string& path : {o.json, o.plot}) {
    if (path.empty()) continue;
    const size_t slash = path.rfind('/');
    const std::string folder =
        slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
    if (IsDirectory(path)) return InvalidArgument(path + " is a folder");
    if (!IsDirectory(folder)) {
      return InvalidArgument(fmt::format("cannot write {}: no folder {}", path, folder));
    }
    if (access(folder.c_str(), W_OK) != 0) {
      return InvalidArgument(fmt::format("cannot write {}: {} is read-only", path, folder));
    }
  }
  return OkStatus();
}

}  // namespace tern
