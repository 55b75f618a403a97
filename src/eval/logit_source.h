// LogitSource: a model as evaluation sees it: tokens of one sequence in, logits out. cmd fills it
// from models/single_sequence.h (eval may not include models).
// Owner: the command. Thread: one.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace tern {

class LogitSource {
 public:
  virtual ~LogitSource() = default;
  virtual const std::string& name() const = 0;  // for messages
  virtual int64_t vocab_size() const = 0;
  virtual int64_t context_length() const = 0;
  // Starts a fresh sequence of at most `tokens` tokens.
  virtual Status Begin(int64_t tokens) = 0;
  // The next tokens of the sequence; logits [tokens, vocab] after each of them.
  virtual Status Append(std::span<const int32_t> tokens, float* logits) = 0;
};

}  // namespace tern
