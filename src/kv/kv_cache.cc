#include "kv/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tern {
namespace {

// That a newcomer takes a page in use without a verification, at most (docs/decisions/009).
constexpr int64_t kIntervalsInUse = 5;
// One turn in so many is for pages that are only cached, also while pages in use take all that the
// sweep may cost.
constexpr int64_t kSweepsPerCachedPage = 16;

}  // namespace

bool KvLease::Holds(PageId page) const {
  return std::any_of(expected_.begin(), expected_.end(),
                     [page](const PageRef& held) { return held.id == page; });
}

// Verifies pages that are to become some sequence's, against that sequence's own tokens.
class KvCache::MatchVerifier final : public PageVerifier {
 public:
  MatchVerifier(KvCache& cache, const CacheNamespace& space, std::span<const int32_t> tokens)
      : cache_(cache), tokens_(tokens), now_us_(cache.clock_.NowUs()) {
    chains_.reserve(tokens.size() / static_cast<size_t>(cache.format().page_tokens()) + 1);
    chains_.push_back(ChainRoot(cache.options_.model_id, space));
  }

  // The chain of page `index` of the sequence, and the one before it. Neither allocates.
  uint64_t ChainOf(int64_t index) { return ChainBefore(index + 1); }
  uint64_t ChainBefore(int64_t index) {
    const auto page_tokens = static_cast<size_t>(cache_.format().page_tokens());
    while (chains_.size() <= static_cast<size_t>(index)) {
      const auto page = tokens_.subspan((chains_.size() - 1) * page_tokens, page_tokens);
      chains_.push_back(ChainNext(chains_.back(), page));
    }
    return chains_[static_cast<size_t>(index)];
  }

  Verdict Judge(PageRef page, int64_t index, bool in_use) override {
    if (cache_.options_.integrity == KvIntegrity::kOff) return Verdict::kShare;
    const int64_t page_tokens = cache_.format().page_tokens();
    std::optional<KvViolationKind> kind = cache_.CheckIdentity(page, ChainOf(index), page_tokens);
    if (!kind && !cache_.VerifySeal(page.id, in_use, now_us_)) kind = KvViolationKind::kSeal;
    if (!kind) return Verdict::kShare;
    return Refuse(*kind, page.id);
  }

  // The bytes are AdoptCopy's to verify.
  Verdict JudgeRows(PageRef page, int64_t index, std::span<const int32_t> listed,
                    int64_t rows) override {
    if (cache_.options_.integrity == KvIntegrity::kOff) return Verdict::kShare;
    const KvFaults& faults = cache_.faults_;
    const PagePool& pool = cache_.pool_;
    if (!faults.skip_tag_check && !pool.Matches(page)) {
      return Refuse(KvViolationKind::kTag, page.id);
    }
    // One that lies in the cache has a chain, and at least the rows that it is listed with.
    if (!faults.skip_rows_check &&
        (pool.rows(page.id) < static_cast<int64_t>(listed.size()) || pool.chain(page.id) == 0)) {
      return Refuse(KvViolationKind::kRows, page.id);
    }
    const auto own = tokens_.subspan(static_cast<size_t>(index * pool.format().page_tokens()));
    const auto agree = std::ranges::mismatch(own, listed).in1 - own.begin();
    if (!faults.skip_chain_check &&
        (agree < rows || pool.chain(page.id) != ChainNext(ChainBefore(index), listed))) {
      return Refuse(KvViolationKind::kChain, page.id);
    }
    cache_.good_us_[static_cast<size_t>(page.id)] = now_us_;
    return Verdict::kShare;
  }

 private:
  Verdict Refuse(KvViolationKind kind, PageId page) {
    cache_.Report(kind, page);
    return PageHasFailed(kind) ? Verdict::kCondemn : Verdict::kRefuse;
  }

  KvCache& cache_;
  const std::span<const int32_t> tokens_;
  std::vector<uint64_t> chains_;  // before page 0, then of each page
  const int64_t now_us_;
};

