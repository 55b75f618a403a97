#include "cmd/line_filter.h"

#include <fmt/format.h>

#include <iostream>

namespace tern {
namespace {

constexpr size_t kMaxLineBytes = size_t{256} << 20;

// The next line without its newline; false at the end of the input.
Result<bool> ReadLine(std::string* line) {
  std::streambuf& in = *std::cin.rdbuf();
  line->clear();
  for (int c = in.sbumpc();; c = in.sbumpc()) {
    if (c == std::char_traits<char>::eof()) return !line->empty();
    if (c == '\n') return true;
    if (line->size() == kMaxLineBytes) {
      return InvalidArgument(fmt::format("the line is longer than {} bytes", kMaxLineBytes));
    }
    line->push_back(static_cast<char>(c));
  }
}

}  // namespace

Status FilterLines(const char* unit,
                   const std::function<Result<std::string>(const std::string&)>& transform) {
  std::ios::sync_with_stdio(false);
  std::string line;
  Status status;
  for (int64_t number = 1;; ++number) {
    const Result<bool> more = ReadLine(&line);
    if (more.ok() && !*more) break;
    const Result<std::string> out = more.ok() ? transform(line) : more.status();
    if (!out.ok()) {
      status = out.status().WithContext(fmt::format("{} {}", unit, number));
      break;
    }
    std::cout << *out << '\n';
  }
  std::cout.flush();
  if (!std::cout) return Unavailable("standard output cannot be written");
  return status;
}

}  // namespace tern
