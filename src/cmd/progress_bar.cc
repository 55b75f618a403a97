#include "cmd/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/clock.h"

namespace tern {
namespace {

constexpr int64_t kQuietUs = 2'000'000, kRedrawUs = 200'000, kLogUs = 10'000'000;
constexpr int64_t kBarWidth = 30;

std::string TimeText(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  return s < 100 ? fmt::format("{} s", s) : fmt::format("{}:{:02} min", s / 60, s % 60);
}

}  // namespace

ProgressBar::ProgressBar(std::string what, std::string unit, int64_t already_done)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_us_(SystemClock().NowUs()),
      next_us_(start_us_ + kQuietUs),
      already_done_(already_done) {}

ProgressBar::~ProgressBar() {
  if (drawn_ && terminal_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressBar::Update(int64_t done, int64_t total) {
  const int64_t now_us = SystemClock().NowUs();
  if (now_us < next_us_ || total <= 0) return;
  next_us_ = now_us + (terminal_ ? kRedrawUs : kLogUs);
  const double seconds = static_cast<double>(now_us - start_us_) * 1e-6;
  const double rate = static_cast<double>(done - already_done_) / seconds;
  const std::string left =
      rate > 0 ? TimeText(static_cast<double>(total - done) / rate) + " left" : "";
  const int64_t percent = 100 * done / total;
  if (terminal_) {
    const auto filled = static_cast<size_t>(kBarWidth * done / total);
    fmt::print(stderr, "\r\x1b[K{} [{}{}] {} % of {} {}, {:.0f} a second, {}", what_,
               std::string(filled, '#'), std::string(kBarWidth - filled, '.'), percent, total,
               unit_, rate, left);
    std::fflush(stderr);
  } else {
    fmt::print(stderr, "{}: {} of {} {} ({} %), {:.0f} a second, {}\n", what_, done, total, unit_,
               percent, rate, left);
  }
  drawn_ = true;
}

}  // namespace tern
