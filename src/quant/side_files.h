// Side files: everything of a model's folder that is not weights: tokenizer, templates, licences,
// code. Thread: one.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace tern {

// Paths below `folder`, sorted: regular files but weights and their indices (.safetensors, .bin,
// .pt, .pth, .gguf, .onnx, .h5, .msgpack, *.index.json), config.json, what quantizing writes
// itself, and hidden files and folders. Links to files count as files, links to folders are left
// out. Errors: kFailedPrecondition naming the folder.
Result<std::vector<std::string>> ListSideFiles(const std::string& folder);

// Copies them below `to`, each whole or not at all. Errors as for OutputFile.
Status CopySideFiles(const std::string& from, const std::vector<std::string>& files,
                     const std::string& to);

}  // namespace tern
