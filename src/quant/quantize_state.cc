#include "quant/quantize_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/output_file.h"

namespace tern {
namespace {

namespace fs = std::filesystem;

Status StateError(const std::string& path, int error) {
  const std::string message = fmt::format("cannot write {}: {}", path, std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? ResourceExhausted(message)
                                            : FailedPrecondition(message);
}

// The first key whose values differ, for the message.
std::string Difference(const Json& a, const Json& b) {
  for (const auto& [key, value] : a.items()) {
    const Json* other = JsonMember(b, key.c_str());
    if (other == nullptr || *other != value) {
      if (value.is_object() && other != nullptr && other->is_object()) {
        return fmt::format("{}: {}", key, Difference(value, *other));
      }
      const auto shown = [](const Json& json) {
        const std::string text = DumpJson(json);
        return text.size() > 200 ? text.substr(0, 200) + "..." : text;
      };
      return fmt::format("{} was {}, now {}", key, shown(value),
                         other == nullptr ? "absent" : shown(*other));
    }
  }
  return "something else";
}

Status MakeFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0755) == 0) return OkStatus();
  const int error = errno;
  if (error == EEXIST && IsDirectory(folder)) return OkStatus();
  return FailedPrecondition(
      fmt::format("cannot make the folder {}: {}", folder, std::strerror(error)));
}

}  // namespace

Result<std::unique_ptr<QuantizeState>> QuantizeState::Open(const std::string& folder,
                                                           const Json& job) {
  TERN_RETURN_IF_ERROR(MakeFolder(folder));
  const std::string path = folder + "/" + kQuantizeStateFile;
  if (!FileExists(path)) {
    std::error_code error;
    const fs::directory_iterator entries(folder, error);
    if (error) {
      return FailedPrecondition(fmt::format("cannot list {}: {}", folder, error.message()));
    }
    if (entries != fs::directory_iterator()) {
      return FailedPrecondition(fmt::format(
          "{} is not empty (it has '{}') and holds no unfinished quantization: name a new folder",
          folder, entries->path().filename().string()));
    }
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return StateError(path, errno);
  std::unique_ptr<QuantizeState> state(new QuantizeState(path, fd));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition(fmt::format("another process is quantizing into {}", folder));
  }
  bool fresh = false;
  TERN_RETURN_IF_ERROR(state->Load(job, &fresh));
  if (!fresh) return state;
  // What is not a whole job line is no state.
  if (::ftruncate(fd, 0) != 0) return StateError(path, errno);
  TERN_RETURN_IF_ERROR(state->Append(job));
  TERN_RETURN_IF_ERROR(SyncFolder(folder));
  return state;
}

QuantizeState::~QuantizeState() { ::close(fd_); }

Status QuantizeState::Load(const Json& job, bool* fresh) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path_));
  size_t begin = 0, line_number = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Result<Json> line = ParseJson(std::string_view(text).substr(begin, end - begin));
    if (!line.ok()) return line.status().WithContext(path_);
    if (line_number++ == 0) {
      if (*line != job) {
        return FailedPrecondition(
            fmt::format("{} belongs to another quantization ({}): remove the folder to start again",
                        path_, Difference(*line, job)));
      }
      continue;
    }
    const Json* file = JsonMember(*line, "file");
    if (file == nullptr || !file->is_string()) {
      return InvalidArgument(fmt::format("{}: line {} names no file", path_, line_number));
    }
    finished_[file->get<std::string>()] = line->value("notes", Json());
  }
  *fresh = line_number == 0;
  // A cut last line goes, so that the next one starts a line.
  if (!*fresh && begin < text.size() && ::ftruncate(fd_, static_cast<off_t>(begin)) != 0) {
    return StateError(path_, errno);
  }
  return OkStatus();
}

Status QuantizeState::Append(const Json& line) {
  const std::string text = DumpJson(line) + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return StateError(path_, errno);
    done += static_cast<size_t>(n);
  }
  if (::fsync(fd_) != 0) return StateError(path_, errno);
  return OkStatus();
}

Status QuantizeState::Note(const std::string& file, const Json& notes) {
  Json line = Json::object();
  line["file"] = file;
  line["notes"] = notes;
  finished_[file] = notes;
  return Append(line);
}

Status QuantizeState::Remove() {
  if (::unlink(path_.c_str()) != 0) return StateError(path_, errno);
  return OkStatus();
}

}  // namespace tern
