#include "base/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tern {
namespace {

Status WriteError(const std::string& path, int error) {
  const std::string message = fmt::format("cannot write {}: {}", path, std::strerror(error));
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? ResourceExhausted(message) : FailedPrecondition(message);
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path,
                                                       uint64_t size_bytes) {
  const std::string part = path + std::string(kPartSuffix);
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return WriteError(part, errno);
  std::unique_ptr<OutputFile> file(new OutputFile(path, fd));
  if (size_bytes > 0) {
    const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes));
    // Where a file system cannot set space aside, writing finds out.
    if (error != 0 && error != EINVAL && error != EOPNOTSUPP) return WriteError(part, error);
  }
  return file;
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink((path_ + std::string(kPartSuffix)).c_str());
}

Status OutputFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return WriteError(path_, errno);
    if (n == 0) return WriteError(path_, ENOSPC);
    done += static_cast<size_t>(n);
  }
  return OkStatus();
}

Status OutputFile::Sync() {
  if (::fsync(fd_) != 0) return WriteError(path_, errno);
  return OkStatus();
}

Status OutputFile::Commit() {
  TERN_RETURN_IF_ERROR(Sync());
  const std::string part = path_ + std::string(kPartSuffix);
  if (std::rename(part.c_str(), path_.c_str()) != 0) return WriteError(path_, errno);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) return WriteError(path_, errno);
  return SyncFolder(FolderOf(path_));
}

Status WriteFileAtomically(const std::string& path, std::string_view text) {
  TERN_ASSIGN_OR_RETURN(const auto file, OutputFile::Create(path, 0));
  TERN_RETURN_IF_ERROR(file->Write(0, std::as_bytes(std::span(text.data(), text.size()))));
  return file->Commit();
}

Status SyncFolder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return WriteError(folder, errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems have nothing to flush.
  return error == 0 || error == EINVAL ? OkStatus() : WriteError(folder, error);
}

Result<uint64_t> FreeDiskBytes(const std::string& folder) {
  struct statvfs disk;
  if (::statvfs(folder.c_str(), &disk) != 0) {
    return FailedPrecondition(fmt::format("cannot look at {}: {}", folder, std::strerror(errno)));
  }
  return uint64_t{disk.f_bavail} * disk.f_frsize;
}

}  // namespace tern
