#include "quant/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "base/file.h"
#include "base/output_file.h"
#include "quant/input_files.h"
#include "quant/quantize_state.h"
#include "quant/side_files.h"
#include "quant/weight_writer.h"

namespace tern {
namespace {

namespace fs = std::filesystem;

// Of the bytes that a job's options lead to: another number where they have changed.
constexpr int kBytesVersion = 1;

const char* FormatName(QuantFormat format) { return format == QuantFormat::kInt4 ? "int4" : "fp8"; }

std::vector<std::string> Texts(const std::vector<ModulePattern>& patterns) {
  std::vector<std::string> texts;
  for (const ModulePattern& pattern : patterns) texts.push_back(pattern.text());
  return texts;
}

Json JobOf(const QuantizeOptions& options, const QuantizePlan& plan, const InputFiles& files) {
  const QuantSelection& s = options.selection;
  Json job = Json::object();
  job["version"] = kBytesVersion;
  Json& o = job["options"] = Json::object();
  o["format"] = FormatName(s.format);
  o["recipe"] = s.recipe == QuantRecipe::kKimi ? "kimi" : "all-linear";
  o["include"] = Texts(s.include);
  o["exclude"] = Texts(s.exclude);
  if (s.format == QuantFormat::kInt4) {
    o["group"] = s.group;
    o["method"] = options.calibration != nullptr           ? "calibrated"
                  : options.method == ScaleMethod::kSearch ? "search"
                                                           : "rtn";
  }
  o["calibration"] = options.calibration_id;
  o["calibrate_kv"] = !options.kv.empty();
  o["shard_size"] = options.shard_bytes;
  job["input"] = files.fingerprint();
  job["shards"] = plan.shards.size();
  return job;
}

// Numbers of a weight in the state file: exact, so that a report after a resume is the same.
Json ErrorJson(const QuantError& e, const std::string& method) {
  return Json::array({e.error, e.weight, e.largest, e.count, method});
}

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options, const QuantizePlan& plan, const InputFiles& files,
            ThreadPool& pool)
      : options_(options),
        plan_(plan),
        files_(files),
        pool_(pool),
        writer_(files, plan, options.method, options.selection.group),
        scratch_(static_cast<size_t>(pool.threads())) {
    progress_.total_bytes = plan.input_bytes;
  }

