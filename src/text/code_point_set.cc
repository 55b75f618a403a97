#include "text/code_point_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace tern {
namespace {
constexpr char32_t kLastCodePoint = 0x10FFFF;
}  // namespace

CodePointSet CodePointSet::WithProperties(UnicodeSet set) {
  CodePointSet out;
  bool inside = false;
  for (char32_t c = 0; c <= kLastCodePoint; ++c) {
    const bool member = (PropertiesOf(c) & set) != 0;
    if (member && !inside) out.ranges_.push_back({c, c});
    if (member) out.ranges_.back().last = c;
    inside = member;
  }
  return out;
}

void CodePointSet::Add(const CodePointSet& other) {
  std::vector<Range> all;
  std::merge(ranges_.begin(), ranges_.end(), other.ranges_.begin(), other.ranges_.end(),
             std::back_inserter(all),
             [](const Range& a, const Range& b) { return a.first < b.first; });
  ranges_.clear();
  for (const Range& r : all) {
    if (!ranges_.empty() && r.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, r.last);
    } else {
      ranges_.push_back(r);
    }
  }
}

CodePointSet CodePointSet::Complement() const {
  CodePointSet out;
  char32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.first > next) out.ranges_.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kLastCodePoint) out.ranges_.push_back({next, kLastCodePoint});
  return out;
}

CodePointSet CodePointSet::Intersection(const CodePointSet& other) const {
  CodePointSet outside = Complement();
  outside.Add(other.Complement());
  return outside.Complement();
}

std::string CodePointSet::ToPcre2() const {
  const CodePointSet scalars = Intersection(CodePointSet(0xD800, 0xDFFF).Complement());
  if (scalars.ranges_.empty()) return "(?!)";
  std::string out = "[";
  for (const Range& r : scalars.ranges_) {
    out += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(r.first));
    if (r.last > r.first) out += fmt::format("-\\x{{{:x}}}", static_cast<uint32_t>(r.last));
  }
  return out + "]";
}

}  // namespace tern
