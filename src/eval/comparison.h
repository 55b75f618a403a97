// Comparison: a run against the baseline of an earlier one, item by item and block by block, and
// the verdict. Thread: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "eval/eval_result.h"
#include "eval/verdict.h"

namespace tern {

struct Comparison {
  std::string baseline_model;
  Verdict verdict;
  int64_t same_answers = 0;  // items answered with the same text
};

// Compares what both runs hold. Errors: kInvalidArgument when the baseline is of other items (the
// first that differs is named), other limits of new tokens, another text, tokenizer or window; is
// not complete; or has nothing in common with `candidate`.
Result<Comparison> Compare(const EvalResult& baseline, const EvalResult& candidate,
                           const BootstrapOptions& options = {});

Json ComparisonToJson(const Comparison& comparison);

}  // namespace tern
