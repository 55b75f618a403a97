// KvFaults: mistakes that the KV cache can be told to make, so that tests can show that tags,
// invariants and the simulator catch them. Only builds with the option TERN_FAULTS can make any: in
// others every member is the constant false and the code behind it is not there. Thread: values.
#pragma once

#include <type_traits>

namespace tern {

#ifndef TERN_FAULTS
#error "link tern_kv: it says whether there are faults"
#endif

#if TERN_FAULTS

struct KvFaults {
  bool reuse_without_new_tag = false;  // freeing and allocating keep a page's old tag
  bool free_while_referenced = false;  // releasing a lease frees a page that the tree still lists
  bool match_across_salts = false;     // the prefix cache ignores extra_key and cache_salt
};

#else

struct KvFaults {
  static constexpr bool reuse_without_new_tag = false;
  static constexpr bool free_while_referenced = false;
  static constexpr bool match_across_salts = false;
};
static_assert(std::is_empty_v<KvFaults>);

#endif

}  // namespace tern
