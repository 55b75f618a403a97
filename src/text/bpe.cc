#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "base/hash.h"

namespace tern {
namespace {

size_t SlotsFor(size_t count) { return std::bit_ceil(std::max<size_t>(8, 2 * count)); }

// Up to this many bytes a search over all neighbours is faster than a heap.
constexpr size_t kShortPiece = 48;

}  // namespace

void TokenTable::Reserve(size_t count) { slots_.assign(SlotsFor(count), {}); }

size_t TokenTable::IndexOf(std::string_view bytes, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.id == kNone || (slot.hash == hash && slot.bytes == bytes)) return i;
  }
}

bool TokenTable::Insert(std::string_view bytes, TokenId id) {
  const auto hash = static_cast<uint32_t>(Hash64(bytes));
  Slot& slot = slots_[IndexOf(bytes, hash)];
  if (slot.id != kNone) return false;
  slot = {bytes, hash, id};
  return true;
}

TokenId TokenTable::Find(std::string_view bytes) const {
  if (slots_.empty()) return kNone;
  return slots_[IndexOf(bytes, static_cast<uint32_t>(Hash64(bytes)))].id;
}

void MergeTable::Reserve(size_t count) {
  slots_.assign(SlotsFor(count), {});
  mask_ = slots_.size() - 1;
}

void MergeTable::Insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = KeyOf(left, right);
  size_t i = Start(key);
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, merge};
}

Bpe::Bpe(const Vocabulary& vocabulary, const std::vector<MergeRule>& merges, BpeOptions options)
    : options_(options) {
  token_of_byte_.fill(TokenTable::kNone);
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary[id] || vocabulary[id]->size() != 1) continue;
    token_of_byte_[static_cast<unsigned char>((*vocabulary[id])[0])] = static_cast<TokenId>(id);
  }
  merges_.Reserve(merges.size());
  for (const MergeRule& m : merges) merges_.Insert(m.left, m.right, {m.rank, m.token});
  whole_.Reserve(vocabulary.size());
  std::vector<TokenId> merged;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary[id] || vocabulary[id]->empty()) continue;
    const auto token = static_cast<TokenId>(id);
    if (!options_.ignore_merges) {
      merged.clear();
      Merge(*vocabulary[id], &merged);
      if (merged != std::vector<TokenId>{token}) continue;
    }
    whole_.Insert(*vocabulary[id], token);
  }
}

std::vector<MergeRule> Bpe::MergesByRank(const Vocabulary& vocabulary) {
  TokenTable ids;
  ids.Reserve(vocabulary.size());
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary[id]) ids.Insert(*vocabulary[id], static_cast<TokenId>(id));
  }
  std::vector<MergeRule> merges;
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary[id]) continue;
    const std::string_view bytes = *vocabulary[id];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const TokenId left = ids.Find(bytes.substr(0, cut));
      if (left == TokenTable::kNone) continue;
      const TokenId right = ids.Find(bytes.substr(cut));
      if (right == TokenTable::kNone) continue;
      merges.push_back({left, right, static_cast<TokenId>(id), static_cast<uint32_t>(id)});
    }
  }
  return merges;
}

void Bpe::Encode(std::string_view piece, std::vector<TokenId>* out) const {
  if (const TokenId whole = whole_.Find(piece); whole != TokenTable::kNone) {
    out->push_back(whole);
  } else {
    Merge(piece, out);
  }
}

void Bpe::AppendBytes(std::string_view piece, std::vector<TokenId>* out) const {
  bool after_unk = false;
  for (const char byte : piece) {
    const TokenId token = token_of_byte_[static_cast<unsigned char>(byte)];
    const bool unknown = token == TokenTable::kNone;
    if (!unknown) {
      out->push_back(token);
    } else if (options_.unk && !(options_.fuse_unk && after_unk)) {
      out->push_back(*options_.unk);
    }
    after_unk = unknown;
  }
}

void Bpe::Merge(std::string_view piece, std::vector<TokenId>* out) const {
  const size_t begin = out->size();
  AppendBytes(piece, out);
  if (out->size() - begin <= kShortPiece) {
    MergeShort(begin, out);
  } else {
    MergeLong(begin, out);
  }
}

void Bpe::MergeShort(size_t begin, std::vector<TokenId>* out) const {
  constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
  TokenId* tokens = out->data() + begin;
  size_t size = out->size() - begin;
  std::array<MergeTable::Merge, kShortPiece> next;  // of tokens i and i+1
  const auto lookup = [&](size_t i) {
    const MergeTable::Merge* merge = merges_.Find(tokens[i], tokens[i + 1]);
    next[i] = merge ? *merge : MergeTable::Merge{kNever, 0};
  };
  for (size_t i = 0; i + 1 < size; ++i) lookup(i);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (next[i].rank < next[best].rank) best = i;
    }
    if (next[best].rank == kNever) break;
    tokens[best] = next[best].token;
    --size;
    std::copy(tokens + best + 2, tokens + size + 1, tokens + best + 1);
    std::copy(next.data() + best + 1, next.data() + size, next.data() + best);
    if (best > 0) lookup(best - 1);
    if (best + 1 < size) lookup(best);
  }
  out->resize(begin + size);
}

void Bpe::MergeLong(size_t begin, std::vector<TokenId>* out) const {
  constexpr size_t kEnd = std::numeric_limits<size_t>::max();
  struct Symbol {
    TokenId token;  // kNone: merged into the symbol on its left
    size_t left, right;
  };
  struct Candidate {
    uint32_t rank;
    size_t position;
    TokenId left, right, token;                     // as they were when the candidate was found
    bool operator<(const Candidate& other) const {  // std::priority_queue gives the largest first
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };

  const size_t size = out->size() - begin;
  std::vector<Symbol> symbols(size);
  for (size_t i = 0; i < size; ++i) {
    symbols[i] = {(*out)[begin + i], i == 0 ? kEnd : i - 1, i + 1 == size ? kEnd : i + 1};
  }
  std::vector<Candidate> found;
  found.reserve(size);
  const auto candidate_at = [&](size_t position) -> std::optional<Candidate> {
    if (position == kEnd || symbols[position].right == kEnd) return std::nullopt;
    const TokenId left = symbols[position].token;
    const TokenId right = symbols[symbols[position].right].token;
    const MergeTable::Merge* merge = merges_.Find(left, right);
    if (merge == nullptr) return std::nullopt;
    return Candidate{merge->rank, position, left, right, merge->token};
  };
  for (size_t i = 0; i < size; ++i) {
    if (const auto candidate = candidate_at(i)) found.push_back(*candidate);
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(found));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.position];
    if (left.token != best.left || left.right == kEnd) continue;
    Symbol& right = symbols[left.right];
    if (right.token != best.right) continue;
    left.token = best.token;
    right.token = TokenTable::kNone;
    left.right = right.right;
    if (left.right != kEnd) symbols[left.right].left = best.position;
    for (const size_t position : {left.left, best.position}) {
      if (const auto candidate = candidate_at(position)) queue.push(*candidate);
    }
  }
  out->resize(begin);
  for (const Symbol& symbol : symbols) {
    if (symbol.token != TokenTable::kNone) out->push_back(symbol.token);
  }
}

}  // namespace tern
