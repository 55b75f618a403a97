// Journal: answers as they come, so that a run that breaks off loses none of them. A file of JSON
// lines beside the result: a header that says which run it is, then one line for each answer.
// Owner: the command. Thread: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/task_item.h"

namespace tern {

class Journal {
 public:
  // `run`: what answers depend on besides the item (model, options). An existing file is an error
  // unless `resume`; then its answers are read, and new ones go behind them. A last line that was
  // cut off is dropped.
  // Errors: kFailedPrecondition (exists; another run's; can't be written), kDataLoss (a line that
  // is no answer), naming the file.
  static Result<std::unique_ptr<Journal>> Open(const std::string& path, const Json& run,
                                               bool resume);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // The answer of an earlier run to an item of this hash; null when there is none.
  const TaskAnswer* Find(uint64_t item_hash) const;
  size_t size() const { return answers_.size(); }

  // Writes through to the file. Errors: disk full, naming the file.
  Status Add(uint64_t item_hash, const TaskAnswer& answer);
  // The result is written: the journal has done its work.
  void Remove();

 private:
  explicit Journal(std::string path) : path_(std::move(path)) {}
  Status Write(const Json& line);
  // Takes the lines of an earlier run; returns how many bytes of them are whole.
  Result<size_t> Read(const std::string& text, const Json& run);

  const std::string path_;
  int fd_ = -1;
  std::map<uint64_t, TaskAnswer> answers_;
};

// {"text": ..., "call": {"name", "arguments"}?, "tokens": n, "cut": true?}
Json AnswerToJson(const TaskAnswer& answer);
Result<TaskAnswer> AnswerFromJson(const Json& json);

// 16 hexadecimal digits, since JSON numbers don't hold 64 bits.
std::string HashText(uint64_t hash);

}  // namespace tern
