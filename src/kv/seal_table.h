// SealTable: the seals of all pages of a pool, kept apart from the pages: who can damage a row
// can't mend its seal by the same mistake. A page's seals grow as rows are written to it and are
// forgotten when it gets another owner. Owner: KvCache. Thread: the engine thread; Extend and
// Matches share their work with the pool's threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kv/page_pool.h"
#include "kv/seal.h"

namespace tern {

class SealTable {
 public:
  // `pages`, which the table tells when one is good, and `threads` outlive the table.
  SealTable(PagePool& pages, ThreadPool& threads);

  // Rows of one page that a pass has written, or is about to write.
  struct Rows {
    PageId page{};
    int64_t first_position = 0, rows = 0;
  };
  // Marks rows as not yet written. No number format has the mark: each is made of NaNs that no
  // conversion makes.
  static void Mark(const PagePool& pages, std::byte* base, const Rows& rows);

  // The page is somebody else's now: no row of it is sealed.
  void Forget(PageId page) { entries_[Index(page)] = {}; }
  // Takes over the seals that another engine made: sums[layer] of all rows of a page.
  void Adopt(const Rows& rows, std::span<const uint64_t> sums, int64_t now_us);
  // Takes over the seals of rows that were copied from the same places in `source`: their hashes,
  // taken where they are now, and those of the source's other rows must add up to its seals. False,
  // and no change, when they don't.
  bool AdoptCopy(const Rows& rows, PageId source, int64_t now_us);
  // Adds rows to their pages' seals, in the order of positions. Appends to *unwritten the pages
  // with a row that still has the mark. `written` lists a page once at most.
  void Extend(std::span<const Rows> written, int64_t now_us, std::vector<PageId>* unwritten);

  // Whether all sealed rows of the page are as they were written. Remembers when it was so.
  bool Matches(PageId page, int64_t now_us);

  int64_t rows(PageId page) const { return entries_[Index(page)].rows; }
  // The seal of one layer of a page.
  Seal seal(PageId page, int64_t layer) const {
    if (rows(page) == 0) return {};
    return {sums_[Index(page) * layers_ + static_cast<size_t>(layer)], rows(page)};
  }
  // When the page was last known to be good: by Matches, or because it was empty.
  int64_t good_us(PageId page) const { return entries_[Index(page)].good_us; }

 private:
  struct Entry {
    int64_t first_position = 0, rows = 0;
    int64_t good_us = 0;
  };
  static size_t Index(PageId page) { return static_cast<size_t>(page); }
  void NoteGood(PageId page, int64_t now_us) {
    entries_[Index(page)].good_us = now_us;
    pages_.NoteVerified(page);
  }
  // Whether agrees(layer) holds for all layers, which the workers share. rows: hashed by one call.
  template <typename Fn>
  bool AllLayers(int64_t rows, const Fn& agrees);

  PagePool& pages_;
  ThreadPool& threads_;
  const size_t layers_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> sums_;      // [pages, layers]
  std::vector<uint8_t> unwritten_;  // by index in `written`; kept to keep its memory
};

}  // namespace tern
