// Quantize: a checkpoint in, a quantized checkpoint out, as a stream of row blocks: resident memory
// does not grow with the checkpoint. Files appear under their names when they are whole; a run that
// was killed goes on from its finished files, with the same bytes in the end (docs/formats/
// quantized.md). config.json comes last: a folder that has one is complete.
// Thread: call from one; blocks run on the pool, in the order of any threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "quant/calibration.h"
#include "quant/int4.h"
#include "quant/quant_error.h"
#include "quant/quantize_plan.h"

namespace tern {

struct QuantizeProgress {
  uint64_t done_bytes = 0, total_bytes = 0;  // of the input
  uint64_t resumed_bytes = 0;                // of done_bytes: by an earlier run
};

// One quantized weight, for the report.
struct QuantizedWeight {
  std::string name, kind;
  int64_t layer = -1;
  std::string method;  // "rtn", "search", "calibrated", "fp8"
  QuantError error;
};

struct QuantizeReport {
  std::vector<QuantizedWeight> weights;
  std::vector<std::string> unknown;  // tensors carried along that the architecture doesn't ask for
  std::vector<std::string> notes;    // sentences: what was not calibrated, and why
  uint64_t input_bytes = 0, output_bytes = 0;  // of tensors
  int64_t tensors = 0, shards = 0, resumed_shards = 0;
  bool already_complete = false;  // an earlier run has finished this very job: nothing was done
  Json job;                       // options and input
};

struct QuantizeOptions {
  std::string output;  // a folder: new, empty, or of an unfinished run
  QuantSelection selection;
  ScaleMethod method = ScaleMethod::kSearch;
  std::vector<KvScales> kv;  // per layer, or empty
  uint64_t shard_bytes = uint64_t{5} * 1000 * 1000 * 1000;
  // INT4 by calibration, where it is given; `method` for weights that saw too few inputs.
  Calibration* calibration = nullptr;
  Ops* ops = nullptr;              // with `calibration`
  uint64_t calibration_bytes = 0;  // memory for what calibration collects at a time
  std::string calibration_id;      // says which text, so that resuming is with the same
  // Files beside the weights: (name, text), such as what a GGUF file's metadata becomes.
  std::vector<std::pair<std::string, std::string>> texts;
  std::string side_folder;  // whose side files are copied; empty: none
  // From workers, one at a time.
  std::function<void(const QuantizeProgress&)> progress;
  // After all tensors, before config.json: writes reports.
  std::function<Status(const QuantizeReport&)> report;
};

// `specs`: the architecture's tensors; `config`: the input's config.json (or what takes its place),
// which gets the new quantization_config.
// Errors, one sentence naming file, tensor or folder: those of MakeQuantizePlan and
// QuantizeState::Open; kInvalidArgument: a weight that is NaN or infinite; kDataLoss,
// kFailedPrecondition: the input changed; kResourceExhausted: the disk is full, or has less space
// than is needed.
Result<QuantizeReport> Quantize(const Checkpoint& checkpoint, const Json& config,
                                std::vector<TensorSpec> specs, const QuantizeOptions& options,
                                ThreadPool& pool);

// Where options.report writes its JSON, with QuantizeReport::job under "job".
inline constexpr const char* kQuantizeReportFile = "quantize_report.json";

}  // namespace tern
