// EvalReport: what `tern eval` shows of a result: a table for the terminal, and a picture.
// Thread: pure functions.
#pragma once

#include <optional>
#include <string>

#include "eval/comparison.h"
#include "eval/eval_result.h"
#include "report/svg_chart.h"

namespace tern {

std::string EvalTable(const EvalResult& result, const std::optional<Comparison>& comparison,
                      const BootstrapOptions& options = {});
SvgPicture EvalPicture(const EvalResult& result, const std::optional<Comparison>& comparison);

}  // namespace tern
