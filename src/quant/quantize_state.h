// QuantizeState: what a quantization has finished, in a file of the output folder, so that one that
// was killed goes on where it was. One JSON object a line: what is being made, then one line for
// each finished file; a line that was cut is as if it were not there.
// Owner: the quantizer, which holds the file locked. Thread: one.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace tern {

inline constexpr const char* kQuantizeStateFile = ".tern-quantize";

class QuantizeState {
 public:
  // `job`: options, input and shards; an equal one goes on, another one is an error.
  // Makes the folder (not its parents). Errors, naming it: kFailedPrecondition: it is not empty and
  // holds no state, or that of another job (naming what differs), it can't be written, another
  // process is at work in it.
  static Result<std::unique_ptr<QuantizeState>> Open(const std::string& folder, const Json& job);
  ~QuantizeState();
  QuantizeState(const QuantizeState&) = delete;
  QuantizeState& operator=(const QuantizeState&) = delete;

  // Files that are whole, with what was noted of each.
  const std::map<std::string, Json>& finished() const { return finished_; }
  // Notes that `file` will be whole under its name as soon as it is there. On the disk when this
  // returns. A file counts as finished when it is noted and exists.
  Status Note(const std::string& file, const Json& notes);
  // The job is done: removes the state.
  Status Remove();

 private:
  QuantizeState(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status Load(const Json& job, bool* fresh);
  Status Append(const Json& line);

  const std::string path_;
  const int fd_;
  std::map<std::string, Json> finished_;
};

}  // namespace tern
