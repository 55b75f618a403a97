#include "quant/side_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/output_file.h"

namespace tern {
namespace {

namespace fs = std::filesystem;

constexpr std::array kWeightEndings = {".safetensors", ".bin",  ".pt", ".pth",     ".gguf",
                                       ".onnx",        ".h5",   ".ot", ".msgpack", ".index.json",
                                       ".part",        ".ckpt", ".tmp"};
constexpr std::array kOwnFiles = {"config.json", "quantize_report.json", "quantize_report.svg"};
constexpr size_t kPieceBytes = size_t{8} << 20;

bool IsSideFile(const fs::path& path, bool top) {
  const std::string name = path.filename().string();
  if (name.starts_with('.')) return false;
  for (const char* ending : kWeightEndings) {
    if (name.ends_with(ending)) return false;
  }
  return !top || std::find(kOwnFiles.begin(), kOwnFiles.end(), name) == kOwnFiles.end();
}

Status Collect(const fs::path& folder, const fs::path& below, std::vector<std::string>* files) {
  std::error_code error;
  for (fs::directory_iterator entry(folder / below, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path name = below / entry->path().filename();
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      if (entry->is_symlink(ignored) || name.filename().string().starts_with('.')) continue;
      TERN_RETURN_IF_ERROR(Collect(folder, name, files));
    } else if (entry->is_regular_file(ignored) && IsSideFile(name, below.empty())) {
      files->push_back(name.string());
    }
  }
  if (!error) return OkStatus();
  return FailedPrecondition(
      fmt::format("cannot list {}: {}", (folder / below).string(), error.message()));
}

}  // namespace

Result<std::vector<std::string>> ListSideFiles(const std::string& folder) {
  std::vector<std::string> files;
  TERN_RETURN_IF_ERROR(Collect(folder, "", &files));
  std::sort(files.begin(), files.end());
  return files;
}

Status CopySideFiles(const std::string& from, const std::vector<std::string>& files,
                     const std::string& to) {
  for (const std::string& name : files) {
    const fs::path target = fs::path(to) / name;
    std::error_code error;
    fs::create_directories(target.parent_path(), error);
    if (error) {
      return FailedPrecondition(fmt::format("cannot make the folder {}: {}",
                                            target.parent_path().string(), error.message()));
    }
    TERN_ASSIGN_OR_RETURN(const auto source, MappedFile::Open(from + "/" + name));
    TERN_ASSIGN_OR_RETURN(const auto out,
                          OutputFile::Create(target.string(), source->bytes().size()));
    for (size_t at = 0; at < source->bytes().size(); at += kPieceBytes) {
      const auto piece =
          source->bytes().subspan(at, std::min(kPieceBytes, source->bytes().size() - at));
      TERN_RETURN_IF_ERROR(out->Write(at, piece));
      source->Release(piece);
    }
    TERN_RETURN_IF_ERROR(out->Commit());
  }
  return OkStatus();
}

}  // namespace tern
