// KvFaults: mistakes that the KV cache can be told to make, and checks it can be told to leave out,
// so that tests can show which check catches which mistake (docs/integrity.md). Only builds with
// the option TERN_FAULTS can make any: in others every member is the constant false and the code
// behind it is not there. Damage to a live cache is kv/kv_sabotage.h. Thread: values.
#pragma once

#include <type_traits>

namespace tern {

#ifndef TERN_FAULTS
#error "link tern_kv: it says whether there are faults"
#endif

#if TERN_FAULTS
#define TERN_KV_FAULT(name) bool name = false
#else
#define TERN_KV_FAULT(name) static constexpr bool name = false
#endif

struct KvFaults {
  TERN_KV_FAULT(reuse_without_new_tag);  // freeing and allocating keep a page's old tag
  TERN_KV_FAULT(free_while_referenced);  // releasing a lease frees a page that the tree still lists
  TERN_KV_FAULT(match_across_salts);     // the prefix cache ignores extra_key and cache_salt
  TERN_KV_FAULT(match_without_tokens);   // the prefix cache trusts a short hash of the tokens
  TERN_KV_FAULT(swap_committed_pages);   // two pages change places when a prefix is cached
  TERN_KV_FAULT(commit_partial_page);    // the page that is not full is cached with the others
  TERN_KV_FAULT(commit_failed_pass);     // the rows of a pass that failed are cached
  TERN_KV_FAULT(copy_a_row_too_many);    // the prefix cache says that one more row agrees
  TERN_KV_FAULT(leave_a_layer_out_of_copies);
  TERN_KV_FAULT(keep_duplicate_in_table);  // the block table keeps a page that caching has freed

  TERN_KV_FAULT(skip_block_table_check);
  TERN_KV_FAULT(skip_tag_check);
  TERN_KV_FAULT(skip_chain_check);
  TERN_KV_FAULT(skip_rows_check);
  TERN_KV_FAULT(skip_owner_check);
  TERN_KV_FAULT(skip_unwritten_check);
  TERN_KV_FAULT(skip_seal_check);
};
#undef TERN_KV_FAULT

#if !TERN_FAULTS
static_assert(std::is_empty_v<KvFaults>);
#endif

}  // namespace tern
