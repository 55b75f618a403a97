// Checkpoint: a model's files on disk, opened: its config, and its tensors by Hugging Face name
// whatever the files call them. Tensors are memory-mapped; nothing is copied.
// Owner: whoever loads or inspects a model, for as long as it uses the views.
// Thread: immutable after Open; Release may be called from any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "checkpoint/gguf.h"
#include "checkpoint/model_config.h"
#include "tensor/tensor.h"

namespace tern {

enum class CheckpointFormat { kSafetensors, kGguf, kDummy };

struct CheckpointTensor {
  std::string name;         // "model.layers.0.self_attn.q_proj.weight"
  std::string stored_name;  // as the file spells it, for errors
  TensorView view;
  const MappedFile* file = nullptr;  // nullptr: made up (Checkpoint::Dummy)

  // The file's path, for errors.
  const std::string& path() const;
};

// A tensor to make up.
struct DummyTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  float deviation = 0.02f;      // of the values of float types, around 0; 0: all are 1
  std::vector<int32_t> values;  // kI32: exactly these; empty: random
};

class Checkpoint {
 public:
  // `path`: a folder with config.json and model.safetensors or model.safetensors.index.json; one of
  // its .safetensors files; or FILE.gguf. A file's kind is told by its first bytes.
  // Errors name the file and the tensor or field: kNotFound, kInvalidArgument, kUnimplemented.
  static Result<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  // Made-up weights, the same for a name at every call: integers are random bits, floats are
  // uniform with the tensor's deviation. Tensors share bytes, each from a place of its own on,
  // so it takes the memory of the largest one of each type and deviation, and 1 MiB for each.
  // Errors: kInvalidArgument (a size that overflows), kUnimplemented (a block type),
  // kResourceExhausted.
  static Result<std::unique_ptr<Checkpoint>> Dummy(ModelConfig config,
                                                   std::span<const DummyTensor> tensors);

  const std::string& path() const { return path_; }
  CheckpointFormat format() const { return format_; }
  const ModelConfig& config() const { return config_; }
  // generation_config.json; empty where there is none.
  const GenerationConfig& generation() const { return generation_; }
  // The generation config's stop tokens, else the model config's.
  const std::vector<int32_t>& eos_token_ids() const;

  // Sorted by name. Tensors of a multimodal checkpoint that are not the language model's keep their
  // stored names.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  // Bytes of all of them, as stored.
  uint64_t tensor_bytes() const;
  // nullptr when there is none.
  const CheckpointTensor* Find(std::string_view name) const;
  // Errors: kInvalidArgument "<path>: tensor '<name>' is missing" or "... has shape [..], not
  // [..]".
  Result<const CheckpointTensor*> Require(std::string_view name, const Shape& shape) const;

  // Whether rows of q_proj and k_proj are stored for interleaved rotary pairs, (x0,x1),(x2,x3)...,
  // where Hugging Face's are for half-split pairs, (x0,x[d/2]),... llama.cpp's converter permutes
  // the rows of its `llama` architecture so.
  bool rotary_rows_interleaved() const { return rotary_rows_interleaved_; }

  // Tells the system that a tensor's bytes will not be read again soon. They stay readable.
  static void Release(const CheckpointTensor& tensor) {
    if (tensor.file != nullptr) tensor.file->Release(tensor.view.bytes);
  }

 private:
  Checkpoint() = default;
  Status OpenFolder(const std::string& folder);
  Status OpenGguf(std::shared_ptr<const MappedFile> file);
  Status OpenConfigs(const std::string& folder);
  void AddGgufTensor(const GgufTensor& tensor, const MappedFile* file);
  Status AddShard(std::shared_ptr<const MappedFile> file);
  // Sorts tensors_; the error names a tensor that two files hold.
  Status IndexTensors();

  std::string path_;
  CheckpointFormat format_ = CheckpointFormat::kSafetensors;
  ModelConfig config_;
  GenerationConfig generation_;
  bool rotary_rows_interleaved_ = false;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<Buffer> dummy_bytes_;
};

// Opens and parses the metadata of one GGUF file without building a model from it. The result
// points into the map: keep both.
struct OpenedGguf {
  std::shared_ptr<const MappedFile> file;
  Gguf gguf;
};
Result<OpenedGguf> OpenGgufFile(const std::string& path);

}  // namespace tern
