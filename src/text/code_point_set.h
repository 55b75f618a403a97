// CodePointSet: a set of Unicode code points as sorted ranges, for regular-expression classes.
// Thread: a value.
#pragma once

#include <string>
#include <vector>

#include "text/unicode.h"

namespace tern {

class CodePointSet {
 public:
  struct Range {
    char32_t first, last;  // both inside
    friend bool operator==(const Range&, const Range&) = default;
  };

  CodePointSet() = default;
  // REQUIRES: first <= last <= U+10FFFF
  CodePointSet(char32_t first, char32_t last) : ranges_{{first, last}} {}
  // The code points that have a property in `set`.
  static CodePointSet WithProperties(UnicodeSet set);

  void Add(const CodePointSet& other);
  CodePointSet Complement() const;
  CodePointSet Intersection(const CodePointSet& other) const;

  // Sorted, neither overlapping nor adjacent.
  const std::vector<Range>& ranges() const { return ranges_; }
  // The set as a PCRE2 class or, when empty, an assertion that fails. Surrogates are left out.
  std::string ToPcre2() const;

 private:
  std::vector<Range> ranges_;
};

}  // namespace tern
