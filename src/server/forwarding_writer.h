// ForwardingWriter: passes an answer on as it is; decorators override what they watch.
// Owner and thread: as ResponseWriter.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "net/http.h"

namespace tern {

class ForwardingWriter : public ResponseWriter {
 public:
  explicit ForwardingWriter(std::shared_ptr<ResponseWriter> next) : next_(std::move(next)) {}

  void Send(int status, HttpHeaders headers, std::string body) override {
    next_->Send(status, std::move(headers), std::move(body));
  }
  void BeginStream(int status, HttpHeaders headers) override {
    next_->BeginStream(status, std::move(headers));
  }
  void Write(std::string_view data) override { next_->Write(data); }
  void End() override { next_->End(); }
  size_t waiting_bytes() const override { return next_->waiting_bytes(); }
  void OnDisconnect(std::function<void()> callback) override {
    next_->OnDisconnect(std::move(callback));
  }
  bool open() const override { return next_->open(); }
  Executor& executor() override { return next_->executor(); }

 private:
  const std::shared_ptr<ResponseWriter> next_;
};

}  // namespace tern