Result<std::unique_ptr<KvCache>> KvCache::Create(PageFormat format, int64_t pages,
                                                 uint64_t boot_nonce, Options options) {
  TERN_ASSIGN_OR_RETURN(PagePool pool, PagePool::Create(std::move(format), pages, boot_nonce));
  return std::unique_ptr<KvCache>(new KvCache(std::move(pool), options));
}

KvCache::KvCache(PagePool pool, Options options)
    : pool_(std::move(pool)),
      radix_(pool_, options.max_protected_pages),
      options_(options),
      clock_(options.clock != nullptr ? *options.clock : SystemClock()),
      good_us_(static_cast<size_t>(pool_.pages())) {
  if (options.integrity != KvIntegrity::kSealed) return;
  if (options.threads == nullptr) own_thread_ = std::make_unique<ThreadPool>(1);
  seals_ = std::make_unique<SealTable>(pool_, own_thread_ ? *own_thread_ : *options.threads);
}

int64_t KvCache::MatchPrefix(const CacheNamespace& space, std::span<const int32_t> tokens,
                             int64_t first_decode_row, KvLease* lease) {
  TERN_CHECK(lease->pages() == 0);
  if (!options_.reuse_prefixes || tokens.empty()) return 0;
  const int64_t usable = Reusable(static_cast<int64_t>(tokens.size()) - 1, first_decode_row);
  // Before pages are locked.
  std::vector<PageRef> found;
  found.reserve(static_cast<size_t>(usable / format().page_tokens()));
  MakeRoom(usable / format().page_tokens(), lease);
  MatchVerifier verifier(*this, space, tokens);
  lease->prefix_ =
      radix_.MatchAndLock(space, tokens.first(static_cast<size_t>(usable)), &found, &verifier);
  for (size_t i = 0; i < found.size(); ++i) {
    Append(found[i], verifier.ChainOf(static_cast<int64_t>(i)), lease);
  }
  lease->rows_ = lease->pages() * format().page_tokens();
  return lease->rows_;
}

bool KvCache::Reserve(int64_t positions, KvLease* lease) {
  const int64_t missing = PagesFor(positions) - lease->pages();
  if (missing > available_pages()) return false;
  while (pool_.count(PageState::kFree) < missing) {
    if (radix_.Evict(1) == 0) return false;
    ++evicted_pages_;
  }
  // Before a page is taken: one that no lease lists would be lost when memory runs out.
  MakeRoom(lease->pages() + std::max<int64_t>(missing, 0), lease);
  for (int64_t i = 0; i < missing; ++i) {
    const PageRef page = *pool_.Alloc();
    if (seals_ != nullptr) seals_->Forget(page.id);
    Append(page, 0, lease);
  }
  return true;
}

int64_t KvCache::CopyRows(const CacheNamespace& space, std::span<const int32_t> tokens,
                          int64_t first_decode_row, KvLease* lease) {
  if (!options_.reuse_prefixes || tokens.empty()) return 0;
  const int64_t index = lease->shared_pages();
  const int64_t first = index * format().page_tokens();
  TERN_CHECK(lease->rows_ == first && lease->pages() > index);
  tokens = tokens.first(
      static_cast<size_t>(Reusable(static_cast<int64_t>(tokens.size()) - 1, first_decode_row)));
  MatchVerifier verifier(*this, space, tokens);
  // Nothing is evicted before the rows are copied: the source needs no lock.
  const auto found =
      radix_.FindRows(space, lease->prefix_, tokens.subspan(static_cast<size_t>(first)), &verifier);
  if (!found) return 0;
  const PageId own = lease->expected_[static_cast<size_t>(index)].id;
  const std::byte* const from = pool_.base(found->page.id);
  std::byte* const to = pool_.base(own);
  const int64_t layers = format().layers() - (faults_.leave_a_layer_out_of_copies ? 1 : 0);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const KvRowPart& part : format().row_parts(layer)) {
      std::memcpy(to + part.offset_bytes, from + part.offset_bytes,
                  static_cast<size_t>(found->rows * part.row_bytes));
    }
  }
  if (seals_ != nullptr) {
    const int64_t now_us = clock_.NowUs();
    ++verified_pages_;
    const bool good = seals_->AdoptCopy({own, first, found->rows}, found->page.id, now_us);
    match_us_ += clock_.NowUs() - now_us;
    if (!good && !faults_.skip_seal_check) {
      Report(KvViolationKind::kSeal, found->page.id);
      QuarantinePage(found->page.id);
      return 0;
    }
  }
  pool_.SetRows(own, found->rows);
  lease->rows_ += found->rows;
  copied_rows_ += found->rows;
  return found->rows;
}

