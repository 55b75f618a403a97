// Files that appear under their name only when they are whole: written beside it as NAME.part,
// flushed to the disk, then renamed. Thread: see each; an OutputFile may be written from many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tern {

// The suffix of a file that is being written.
inline constexpr std::string_view kPartSuffix = ".part";

class OutputFile {
 public:
  // Creates `path`.part with `size_bytes` of space set aside; one left by an earlier run is
  // replaced. Errors name the path: kResourceExhausted (the disk is full), kFailedPrecondition
  // (read-only, no such folder, ...).
  static Result<std::unique_ptr<OutputFile>> Create(const std::string& path, uint64_t size_bytes);
  // Removes the .part unless Commit has succeeded.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  // Writes at `offset`; ranges of different threads must not overlap. Errors as for Create.
  Status Write(uint64_t offset, std::span<const std::byte> bytes);
  // Flushes to the disk. Until then the system may hold the bytes in memory only.
  Status Sync();
  // Sync, rename to `path`, and flush the folder. Once, after the last Write.
  Status Commit();

 private:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  int fd_;
};

// A whole small file, by the same way.
Status WriteFileAtomically(const std::string& path, std::string_view text);

// Flushes a folder's entries to the disk.
Status SyncFolder(const std::string& folder);

// Bytes that may still be written below `folder`. Errors: kFailedPrecondition naming it.
Result<uint64_t> FreeDiskBytes(const std::string& folder);

}  // namespace tern
