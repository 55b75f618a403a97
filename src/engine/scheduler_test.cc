#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "kv/test_pool.h"

namespace tern {
namespace {

// A scheduler over a small pool, with the model's part played by hand.
class SchedulerTest : public testing::Test {
 protected:
  void Make(Scheduler::Limits limits, int64_t pages, int64_t page_tokens) {
    kv_ = KvCache::Create(TestPageFormat(page_tokens), pages, 1, {}).value();
    scheduler_ = std::make_unique<Scheduler>(limits, *kv_);
  }
  void TearDown() override {
    for (RequestId id = 1; id < next_id_; ++id) Finish(id);
  }

  RequestId Add(int64_t prompt_tokens) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = next_id_++;
    // Distinct prompts: nothing is shared.
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      sequence->tokens.push_back(static_cast<int32_t>(sequence->id * 1000 + uint64_t(i)));
    }
    sequence->prompt_tokens = prompt_tokens;
    sequence->max_tokens = 1000;
    scheduler_->Add(std::move(sequence));
    return next_id_ - 1;
  }

  // Runs a step; each complete sequence gets a token. Returns (id, rows) in batch order.
  std::vector<std::pair<RequestId, int64_t>> Step() {
    scheduler_->FillBatch(&batch_);
    std::vector<std::pair<RequestId, int64_t>> rows;
    for (const BatchEntry& entry : batch_.entries()) {
      rows.emplace_back(entry.sequence->id, entry.rows);
      const bool samples = entry.samples();
      entry.sequence->computed += entry.rows;
      if (samples) entry.sequence->tokens.push_back(7);
    }
    return rows;
  }

  void Finish(RequestId id) {
    const auto sequence = scheduler_->Remove(id);
    if (sequence != nullptr) kv_->Release(&sequence->lease);
  }

  using Rows = std::vector<std::pair<RequestId, int64_t>>;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  Batch batch_;
  RequestId next_id_ = 1;
};

TEST_F(SchedulerTest, DecodeFirstThenChunksUnderOneBudget) {
  Make({.max_running_requests = 8, .chunk_tokens = 10}, 100, 4);
  Add(6);
  Add(12);
  EXPECT_EQ(Step(), (Rows{{1, 6}, {2, 4}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 8}}));  // and one row of the budget is left
  Add(20);
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}, {3, 8}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}, {3, 8}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}, {3, 4}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}, {3, 1}}));
}

TEST_F(SchedulerTest, ManyStreamsLeaveAPromptOneRow) {
  Make({.max_running_requests = 8, .chunk_tokens = 2}, 100, 4);
  for (int i = 0; i < 3; ++i) Add(1);
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}, {3, 1}}));
  Add(2);
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}, {3, 1}, {4, 1}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}, {3, 1}, {4, 1}}));
}

TEST_F(SchedulerTest, AdmissionIsInOrderAndStopsAtTheLimit) {
  Make({.max_running_requests = 2, .chunk_tokens = 100}, 100, 4);
  Add(3);
  Add(3);
  Add(3);
  EXPECT_EQ(Step(), (Rows{{1, 3}, {2, 3}}));
  Finish(1);
  EXPECT_EQ(Step(), (Rows{{2, 1}, {3, 3}}));
}

TEST_F(SchedulerTest, ALargeRequestIsNotOvertaken) {
  Make({.max_running_requests = 8, .chunk_tokens = 100}, 4, 4);
  Add(8);   // 2 of 4 pages
  Add(12);  // does not fit beside it
  Add(1);   // would
  EXPECT_EQ(Step(), (Rows{{1, 8}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}}));
  Finish(1);
  EXPECT_EQ(Step(), (Rows{{2, 12}}));
}

TEST_F(SchedulerTest, TheYoungestIsRetractedAndComesBackFirst) {
  Make({.max_running_requests = 8, .chunk_tokens = 100}, 4, 2);
  Add(2);
  Add(2);
  EXPECT_EQ(Step(), (Rows{{1, 2}, {2, 2}}));
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}}));  // all four pages are taken
  EXPECT_EQ(Step(), (Rows{{1, 1}, {2, 1}}));
  // Request 1 needs a third page; 2 holds two and gives them back.
  EXPECT_EQ(Step(), (Rows{{1, 1}}));
  EXPECT_EQ(batch_.retracted(), 1);
  Sequence* second = scheduler_->Find(2);
  EXPECT_EQ(second->retractions, 1);
  EXPECT_EQ(second->computed, 0);
  EXPECT_EQ(second->lease.pages(), 0);
  EXPECT_EQ(second->size(), 5);  // its tokens stay
  Add(1);
  EXPECT_EQ(Step(), (Rows{{1, 1}}));  // one page is free: too few for either
  Finish(1);
  // Recomputed in one chunk. The newcomer would leave request 2 no page to grow.
  EXPECT_EQ(Step(), (Rows{{2, 5}}));
  Finish(2);
  EXPECT_EQ(Step(), (Rows{{3, 1}}));
}

// A chunk that crosses from prompt to generated positions is two runs, in two forms.
TEST_F(SchedulerTest, RecomputedRowsKeepTheirForm) {
  Make({.max_running_requests = 8, .chunk_tokens = 100}, 10, 2);
  Add(3);
  Step();
  Step();
  Sequence* sequence = scheduler_->Find(1);
  ASSERT_EQ(sequence->size(), 5);
  sequence->computed = 0;  // as after a retraction
  batch_.Clear();
  batch_.Add(*sequence, 5);
  const ForwardBatch forward = batch_.Build(*kv_);
  ASSERT_EQ(forward.runs.size(), 2u);
  EXPECT_EQ(forward.runs[0].form, RowForm::kPrefill);
  EXPECT_EQ(forward.runs[0].rows, 3);
  EXPECT_EQ(forward.runs[1].form, RowForm::kDecode);
  EXPECT_EQ(forward.runs[1].rows, 2);
  EXPECT_EQ(forward.runs[1].first_position, 3);
  EXPECT_EQ(forward.runs[1].first_row, 3);
  ASSERT_EQ(forward.logit_rows.size(), 1u);
  EXPECT_EQ(forward.logit_rows[0], 4);
  EXPECT_EQ(forward.tokens.size(), 5u);
}

}  // namespace
}  // namespace tern
