// LoadModel for commands that show how far it is. Thread: call at start.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "models/registry.h"

namespace tern {

// LoadModel under a progress bar, which takes the place of `load.progress`.
Result<std::unique_ptr<Model>> LoadWithProgress(const std::string& path, Ops& ops,
                                                LoadOptions load);

}  // namespace tern