  Status Run(QuantizeState& state) {
    TERN_RETURN_IF_ERROR(CheckSpace(state));
    for (const PlannedShard& shard : plan_.shards) {
      if (IsFinished(state, shard)) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < shard.count; ++i) {
          bytes += plan_.weights[shard.first + i].input_bytes;
        }
        progress_.done_bytes += bytes;
        progress_.resumed_bytes += bytes;
        ++resumed_shards_;
        continue;
      }
      TERN_RETURN_IF_ERROR(WriteShard(shard, state));
    }
    return OkStatus();
  }

  int64_t resumed_shards() const { return resumed_shards_; }

 private:
  std::string PathOf(const std::string& file) const { return options_.output + "/" + file; }

  bool IsFinished(const QuantizeState& state, const PlannedShard& shard) const {
    if (!state.finished().contains(shard.file)) return false;
    std::error_code error;
    return fs::file_size(PathOf(shard.file), error) == shard.file_bytes && !error;
  }

  Status CheckSpace(const QuantizeState& state) const {
    uint64_t needed = 0;
    for (const PlannedShard& shard : plan_.shards) {
      if (!IsFinished(state, shard)) needed += shard.file_bytes;
      // What an earlier run left half-written is replaced.
      std::error_code error;
      fs::remove(PathOf(shard.file) + std::string(kPartSuffix), error);
    }
    TERN_ASSIGN_OR_RETURN(const uint64_t free, FreeDiskBytes(options_.output));
    if (needed <= free) return OkStatus();
    constexpr double kMegabyte = 1e6;
    return ResourceExhausted(fmt::format(
        "{}: the disk is full: {:.1f} MB are needed, {:.1f} MB are free", options_.output,
        static_cast<double>(needed) / kMegabyte, static_cast<double>(free) / kMegabyte));
  }

  Status WriteShard(const PlannedShard& shard, QuantizeState& state) {
    TERN_ASSIGN_OR_RETURN(const auto out, OutputFile::Create(PathOf(shard.file), shard.file_bytes));
    TERN_RETURN_IF_ERROR(
        out->Write(0, std::as_bytes(std::span(shard.header.data(), shard.header.size()))));
    errors_.assign(shard.count, {});
    methods_.assign(shard.count, "");
    notes_.clear();
    std::vector<bool> done(shard.count);
    if (options_.calibration != nullptr) {
      TERN_RETURN_IF_ERROR(WriteCalibrated(shard, *out, &done));
    }
    TERN_RETURN_IF_ERROR(WriteRest(shard, *out, done));
    TERN_RETURN_IF_ERROR(out->Sync());
    TERN_RETURN_IF_ERROR(files_.CheckUnchanged());
    Json notes = Json::object();
    notes["errors"] = Json::array();
    for (size_t i = 0; i < shard.count; ++i) {
      if (plan_.weights[shard.first + i].quantized()) {
        notes["errors"].push_back(ErrorJson(errors_[i], methods_[i]));
      }
    }
    notes["notes"] = notes_;
    TERN_RETURN_IF_ERROR(state.Note(shard.file, notes));
    return out->Commit();
  }

  // All blocks of the weights that are not done, on the pool.
  Status WriteRest(const PlannedShard& shard, OutputFile& out, const std::vector<bool>& done) {
    std::vector<WeightBlock> blocks;
    for (size_t i = 0; i < shard.count; ++i) {
      const PlannedWeight& weight = plan_.weights[shard.first + i];
      if (done[i]) continue;
      if (weight.quantized()) {
        methods_[i] = weight.action == PlannedWeight::Action::kFp8 ? "fp8"
                      : options_.method == ScaleMethod::kSearch    ? "search"
                                                                   : "rtn";
      }
      AppendBlocks(weight, shard.first + i, &blocks);
    }
    std::vector<QuantError> errors(blocks.size());
    std::atomic<bool> failed{false};
    pool_.ParallelFor(static_cast<int64_t>(blocks.size()), [&](int64_t chunk, int worker) {
      if (failed.load(std::memory_order_relaxed)) return;
      const WeightBlock& block = blocks[static_cast<size_t>(chunk)];
      const Status status = writer_.Write(block, out, scratch_[static_cast<size_t>(worker)],
                                          &errors[static_cast<size_t>(chunk)]);
      if (!status.ok()) {
        const std::lock_guard lock(mutex_);
        if (!failed.exchange(true)) failure_ = status;
        return;
      }
      CountDone(block);
    });
    if (failed) return failure_;
    // In the order of the blocks, whoever did them.
    for (size_t b = 0; b < blocks.size(); ++b) {
      errors_[blocks[b].weight - shard.first].Add(errors[b]);
    }
    return OkStatus();
  }

  Status WriteCalibrated(const PlannedShard& shard, OutputFile& out, std::vector<bool>* done) {
    std::map<std::string, size_t> weights;
    std::vector<TensorSpec> specs;
    for (size_t i = 0; i < shard.count; ++i) {
      const PlannedWeight& weight = plan_.weights[shard.first + i];
      if (weight.action == PlannedWeight::Action::kInt4) weights[weight.name] = shard.first + i;
    }
    for (const TensorSpec& spec : plan_.specs) {
      if (weights.contains(spec.name)) specs.push_back(spec);
    }
    for (const auto& wave : Calibration::Waves(specs, options_.calibration_bytes)) {
      TERN_ASSIGN_OR_RETURN(const auto calibrated, options_.calibration->Collect(wave));
      for (const std::string& name : wave) {
        const size_t index = weights.at(name);
        const auto found = calibrated.find(name);
        if (found == calibrated.end() || found->second.solver == nullptr) {
          notes_.push_back(fmt::format(
              "{} is quantized by search: {}", name,
              found == calibrated.end() ? "calibration left it out" : found->second.why_not));
          continue;
        }
        const WeightBlock block = {index, 0, plan_.weights[index].source.rows()};
        TERN_RETURN_IF_ERROR(writer_.WriteCalibrated(block, *found->second.solver, *options_.ops,
                                                     out, scratch_[0],
                                                     &errors_[index - shard.first]));
        methods_[index - shard.first] = "calibrated";
        (*done)[index - shard.first] = true;
        CountDone(block);
      }
    }
    return OkStatus();
  }

  void CountDone(const WeightBlock& block) {
    const PlannedWeight& weight = plan_.weights[block.weight];
    uint64_t bytes = 0;
    if (weight.action == PlannedWeight::Action::kCopy) {
      bytes = static_cast<uint64_t>(block.count);
    } else if (weight.action != PlannedWeight::Action::kConstant) {
      bytes = weight.input_bytes * static_cast<uint64_t>(block.count) /
              static_cast<uint64_t>(weight.source.rows());
    }
    const std::lock_guard lock(mutex_);
    progress_.done_bytes += bytes;
    if (options_.progress) options_.progress(progress_);
  }

  const QuantizeOptions& options_;
  const QuantizePlan& plan_;
  const InputFiles& files_;
  ThreadPool& pool_;
  const WeightWriter writer_;
  std::vector<BlockScratch> scratch_;  // one a worker
  // Of the current shard, by weight.
  std::vector<QuantError> errors_;
  std::vector<std::string> methods_, notes_;
  std::mutex mutex_;
  QuantizeProgress progress_;  // under mutex_ while workers run
  Status failure_;             // under mutex_
  int64_t resumed_shards_ = 0;
};

