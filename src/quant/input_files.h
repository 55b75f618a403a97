// InputFiles: the files of a checkpoint that is being quantized, read with plain reads instead of
// the map: a file that shrinks meanwhile is an error and no signal, and nothing becomes resident.
// Also what they looked like at the start, so that a change of input is noticed.
// Owner: the quantizer. Thread: const methods from any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace tern {

class InputFiles {
 public:
  // Errors: kNotFound, kInvalidArgument naming the file.
  static Result<InputFiles> Open(const Checkpoint& checkpoint);
  ~InputFiles();
  InputFiles(InputFiles&& other) noexcept
      : files_(std::exchange(other.files_, {})), fingerprint_(std::move(other.fingerprint_)) {}
  InputFiles& operator=(InputFiles&&) = delete;

  // Fills `out` with the tensor's bytes from `offset` on. Errors: kDataLoss naming file and tensor:
  // the file has become shorter, or can't be read.
  Status Read(const CheckpointTensor& tensor, uint64_t offset, std::span<std::byte> out) const;

  // Name, size, time of change and a hash of the header of each file, in order of their names:
  // equal for the same checkpoint. Includes config.json where there is one.
  const Json& fingerprint() const { return fingerprint_; }
  // Errors: kFailedPrecondition naming a file whose size or time has changed since Open.
  Status CheckUnchanged() const;

 private:
  struct File {
    std::string path;
    int fd = -1;
    int64_t size = 0, changed_ns = 0;
  };
  InputFiles() = default;

  std::map<const MappedFile*, File> files_;
  Json fingerprint_ = Json::array();
};

}  // namespace tern