void KvCache::NoteWritten(const CacheNamespace& space, std::span<const int32_t> tokens,
                          int64_t first, int64_t last, KvLease* lease,
                          std::span<const uint64_t> sums) {
  const int64_t page_tokens = format().page_tokens();
  if (const size_t most =
          to_seal_.size() + static_cast<size_t>(PagesFor(last) - first / page_tokens);
      seals_ != nullptr && sums.empty() && most > to_seal_.capacity()) {
    to_seal_.reserve(std::max(most, 2 * to_seal_.capacity()));
  }
  for (int64_t index = first / page_tokens; index * page_tokens < last; ++index) {
    const auto i = static_cast<size_t>(index);
    const PageId page = lease->expected_[i].id;
    const int64_t begin = index * page_tokens;
    const int64_t rows = std::min(page_tokens, last - begin);
    pool_.SetRows(page, rows);
    if (rows == page_tokens) {
      lease->chains_[i] = ChainOf(space, tokens, i, *lease);
      pool_.SetChain(page, lease->chains_[i]);
    }
    if (seals_ == nullptr) continue;
    if (!sums.empty()) {
      seals_->Adopt({page, begin, rows}, sums, clock_.NowUs());
    } else {
      const int64_t from = std::max(first, begin);
      to_seal_.push_back({page, from, begin + rows - from});
    }
  }
  lease->rows_ = std::max(lease->rows_, last);
}

uint64_t KvCache::ChainOf(const CacheNamespace& space, std::span<const int32_t> tokens,
                          size_t index, const KvLease& lease) const {
  const auto page_tokens = static_cast<size_t>(format().page_tokens());
  size_t at = index;  // pages from another engine may come in any order
  while (at > 0 && lease.chains_[at - 1] == 0) --at;
  uint64_t chain = at == 0 ? ChainRoot(options_.model_id, space) : lease.chains_[at - 1];
  for (; at <= index; ++at) {
    chain = ChainNext(chain, tokens.subspan(at * page_tokens, page_tokens));
  }
  return chain;
}

void KvCache::Commit(const CacheNamespace& space, std::span<const int32_t> tokens, int64_t rows,
                     int64_t first_decode_row, KvLease* lease) {
  if (!options_.reuse_prefixes) return;
  rows = Reusable(rows, first_decode_row);
  const int64_t page_tokens = format().page_tokens();
  int64_t whole = rows / page_tokens;
  if (faults_.commit_partial_page) {
    whole = std::min(PagesFor(rows), static_cast<int64_t>(tokens.size()) / page_tokens);
  }
  if (whole <= lease->shared_pages()) return;
  auto pages = std::span(lease->expected_).first(static_cast<size_t>(whole));
  std::vector<PageRef> swapped;
  if (faults_.swap_committed_pages && whole >= lease->shared_pages() + 2) {
    swapped.assign(pages.begin(), pages.end());
    std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
    pages = swapped;
  }
  MatchVerifier verifier(*this, space, tokens);
  lease->prefix_ = radix_.Insert(space, lease->prefix_, tokens, pages, &verifier);
  if (faults_.keep_duplicate_in_table || faults_.swap_committed_pages) return;
  // Where the tree had an equal page, it is this sequence's page from now on.
  for (size_t i = 0; i < pages.size(); ++i) lease->block_table_[i] = pool_.base(pages[i].id);
}