Result<QuantizeReport> ReportOf(const QuantizePlan& plan, const QuantizeState& state,
                                const Json& job) {
  QuantizeReport report;
  report.unknown = plan.unknown;
  report.input_bytes = plan.input_bytes;
  report.output_bytes = plan.output_bytes;
  report.shards = static_cast<int64_t>(plan.shards.size());
  report.job = job;
  for (const PlannedShard& shard : plan.shards) {
    const Json& notes = state.finished().at(shard.file);
    const Json* errors = JsonMember(notes, "errors");
    size_t next = 0;
    for (size_t i = 0; i < shard.count; ++i) {
      const PlannedWeight& weight = plan.weights[shard.first + i];
      report.tensors += static_cast<int64_t>(weight.outputs.size());
      if (!weight.quantized()) continue;
      const bool fits = errors != nullptr && errors->is_array() && next < errors->size() &&
                        (*errors)[next].is_array() && (*errors)[next].size() == 5;
      if (!fits) {
        return DataLoss(
            fmt::format("{}: the notes of {} do not fit", kQuantizeStateFile, shard.file));
      }
      const Json& e = (*errors)[next++];
      report.weights.push_back(
          {weight.name,
           weight.kind,
           weight.layer,
           e[4].get<std::string>(),
           {e[0].get<double>(), e[1].get<double>(), e[2].get<float>(), e[3].get<int64_t>()}});
    }
    if (const Json* said = JsonMember(notes, "notes")) {
      for (const Json& note : *said) report.notes.push_back(note.get<std::string>());
    }
  }
  return report;
}

// config.json of the result.
Json OutputConfig(const Json& input, const QuantizePlan& plan, const QuantizeOptions& options,
                  const std::string& prefix) {
  Json config = input;
  const Json quantization =
      QuantizationConfigJson(options.selection, plan.specs, prefix, !options.kv.empty());
  const auto apply = [&](Json& object) {
    object.erase("quantization_config");
    object["quantization_config"] = quantization;
    if (plan.unties_head) object["tie_word_embeddings"] = false;
  };
  // A wrapper's, and its language model's, as published.
  if (config.contains("text_config") && config["text_config"].is_object()) {
    apply(config["text_config"]);
  }
  apply(config);
  return config;
}

