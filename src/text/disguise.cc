#include "text/disguise.h"

#include <algorithm>

#include "base/utf8.h"

namespace tern {
namespace {

// Sutton SignWriting: symbols that are printable (Python's repr leaves them), no letters, no
// spaces, without case, and no normalization changes them. All have four bytes.
constexpr char32_t kFirst = 0x1D800, kLast = 0x1D9FF;
constexpr size_t kBytes = 4;

}  // namespace

std::string_view Disguise::Add(std::string_view character,
                               const std::vector<std::string_view>& avoid) {
  for (; kFirst + next_ <= kLast; ++next_) {
    std::string stand_in;
    AppendUtf8(kFirst + next_, &stand_in);
    const bool taken = std::any_of(avoid.begin(), avoid.end(), [&](std::string_view text) {
      return text.find(stand_in) != std::string_view::npos;
    });
    if (taken) continue;
    ++next_;
    stand_ins_.emplace_back(character, std::move(stand_in));
    return stand_ins_.back().second;
  }
  return {};
}

std::string_view Disguise::For(std::string_view character) const {
  for (const auto& [from, to] : stand_ins_) {
    if (from == character) return to;
  }
  return {};
}

int Disguise::At(std::string_view text, size_t pos) const {
  if (text[pos] != '\xF0') return -1;
  const std::string_view here = text.substr(pos, kBytes);
  for (size_t i = 0; i < stand_ins_.size(); ++i) {
    if (stand_ins_[i].second == here) return static_cast<int>(i);
  }
  return -1;
}

std::string Disguise::Undo(std::string_view text) const {
  std::string plain;
  plain.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const int index = At(text, pos);
    if (index >= 0) {
      plain += stand_ins_[static_cast<size_t>(index)].first;
      pos += kBytes;
    } else {
      plain += text[pos++];
    }
  }
  return plain;
}

size_t Disguise::CountIn(std::string_view text) const {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++pos) count += At(text, pos) >= 0 ? 1 : 0;
  return count;
}

}  // namespace tern
