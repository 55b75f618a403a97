// Bpe: byte-pair encoding of one piece of text, and the vocabulary it needs.
// Made once at start, immutable afterwards. Thread: const methods may be called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace tern {

// Ids of byte strings: open addressing over strings that the owner keeps alive.
class TokenTable {
 public:
  static constexpr TokenId kNone = -1;

  void Reserve(size_t count);
  // False when `bytes` is there already. REQUIRES: room was reserved; `bytes` outlives the table.
  bool Insert(std::string_view bytes, TokenId id);
  TokenId Find(std::string_view bytes) const;

 private:
  struct Slot {
    std::string_view bytes;
    uint32_t hash = 0;
    TokenId id = kNone;
  };
  // Where `bytes` are or would be.
  size_t IndexOf(std::string_view bytes, uint32_t hash) const;
  std::vector<Slot> slots_;  // a power of two, at most half full
};

// What two neighbouring tokens become: (left, right) -> (rank, token). Lower ranks merge first.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    TokenId token;
  };

  void Reserve(size_t count);
  // The last one counts when a pair is given twice. REQUIRES: room was reserved.
  void Insert(TokenId left, TokenId right, Merge merge);
  // Null: they do not merge.
  const Merge* Find(TokenId left, TokenId right) const {
    const uint64_t key = KeyOf(left, right);
    for (size_t i = Start(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{};
  };
  static uint64_t KeyOf(TokenId left, TokenId right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t Start(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & mask_;
  }
  std::vector<Slot> slots_{1};
  size_t mask_ = 0;
};

// Two tokens that become one, made of their bytes. Lower ranks merge first, then the leftmost pair.
struct MergeRule {
  TokenId left, right, token;
  uint32_t rank;
};

struct BpeOptions {
  bool ignore_merges = false;  // a whole piece that is in the vocabulary is one token
  std::optional<TokenId> unk;  // for bytes that have no token; without it they are left out
  bool fuse_unk = false;       // neighbouring unknown bytes become one `unk`
};

class Bpe {
 public:
  // By id; nullopt: no such token, or one that plain text never gives (special tokens).
  using Vocabulary = std::vector<std::optional<std::string_view>>;

  // REQUIRES: all ids in `merges` are below vocabulary.size(), and the bytes outlive this object.
  Bpe(const Vocabulary& vocabulary, const std::vector<MergeRule>& merges, BpeOptions options);

  // The merges of a vocabulary that has none of its own, as tiktoken does it: two tokens merge when
  // their bytes together are a token, and that token's id is the rank. The cost is the number of
  // bytes times the length of the longest token.
  static std::vector<MergeRule> MergesByRank(const Vocabulary& vocabulary);

  // Appends the tokens of one piece. O(n log n) in its bytes.
  void Encode(std::string_view piece, std::vector<TokenId>* out) const;

 private:
  // The tokens of single bytes.
  void AppendBytes(std::string_view piece, std::vector<TokenId>* out) const;
  void Merge(std::string_view piece, std::vector<TokenId>* out) const;
  // Merge the tokens of *out from `begin` on, to the end.
  void MergeShort(size_t begin, std::vector<TokenId>* out) const;
  void MergeLong(size_t begin, std::vector<TokenId>* out) const;

  BpeOptions options_;
  std::array<TokenId, 256> token_of_byte_;
  MergeTable merges_;
  // Pieces that are one token: all of the vocabulary with ignore_merges, else those that merging
  // gives as well (a token need not be reachable: its parts may merge in another order).
  TokenTable whole_;
};

}  // namespace tern
