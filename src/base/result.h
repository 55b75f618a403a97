// Result<T>: a T or the Status that says why there is none. C++20 lacks std::expected.
// Thread: a value like any other.
#pragma once

#include <optional>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace tern {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  // REQUIRES: !status.ok()
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    TERN_CHECK(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  // The error, or an ok Status.
  const Status& status() const { return status_; }

  // REQUIRES: ok()
  T& value() & {
    TERN_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    TERN_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    TERN_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tern

// TERN_ASSIGN_OR_RETURN(auto x, MakeX()); declares x or returns the error.
#define TERN_ASSIGN_OR_RETURN(lhs, expr) \
  TERN_ASSIGN_OR_RETURN_INNER(TERN_CONCAT(tern_result_, __LINE__), lhs, expr)
#define TERN_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()
