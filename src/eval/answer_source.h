// AnswerSource: whoever answers task items: the engine in this process, or a server.
// Owner: the command. Thread: Answer is called from one thread, which also gets the answers.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/status.h"
#include "eval/task_item.h"

namespace tern {

class AnswerSource {
 public:
  // `index`: into `items`. An error ends the run.
  using OnAnswer = std::function<Status(size_t index, TaskAnswer answer)>;

  virtual ~AnswerSource() = default;
  // Answers the items `wanted` (indices into `items`), in any order. Returns the first error, which
  // names the item's line; every answer that was complete by then has been handed over.
  virtual Status Answer(const std::vector<TaskItem>& items, const std::vector<size_t>& wanted,
                        const OnAnswer& on_answer) = 0;
};

}  // namespace tern
