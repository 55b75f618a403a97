// What KV integrity checks, and what a failed check says. docs/integrity.md lists the mistakes that
// each check catches. Thread: values.
#pragma once

#include <cstdint>

#include "kv/page_pool.h"

namespace tern {

enum class KvIntegrity : uint8_t {
  kOff,     // pages have tags, nobody compares them
  kTags,    // identity: block table, tags, chains and row counts
  kSealed,  // contents too: hashes of all rows
};

enum class KvViolationKind : uint8_t {
  kBlockTable,  // the table that kernels read is not what the holder recorded
  kTag,         // side table or header show another tag: freed, given away, damaged
  kChain,       // the page was written for other tokens or another tenant
  kRows,        // it has more or fewer rows than its holder wrote or found
  kOwner,       // it changed hands while a pass wrote it
  kUnwritten,   // a pass left out a row that it should have written
  kSeal,        // the bytes of its rows have changed
};
inline constexpr int kKvViolationKinds = 7;

// "block_table", for logs and metrics.
const char* KvViolationName(KvViolationKind kind);

// Whether the page itself can't be trusted any more, so that all who hold it must end. Otherwise
// only the one whose records disagree must.
inline bool PageHasFailed(KvViolationKind kind) {
  return kind == KvViolationKind::kTag || kind == KvViolationKind::kOwner ||
         kind == KvViolationKind::kUnwritten || kind == KvViolationKind::kSeal;
}

struct KvViolation {
  KvViolationKind kind{};
  PageId page{};
  int64_t good_us = 0;  // when the page was last seen to be good, by this kind of check
};

}  // namespace tern
