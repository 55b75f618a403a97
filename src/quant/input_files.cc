#include "quant/input_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hash.h"

namespace tern {
namespace {

// Of a GGUF file, whose header has no length of its own, this much is hashed.
constexpr uint64_t kHashedBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

int64_t ChangedNs(const struct stat& st) {
  return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
}

uint64_t HeaderHash(const MappedFile& file, bool gguf) {
  uint64_t bytes = kHashedBytes;
  if (!gguf && file.bytes().size() >= sizeof(bytes)) {
    std::memcpy(&bytes, file.bytes().data(), sizeof(bytes));
    bytes = std::min(bytes, kMaxHeaderBytes) + sizeof(bytes);
  }
  const auto header = file.bytes().first(std::min<uint64_t>(bytes, file.bytes().size()));
  const uint64_t hash = Hash64(header);
  file.Release(header);
  return hash;
}

Json Entry(const std::string& path, uint64_t size, int64_t changed_ns, uint64_t hash) {
  Json entry = Json::object();
  entry["file"] = NameOf(path);
  entry["bytes"] = size;
  entry["changed_ns"] = changed_ns;
  entry["header"] = fmt::format("{:016x}", hash);
  return entry;
}

}  // namespace

Result<InputFiles> InputFiles::Open(const Checkpoint& checkpoint) {
  InputFiles input;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.file == nullptr || input.files_.contains(tensor.file)) continue;
    File file{.path = tensor.file->path()};
    file.fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (file.fd < 0 || ::fstat(file.fd, &st) != 0) {
      const int error = errno;
      if (file.fd >= 0) ::close(file.fd);
      return InvalidArgument(fmt::format("cannot open {}: {}", file.path, std::strerror(error)));
    }
    file.size = st.st_size;
    file.changed_ns = ChangedNs(st);
    input.files_.emplace(tensor.file, std::move(file));
  }
  const bool gguf = checkpoint.format() == CheckpointFormat::kGguf;
  std::vector<Json> entries;
  for (const auto& [mapped, file] : input.files_) {
    if (static_cast<uint64_t>(file.size) != mapped->bytes().size()) {
      return FailedPrecondition(fmt::format("{}: its size is changing", file.path));
    }
    entries.push_back(
        Entry(file.path, mapped->bytes().size(), file.changed_ns, HeaderHash(*mapped, gguf)));
  }
  if (!gguf) {
    const std::string& config = checkpoint.config().source;
    TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(config));
    entries.push_back(Entry(config, text.size(), 0, Hash64(text)));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Json& a, const Json& b) { return a["file"] < b["file"]; });
  for (Json& entry : entries) input.fingerprint_.push_back(std::move(entry));
  return input;
}

InputFiles::~InputFiles() {
  for (const auto& [mapped, file] : files_) ::close(file.fd);
}

Status InputFiles::Read(const CheckpointTensor& tensor, uint64_t offset,
                        std::span<std::byte> out) const {
  const File& file = files_.at(tensor.file);
  const auto begin = static_cast<uint64_t>(tensor.view.bytes.data() - tensor.file->bytes().data());
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(file.fd, out.data() + done, out.size() - done,
                              static_cast<off_t>(begin + offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return DataLoss(fmt::format("{}: tensor '{}' cannot be read: {}", file.path,
                                  tensor.stored_name,
                                  n < 0 ? std::strerror(errno) : "the file has become shorter"));
    }
    done += static_cast<size_t>(n);
  }
  return OkStatus();
}

Status InputFiles::CheckUnchanged() const {
  for (const auto& [mapped, file] : files_) {
    struct stat st;
    if (::stat(file.path.c_str(), &st) == 0 && st.st_size == file.size &&
        ChangedNs(st) == file.changed_ns) {
      continue;
    }
    return FailedPrecondition(fmt::format(
        "{} has changed while it was being quantized: remove the output and start again",
        file.path));
  }
  return OkStatus();
}

}  // namespace tern
