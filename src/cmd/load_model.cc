#include "cmd/load_model.h"

#include <cstdint>

#include "cmd/progress_bar.h"

namespace tern {

Result<std::unique_ptr<Model>> LoadWithProgress(const std::string& path, Ops& ops,
                                                LoadOptions load) {
  ProgressBar bar("loading " + path, "bytes");
  load.progress = [&bar](uint64_t done, uint64_t total) {
    bar.Update(static_cast<int64_t>(done), static_cast<int64_t>(total));
  };
  return LoadModel(path, ops, load);
}

}  // namespace tern