void KvCache::CommitLast(const CacheNamespace& space, std::span<const int32_t> tokens, int64_t rows,
                         int64_t first_decode_row, uint64_t session, KvLease* lease) {
  if (!options_.reuse_prefixes) return;
  Commit(space, tokens, rows, first_decode_row, lease);
  const int64_t shared = lease->shared_pages() * format().page_tokens();
  const int64_t left = Reusable(rows, first_decode_row) - shared;
  RadixCache::Node* end = lease->prefix_;
  if (left > 0 && left < format().page_tokens()) {
    end = OfferTail(space, tokens.subspan(static_cast<size_t>(shared), static_cast<size_t>(left)),
                    lease);
  }
  if (session != 0) radix_.Protect(session, end);
}

RadixCache::Node* KvCache::OfferTail(const CacheNamespace& space, std::span<const int32_t> tail,
                                     KvLease* lease) {
  const auto i = static_cast<size_t>(lease->shared_pages());
  const PageRef page = lease->expected_[i];
  const uint64_t before = i == 0 ? ChainRoot(options_.model_id, space) : lease->chains_[i - 1];
  const auto [node, taken] = radix_.InsertTail(space, lease->prefix_, tail, page);
  // What it may be copied for, whatever rows it has besides.
  if (taken) pool_.SetChain(page.id, ChainNext(before, tail));
  return node != nullptr ? node : lease->prefix_;
}

void KvCache::Release(KvLease* lease) {
  // Of a pass that memory did not suffice for.
  std::erase_if(to_seal_, [&](const SealTable::Rows& rows) { return lease->Holds(rows.page); });
  // Those that are held are this lease's own; cached ones belong to the tree, whatever place they
  // have in a list that something may have damaged.
  for (const PageRef& page : lease->expected_) {
    if (pool_.state(page.id) == PageState::kHeld) pool_.Free(page);
  }
  const int64_t shared = lease->shared_pages();
  if (faults_.free_while_referenced && shared > 0) pool_.Free(lease->expected_[0]);
  radix_.Unlock(lease->prefix_);
  lease->prefix_ = nullptr;
  lease->expected_.clear();
  lease->chains_.clear();
  lease->block_table_.clear();
  lease->rows_ = 0;
}

std::optional<KvViolationKind> KvCache::CheckIdentity(PageRef page, uint64_t chain,
                                                      int64_t rows) const {
  if (!faults_.skip_tag_check && !pool_.Matches(page)) return KvViolationKind::kTag;
  const uint64_t written = pool_.chain(page.id);
  // Unknown counts as failed: a page that is full has a chain.
  if (!faults_.skip_rows_check && (pool_.rows(page.id) != rows || (written == 0) != (chain == 0))) {
    return KvViolationKind::kRows;
  }
  if (!faults_.skip_chain_check && written != 0 && chain != 0 && written != chain) {
    return KvViolationKind::kChain;
  }
  return std::nullopt;
}

std::optional<KvViolation> KvCache::FindMismatch(const KvLease& lease, int64_t now_us) {
  if (options_.integrity == KvIntegrity::kOff) return std::nullopt;
  const int64_t page_tokens = format().page_tokens();
  int64_t rows_left = lease.rows_;
  for (size_t i = 0; i < lease.expected_.size(); ++i) {
    const PageRef page = lease.expected_[i];
    if (!faults_.skip_block_table_check && lease.block_table_[i] != pool_.base(page.id)) {
      return ViolationOf(KvViolationKind::kBlockTable, page.id);
    }
    const int64_t rows = std::clamp<int64_t>(rows_left, 0, page_tokens);
    if (const auto kind = CheckIdentity(page, lease.chains_[i], rows)) {
      return ViolationOf(*kind, page.id);
    }
    good_us_[static_cast<size_t>(page.id)] = now_us;
    rows_left -= page_tokens;
  }
  return std::nullopt;
}

