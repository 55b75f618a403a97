#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint/name_map.h"
#include "checkpoint/safetensors.h"

namespace tern {
namespace {

constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;

bool HasGgufMagic(const MappedFile& file) {
  return file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
}

// The name without the prefix that a multimodal checkpoint puts before it.
std::string LanguageModelName(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace

const std::string& CheckpointTensor::path() const {
  static const std::string kMadeUp = "dummy weights";
  return file == nullptr ? kMadeUp : file->path();
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = path;
  if (IsDirectory(path)) {
    TERN_RETURN_IF_ERROR(checkpoint->OpenFolder(path));
  } else {
    TERN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
    if (HasGgufMagic(*file) || path.ends_with(".gguf")) {
      TERN_RETURN_IF_ERROR(checkpoint->OpenGguf(std::move(file)));
    } else {
      TERN_RETURN_IF_ERROR(checkpoint->OpenConfigs(FolderOf(path)));
      TERN_RETURN_IF_ERROR(checkpoint->AddShard(std::move(file)));
    }
  }
  TERN_RETURN_IF_ERROR(checkpoint->IndexTensors());
  return checkpoint;
}

Status Checkpoint::OpenFolder(const std::string& folder) {
  TERN_RETURN_IF_ERROR(OpenConfigs(folder));
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  if (FileExists(single)) {
    TERN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(single));
    return AddShard(std::move(file));
  }
  if (!FileExists(index)) {
    return NotFound(
        fmt::format("{} has neither model.safetensors nor model.safetensors.index.json", folder));
  }
  TERN_ASSIGN_OR_RETURN(const std::string json, ReadFile(index, kMaxIndexBytes));
  TERN_ASSIGN_OR_RETURN(const auto weight_map, ParseSafetensorsIndex(json, index));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) shards.insert(shard);
  std::map<std::string_view, const MappedFile*> file_of_shard;
  for (const std::string& shard : shards) {
    Result<std::shared_ptr<const MappedFile>> file = MappedFile::Open(folder + "/" + shard);
    if (!file.ok()) return file.status().WithContext(index);
    file_of_shard[shard] = file->get();
    TERN_RETURN_IF_ERROR(AddShard(std::move(*file)));
  }
  TERN_RETURN_IF_ERROR(IndexTensors());
  for (const auto& [name, shard] : weight_map) {
    const CheckpointTensor* tensor = Find(LanguageModelName(name, config_.tensor_prefix));
    if (tensor == nullptr || tensor->file != file_of_shard[shard]) {
      return InvalidArgument(fmt::format("{}: tensor '{}' is not in {}", index, name, shard));
    }
  }
  return OkStatus();
}

Status Checkpoint::OpenConfigs(const std::string& folder) {
  TERN_ASSIGN_OR_RETURN(config_, LoadModelConfig(folder + "/config.json"));
  const std::string generation = folder + "/generation_config.json";
  if (!FileExists(generation)) return OkStatus();
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJsonFile(generation));
  TERN_ASSIGN_OR_RETURN(generation_, ParseGenerationConfig(json, generation));
  return OkStatus();
}

Status Checkpoint::AddShard(std::shared_ptr<const MappedFile> file) {
  TERN_ASSIGN_OR_RETURN(auto tensors, ParseSafetensors(file->bytes(), file->path()));
  for (SafetensorsTensor& tensor : tensors) {
    tensors_.push_back({LanguageModelName(tensor.name, config_.tensor_prefix), tensor.name,
                        tensor.view, file.get()});
  }
  files_.push_back(std::move(file));
  return OkStatus();
}

Status Checkpoint::OpenGguf(std::shared_ptr<const MappedFile> file) {
  format_ = CheckpointFormat::kGguf;
  TERN_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(file->bytes(), file->path()));
  TERN_ASSIGN_OR_RETURN(config_, ModelConfigFromGguf(gguf));
  rotary_rows_interleaved_ = config_.model_type == "llama";
  for (const GgufTensor& tensor : gguf.tensors()) AddGgufTensor(tensor, file.get());
  files_.push_back(std::move(file));
  return OkStatus();
}

void Checkpoint::AddGgufTensor(const GgufTensor& tensor, const MappedFile* file) {
  const std::string name = HfNameFromGguf(tensor.name);
  const Shape& shape = tensor.view.shape;
  if (shape.rank() != 3) {
    tensors_.push_back({name, tensor.name, tensor.view, file});
    return;
  }
  // A matrix of each expert, or of each head: heads follow each other as rows of one matrix.
  const size_t star = name.find('*');
  if (star == std::string::npos) {
    TensorView rows = tensor.view;
    rows.shape = Shape{shape[0] * shape[1], shape[2]};
    tensors_.push_back({name, tensor.name, rows, file});
    return;
  }
  const size_t bytes = tensor.view.bytes.size() / static_cast<size_t>(shape[0]);
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    const TensorView slice = {
        .dtype = tensor.view.dtype,
        .shape = Shape{shape[1], shape[2]},
        .bytes = tensor.view.bytes.subspan(static_cast<size_t>(expert) * bytes, bytes)};
    tensors_.push_back({name.substr(0, star) + std::to_string(expert) + name.substr(star + 1),
                        tensor.name, slice, file});
  }
}

Status Checkpoint::IndexTensors() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i].name != tensors_[i - 1].name) continue;
    return InvalidArgument(fmt::format("{}: tensor '{}' occurs twice, in {} and {}", path_,
                                       tensors_[i].name, tensors_[i - 1].path(),
                                       tensors_[i].path()));
  }
  return OkStatus();
}

const std::vector<int32_t>& Checkpoint::eos_token_ids() const {
  return generation_.eos_token_ids.empty() ? config_.eos_token_ids : generation_.eos_token_ids;
}

uint64_t Checkpoint::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors_) bytes += tensor.view.bytes.size();
  return bytes;
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CheckpointTensor& t, std::string_view n) { return t.name < n; });
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

Result<const CheckpointTensor*> Checkpoint::Require(std::string_view name,
                                                    const Shape& shape) const {
  const CheckpointTensor* tensor = Find(name);
  if (tensor == nullptr) {
    return InvalidArgument(fmt::format("{}: tensor '{}' is missing", path_, name));
  }
  if (tensor->view.shape != shape) {
    return InvalidArgument(fmt::format("{}: tensor '{}' has shape {}, the config asks for {}",
                                       tensor->path(), tensor->stored_name,
                                       tensor->view.shape.ToString(), shape.ToString()));
  }
  return tensor;
}

Result<OpenedGguf> OpenGgufFile(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  TERN_ASSIGN_OR_RETURN(Gguf gguf, Gguf::Parse(file->bytes(), path));
  return OpenedGguf{std::move(file), std::move(gguf)};
}

}  // namespace tern
