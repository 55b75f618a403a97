// Report files: a whole file under its final name, or nothing. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace tern {

// Writes to PATH.tmp, syncs and renames. Errors: kFailedPrecondition, naming the path and what
// went wrong (no such folder, read-only, disk full); the temporary file is removed.
Status WriteReportFile(const std::string& path, std::string_view bytes);
// Pretty JSON with a newline at the end.
Status WriteReportJson(const std::string& path, const Json& json);

}  // namespace tern
