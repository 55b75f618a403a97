// What a quantization did to the weights, for people: quantize_report.json, a picture, a table.
// Thread: pure functions.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"
#include "quant/quantize.h"

namespace tern {

// {"job", "input_bytes", "output_bytes", ..., "kinds": [...], "layers": [...], "worst": [...]}.
// Errors are relative: root mean square of the differences over that of the weights.
Json QuantizeReportJson(const QuantizeReport& report);

// Error by kind, and by layer within each kind.
std::string QuantizeReportSvg(const QuantizeReport& report);

// A table of kinds and the worst tensors.
std::string QuantizeReportText(const QuantizeReport& report);

// Both files into a folder, each whole or not at all.
Status WriteQuantizeReport(const QuantizeReport& report, const std::string& folder);

}  // namespace tern
