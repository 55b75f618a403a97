#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tern {
namespace {

Status OpenError(const std::string& path, int error) {
  const std::string message = fmt::format("cannot open {}: {}", path, std::strerror(error));
  return error == ENOENT ? NotFound(message) : InvalidArgument(message);
}

// Owns a descriptor for the length of a scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Result<uint64_t> RegularFileSize(const std::string& path, int fd) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return OpenError(path, errno);
  if (S_ISDIR(st.st_mode)) return InvalidArgument(fmt::format("{} is a directory", path));
  if (!S_ISREG(st.st_mode)) return InvalidArgument(fmt::format("{} is not a regular file", path));
  return static_cast<uint64_t>(st.st_size);
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return OpenError(path, errno);
  TERN_ASSIGN_OR_RETURN(const uint64_t size, RegularFileSize(path, file.fd));
  if (size > max_bytes) {
    return InvalidArgument(fmt::format("{} has {} bytes, the limit is {}", path, size, max_bytes));
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.fd, text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return InvalidArgument(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    if (n == 0) break;  // shrank while being read
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return OpenError(path, errno);
  TERN_ASSIGN_OR_RETURN(const uint64_t size, RegularFileSize(path, file.fd));
  const std::byte* data = nullptr;
  if (size > 0) {
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (p == MAP_FAILED) {
      return InvalidArgument(fmt::format("cannot map {}: {}", path, std::strerror(errno)));
    }
    data = static_cast<const std::byte*>(p);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, data, size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

void MappedFile::Release(std::span<const std::byte> range) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data() + range.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool FileExists(const std::string& path) {
  struct stat st;
  return ::stat(path.c_str(), &st) == 0;
}

bool IsDirectory(const std::string& path) {
  struct stat st;
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

}  // namespace tern