void KvCache::ExpectRows(const KvLease& lease, int64_t first, int64_t last) {
  if (seals_ == nullptr) return;
  const int64_t page_tokens = format().page_tokens();
  for (int64_t position = first; position < last;) {
    const int64_t index = position / page_tokens;
    const int64_t rows = std::min(last, (index + 1) * page_tokens) - position;
    const PageId page = lease.expected_[static_cast<size_t>(index)].id;
    SealTable::Mark(pool_, pool_.base(page), {page, position, rows});
    position += rows;
  }
}

std::optional<KvViolation> KvCache::FindMismatchWritten(const KvLease& lease, int64_t first,
                                                        int64_t last) const {
  if (options_.integrity == KvIntegrity::kOff || faults_.skip_owner_check) return std::nullopt;
  // The whole table: a pass that read through a wrong entry must not count.
  for (size_t i = 0; i < lease.expected_.size(); ++i) {
    const PageRef page = lease.expected_[i];
    const int64_t begin = static_cast<int64_t>(i) * format().page_tokens();
    const bool written = begin < last && first < begin + format().page_tokens();
    if (lease.block_table_[i] != pool_.base(page.id)) {
      return ViolationOf(KvViolationKind::kBlockTable, page.id);
    }
    if (written && !pool_.Matches(page)) return ViolationOf(KvViolationKind::kOwner, page.id);
  }
  return std::nullopt;
}

std::vector<PageId> KvCache::StrayPages(const KvLease& lease, int64_t first, int64_t last) const {
  std::vector<PageId> strays;
  const int64_t page_tokens = format().page_tokens();
  for (int64_t index = first / page_tokens; index * page_tokens < last; ++index) {
    const std::byte* const base = lease.block_table_[static_cast<size_t>(index)];
    if (base == pool_.base(lease.expected_[static_cast<size_t>(index)].id)) continue;
    if (const auto page = pool_.PageAt(base)) strays.push_back(*page);
  }
  return strays;
}

void KvCache::SealWritten() {
  if (seals_ == nullptr || to_seal_.empty()) return;
  std::vector<PageId> unwritten;
  seals_->Extend(to_seal_, clock_.NowUs(), &unwritten);
  to_seal_.clear();
  if (faults_.skip_unwritten_check) return;
  for (const PageId page : unwritten) {
    Report(KvViolationKind::kUnwritten, page);
    QuarantinePage(page);
  }
}

bool KvCache::VerifySeal(PageId page, bool in_use, int64_t now_us) {
  if (seals_ == nullptr || faults_.skip_seal_check || seals_->rows(page) == 0) return true;
  const int64_t interval_us = options_.verify_interval_us * (in_use ? kIntervalsInUse : 1);
  if (interval_us > 0 && seals_->good_us(page) + interval_us > now_us) return true;
  ++verified_pages_;
  const int64_t start_us = clock_.NowUs();  // `now_us` is when the whole match began
  const bool good = seals_->Matches(page, now_us);
  match_us_ += clock_.NowUs() - start_us;
  return good;
}

bool KvCache::SweepOne(int64_t now_us) {
  if (seals_ == nullptr || faults_.skip_seal_check) return false;
  // Pages swept one after the other in one moment are each swept once.
  const int64_t interval_us = std::max<int64_t>(options_.verify_interval_us, 1);
  const bool in_use_first = (swept_pages_ + 1) % kSweepsPerCachedPage != 0;
  for (const bool in_use : {in_use_first, !in_use_first}) {
    const auto page = pool_.NextToVerify(in_use);
    if (!page || seals_->good_us(*page) + interval_us > now_us) continue;
    ++swept_pages_;
    if (!seals_->Matches(*page, now_us)) {
      Report(KvViolationKind::kSeal, *page);
      QuarantinePage(*page);
    }
    return true;
  }
  return false;
}

