// Files: whole reads and read-only memory maps.
// Thread: any; a MappedFile may be read from many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace tern {

// The whole file. Errors name the path: kNotFound, kInvalidArgument (a directory, unreadable, or
// larger than max_bytes).
Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);

// A read-only, private map of a whole file. Shared ownership: tensors that point into it hold it.
class MappedFile {
 public:
  // Errors: kNotFound, kInvalidArgument; both name the path.
  static Result<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }
  // Tells the kernel that this range will not be read again soon: its pages may be dropped.
  void Release(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size_bytes)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes) {}

  const std::string path_;
  const std::byte* const data_;
  const size_t size_bytes_;
};

bool FileExists(const std::string& path);
bool IsDirectory(const std::string& path);

}  // namespace tern
