#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"

namespace tern {
namespace {

int CombiningClass(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Appends the normalized `chars` to *out. utf8proc_map would do, but its sorting of combining marks
// is quadratic; this sorts each run and leaves utf8proc the decomposition and the composition.
void AppendNormalized(const std::vector<char32_t>& chars, int options, std::string* out) {
  std::vector<utf8proc_int32_t> decomposed;
  decomposed.reserve(chars.size());
  for (const char32_t c : chars) {
    constexpr utf8proc_ssize_t kRoom = 32;  // the longest decomposition has 18
    utf8proc_int32_t parts[kRoom];
    int boundary_class = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kRoom,
                                static_cast<utf8proc_option_t>(options), &boundary_class);
    if (n < 0 || n > kRoom) {
      decomposed.push_back(static_cast<utf8proc_int32_t>(c));
    } else {
      decomposed.insert(decomposed.end(), parts, parts + n);
    }
  }
  for (auto it = decomposed.begin(); it != decomposed.end();) {
    if (CombiningClass(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, decomposed.end(),
                                  [](utf8proc_int32_t c) { return CombiningClass(c) == 0; });
    std::stable_sort(it, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    it = end;
  }
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(decomposed.data(), static_cast<utf8proc_ssize_t>(decomposed.size()),
                               static_cast<utf8proc_option_t>(options));
  for (utf8proc_ssize_t i = 0; i < n; ++i) {
    AppendUtf8(static_cast<char32_t>(decomposed[static_cast<size_t>(i)]), out);
  }
}

int OptionsOf(NormalizationForm form) {
  switch (form) {
    case NormalizationForm::kNone:
      return 0;
    case NormalizationForm::kNfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalizationForm::kNfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalizationForm::kNfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalizationForm::kNfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

}  // namespace

std::string Normalize(std::string_view text, NormalizationForm form) {
  const bool ascii = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (form == NormalizationForm::kNone || ascii) return std::string(text);
  const int options = OptionsOf(form);
  std::string out;
  std::vector<char32_t> run;
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    const char32_t c = DecodeUtf8(text, pos, &length);
    constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
    const bool invalid = c == 0xFFFD && text.substr(pos, length) != kReplacement;
    if (!invalid) {
      run.push_back(c);
    } else {
      AppendNormalized(run, options, &out);
      run.clear();
      out.append(text.substr(pos, length));
    }
    pos += length;
  }
  AppendNormalized(run, options, &out);
  return out;
}

}  // namespace tern