KvViolation KvCache::ViolationOf(KvViolationKind kind, PageId page) const {
  const bool bytes = kind == KvViolationKind::kSeal && seals_ != nullptr;
  return {kind, page, bytes ? seals_->good_us(page) : good_us_[static_cast<size_t>(page)]};
}

void KvCache::Report(KvViolationKind kind, PageId page) {
  violations_.push_back(ViolationOf(kind, page));
}

void KvCache::QuarantinePage(PageId page) {
  radix_.Condemn(page);
  if (pool_.state(page) != PageState::kQuarantined) pool_.Quarantine(page);
  if (seals_ != nullptr) seals_->Forget(page);
}

int64_t KvCache::Flush() { return radix_.Evict(radix_.evictable_pages()); }

void KvCache::MakeRoom(int64_t pages, KvLease* lease) {
  const auto needed = static_cast<size_t>(pages);
  if (needed > lease->expected_.capacity()) {
    lease->expected_.reserve(std::max({needed, 2 * lease->expected_.capacity(), size_t{16}}));
  }
  lease->chains_.reserve(lease->expected_.capacity());
  lease->block_table_.reserve(lease->expected_.capacity());
}

void KvCache::Append(PageRef page, uint64_t chain, KvLease* lease) {
  lease->expected_.push_back(page);
  lease->chains_.push_back(chain);
  lease->block_table_.push_back(pool_.base(page.id));
}

void KvCache::InjectFaults(KvFaults faults) {
  faults_ = faults;
  pool_.InjectFaults(faults);
  radix_.InjectFaults(faults);
}

Status KvCache::CheckInvariants(std::span<const KvLease* const> leases) const {
  TERN_RETURN_IF_ERROR(pool_.CheckInvariants());
  std::vector<const RadixCache::Node*> locks;
  std::vector<bool> held(static_cast<size_t>(pool_.pages()), false);
  int64_t held_pages = 0;
  for (const KvLease* lease : leases) {
    locks.push_back(lease->prefix_);
    const std::vector<PageRef> path = radix_.PathOf(lease->prefix_);
    if (path.size() > lease->expected_.size() ||
        !std::equal(path.begin(), path.end(), lease->expected_.begin())) {
      return Internal("KV lease: shared pages are not those of its prefix");
    }
    for (size_t i = path.size(); i < lease->expected_.size(); ++i) {
      const PageRef page = lease->expected_[i];
      const size_t index = static_cast<size_t>(page.id);
      // A page lost to quarantine stays in the lease until its holder's next check.
      if (pool_.state(page.id) == PageState::kQuarantined) continue;
      if (pool_.tag(page.id) != page.tag || held[index] ||
          pool_.state(page.id) != PageState::kHeld) {
        return Internal(fmt::format("KV page {}: a lease's own page has another owner", index));
      }
      held[index] = true;
      ++held_pages;
    }
  }
  if (held_pages != pool_.count(PageState::kHeld)) {
    return Internal(fmt::format("{} KV pages are held, {} by leases", pool_.count(PageState::kHeld),
                                held_pages));
  }
  TERN_RETURN_IF_ERROR(CheckSealCounts());
  return radix_.CheckInvariants(locks);
}

Status KvCache::CheckSealCounts() const {
  if (seals_ == nullptr || !to_seal_.empty()) return OkStatus();
  for (uint32_t i = 0; i < static_cast<uint32_t>(pool_.pages()); ++i) {
    const PageId page{i};
    const PageState state = pool_.state(page);
    if (state != PageState::kHeld && state != PageState::kCached) continue;
    if (seals_->rows(page) != pool_.rows(page)) {
      return Internal(fmt::format("KV page {}: {} rows are written, {} sealed", i, pool_.rows(page),
                                  seals_->rows(page)));
    }
    if (pool_.HasTurn(page) != (seals_->rows(page) > 0)) {
      return Internal(fmt::format("KV page {}: sealed and never verified, or not sealed", i));
    }
  }
  return OkStatus();
}

}  // namespace tern
