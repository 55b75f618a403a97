#include "report/report_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tern {
namespace {

Status Failed(const std::string& path, const char* what) {
  return FailedPrecondition(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

// Writes all bytes and syncs. False with errno set.
bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  // Pipes and terminals can't be synced; that is no failure.
  return fsync(fd) == 0 || errno == EINVAL || errno == EROFS;
}

// A device or a pipe (/dev/stdout, /dev/full): written in place, since it can't be replaced.
bool IsRegularOrNew(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return true;
  const bool seekable = lseek(fd, 0, SEEK_END) >= 0;
  close(fd);
  return seekable && path.compare(0, 5, "/dev/") != 0;
}

}  // namespace

Status WriteReportFile(const std::string& path, std::string_view bytes) {
  const bool replace = IsRegularOrNew(path);
  const std::string target = replace ? path + ".tmp" : path;
  const int flags = O_WRONLY | O_CLOEXEC | (replace ? O_CREAT | O_TRUNC : 0);
  const int fd = open(target.c_str(), flags, 0666);
  if (fd < 0) return Failed(path, "create");
  bool written = WriteAll(fd, bytes);
  int error = errno;
  if (close(fd) != 0 && written) {
    written = false;
    error = errno;
  }
  if (written && (!replace || std::rename(target.c_str(), path.c_str()) == 0)) return OkStatus();
  if (written) error = errno;
  if (replace) unlink(target.c_str());
  errno = error;
  return Failed(path, "write");
}

Status WriteReportJson(const std::string& path, const Json& json) {
  return WriteReportFile(path, DumpJson(json, 1) + "\n");
}

}  // namespace tern