// Whether the folder is what the job makes, from the report that says so.
bool IsComplete(const std::string& folder, const Json& job) {
  if (FileExists(folder + "/" + kQuantizeStateFile) || !FileExists(folder + "/config.json") ||
      !FileExists(folder + "/" + kQuantizeReportFile)) {
    return false;
  }
  const Result<Json> report = ParseJsonFile(folder + "/" + kQuantizeReportFile);
  const Json* made = report.ok() ? JsonMember(*report, "job") : nullptr;
  return made != nullptr && *made == job;
}

Status CheckPlaces(const Checkpoint& checkpoint, const std::string& output) {
  std::error_code error;
  const fs::path input = fs::weakly_canonical(checkpoint.path(), error);
  const fs::path folder = fs::is_directory(input, error) ? input : input.parent_path();
  const fs::path target = fs::weakly_canonical(output, error);
  const auto inside = [](const fs::path& inner, const fs::path& outer) {
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
           outer.end();
  };
  if (target != folder && !(inside(target, folder) && fs::is_directory(input, error))) {
    return OkStatus();
  }
  return InvalidArgument(fmt::format("--output {} is {}the input's folder {}: name another one",
                                     output, target == folder ? "" : "inside ", folder.string()));
}

}  // namespace

Result<QuantizeReport> Quantize(const Checkpoint& checkpoint, const Json& config,
                                std::vector<TensorSpec> specs, const QuantizeOptions& options,
                                ThreadPool& pool) {
  TERN_RETURN_IF_ERROR(CheckPlaces(checkpoint, options.output));
  TERN_ASSIGN_OR_RETURN(const QuantizePlan plan,
                        MakeQuantizePlan(checkpoint, std::move(specs), options.selection,
                                         options.kv, options.shard_bytes));
  TERN_ASSIGN_OR_RETURN(const InputFiles files, InputFiles::Open(checkpoint));
  std::vector<std::string> side_files;
  if (!options.side_folder.empty()) {
    TERN_ASSIGN_OR_RETURN(side_files, ListSideFiles(options.side_folder));
  }
  const Json job = JobOf(options, plan, files);
  if (IsComplete(options.output, job)) {
    QuantizeReport report;
    report.already_complete = true;
    return report;
  }
  TERN_ASSIGN_OR_RETURN(const auto state, QuantizeState::Open(options.output, job));
  Quantizer quantizer(options, plan, files, pool);
  TERN_RETURN_IF_ERROR(quantizer.Run(*state));

  const std::string folder = options.output + "/";
  if (plan.shards.size() > 1) {
    std::vector<std::pair<std::string, std::string>> weight_map;
    for (const PlannedShard& shard : plan.shards) {
      for (size_t i = 0; i < shard.count; ++i) {
        for (const SafetensorsEntry& entry : plan.weights[shard.first + i].outputs) {
          weight_map.emplace_back(entry.name, shard.file);
        }
      }
    }
    TERN_RETURN_IF_ERROR(
        WriteFileAtomically(folder + "model.safetensors.index.json",
                            SafetensorsIndexJson(std::move(weight_map), plan.output_bytes)));
  }
  TERN_RETURN_IF_ERROR(CopySideFiles(options.side_folder, side_files, options.output));
  for (const auto& [name, text] : options.texts) {
    TERN_RETURN_IF_ERROR(WriteFileAtomically(folder + name, text));
  }
  TERN_ASSIGN_OR_RETURN(QuantizeReport report, ReportOf(plan, *state, job));
  report.resumed_shards = quantizer.resumed_shards();
  if (options.report) TERN_RETURN_IF_ERROR(options.report(report));
  const Json output = OutputConfig(config, plan, options, checkpoint.config().tensor_prefix);
  TERN_RETURN_IF_ERROR(WriteFileAtomically(folder + "config.json", DumpJson(output, 2) + "\n"));
  TERN_RETURN_IF_ERROR(state->Remove());
  return report;
}

}  // namespace tern
