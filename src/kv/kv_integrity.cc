#include "kv/kv_integrity.h"

namespace tern {

const char* KvViolationName(KvViolationKind kind) {
  switch (kind) {
    case KvViolationKind::kBlockTable:
      return "block_table";
    case KvViolationKind::kTag:
      return "tag";
    case KvViolationKind::kChain:
      return "chain";
    case KvViolationKind::kRows:
      return "rows";
    case KvViolationKind::kOwner:
      return "owner";
    case KvViolationKind::kUnwritten:
      return "unwritten";
    case KvViolationKind::kSeal:
      return "seal";
  }
  return "unknown";
}

}  // namespace tern
