// KvFaults: mistakes that the KV cache can be told to make, so that tests can show that tags,
// invariants and the simulator catch them. All off outside tests. Thread: values.
#pragma once

namespace tern {

struct KvFaults {
  bool reuse_without_new_tag = false;  // freeing and allocating keep a page's old tag
  bool free_while_referenced = false;  // releasing a lease frees a page that the tree still lists
  bool match_across_salts = false;     // the prefix cache ignores extra_key and cache_salt

  friend bool operator==(const KvFaults&, const KvFaults&) = default;
};

}  // namespace tern
