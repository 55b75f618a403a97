#include "text/added_tokens.h"

#include "text/unicode.h"

namespace tern {
namespace {

uint64_t EdgeOf(uint32_t node, char byte) {
  return uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

// Start of the character before text[pos]. REQUIRES: pos > 0.
size_t PreviousChar(std::string_view text, size_t pos) {
  size_t start = pos - 1;
  while (start > 0 && pos - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  return start + CharAt(text, start).size_bytes == pos ? start : pos - 1;
}

bool StandsAlone(std::string_view text, size_t start, size_t end) {
  if (start > 0 && CharAt(text, PreviousChar(text, start)).In(kWord)) return false;
  return !CharAt(text, end).In(kWord);
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token) {
  uint32_t node = 0;
  for (const char byte : token.content) {
    const auto [it, added] =
        edges_.emplace(EdgeOf(node, byte), static_cast<uint32_t>(token_at_.size()));
    if (added) token_at_.push_back(-1);
    node = it->second;
  }
  if (token_at_[node] >= 0) return;
  token_at_[node] = static_cast<int>(tokens_.size());
  tokens_.push_back(token);
  starts_[static_cast<unsigned char>(token.content[0])] = true;
}

int AddedTokenMatcher::LongestAt(std::string_view text, size_t pos, size_t* end) const {
  int longest = -1;
  uint32_t node = 0;
  while (pos < text.size()) {
    const auto it = edges_.find(EdgeOf(node, text[pos++]));
    if (it == edges_.end()) break;
    node = it->second;
    if (token_at_[node] >= 0) {
      longest = token_at_[node];
      *end = pos;
    }
  }
  return longest;
}

std::vector<AddedTokenMatcher::Segment> AddedTokenMatcher::Split(std::string_view text) const {
  std::vector<Segment> segments;
  size_t done = 0;  // text before it is in `segments`
  size_t pos = 0;
  while (pos < text.size()) {
    size_t match_end = 0;
    const int index =
        starts_[static_cast<unsigned char>(text[pos])] ? LongestAt(text, pos, &match_end) : -1;
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t start = pos, end = match_end;
    pos = match_end;
    if (token.single_word && !StandsAlone(text, start, end)) continue;
    while (token.lstrip && start > done) {
      const size_t before = PreviousChar(text, start);
      if (before < done || !CharAt(text, before).In(kWhiteSpace)) break;
      start = before;
    }
    if (token.rstrip) {
      for (TextChar c = CharAt(text, end); c.In(kWhiteSpace); c = CharAt(text, end)) {
        end += c.size_bytes;
      }
    }
    // A match may start before `done`, with white space that an rstrip has taken: both count.
    if (start > done) segments.push_back({text.substr(done, start - done), -1});
    segments.push_back({text.substr(start, end - start), token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), -1});
  return segments;
}

}  // namespace tern
