// ProgressBar: how far a long command is, on standard error: a line that is drawn again and again
// on a terminal, a line now and then in a log. Silent for the first two seconds. Owner: a command.
// Thread: one.
#pragma once

#include <cstdint>
#include <string>

namespace tern {

class ProgressBar {
 public:
  // "perplexity", "tokens". `already_done`: what this run did not do; it does not count for the
  // rate.
  ProgressBar(std::string what, std::string unit, int64_t already_done = 0);
  ~ProgressBar();  // ends the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(int64_t done, int64_t total);

 private:
  const std::string what_, unit_;
  const bool terminal_;
  const int64_t start_us_;
  int64_t next_us_;
  const int64_t already_done_;
  bool drawn_ = false;
};

}  // namespace tern
