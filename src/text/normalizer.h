// Unicode normalization before tokenization, through utf8proc (its only wrapper).
// Thread: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace tern {

enum class NormalizationForm { kNone, kNfc, kNfd, kNfkc, kNfkd };

// `text` in the form. Invalid UTF-8 is copied as it is and separates what is around it.
// O(n log n), also for a long run of combining marks.
std::string Normalize(std::string_view text, NormalizationForm form);

}  // namespace tern
