// EngineRun: a real checkpoint in an EngineCore, step by step, with the bits of all that it
// computes. Thread: tests only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine_core.h"
#include "models/registry.h"

namespace tern::test_run {

inline constexpr int64_t kPageTokens = 8;

struct Sink final : TokenSink {
  explicit Sink(const int64_t& step) : step(step) {}
  void OnToken(TokenEvent event) override {
    tokens.push_back(event.token);
    steps.push_back(step);
  }
  void OnFinish(FinishEvent event) override { finish = std::move(event); }
  const int64_t& step;
  std::vector<int32_t> tokens;
  std::vector<int64_t> steps;  // when each came
  std::optional<FinishEvent> finish;
};

// Hashes of all float bits of the logits, by request and position.
using Logits = std::map<std::pair<RequestId, int64_t>, std::set<uint64_t>>;

class Recorder final : public Model {
 public:
  explicit Recorder(Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }
  Status Forward(const ForwardBatch& batch, float* logits) override {
    TERN_RETURN_IF_ERROR(model_.Forward(batch, logits));
    const auto vocab = static_cast<size_t>(info().vocab_size);
    const ForwardRun* run = batch.runs.data();
    for (size_t row = 0; row < batch.logit_rows.size(); ++row) {
      while (batch.logit_rows[row] >= run->first_row + run->rows) ++run;
      const int64_t position = run->first_position + batch.logit_rows[row] - run->first_row;
      const RequestId id = owner(run->kv.pages[static_cast<size_t>(position / kPageTokens)]);
      rows[{id, position}].insert(Hash64(std::as_bytes(std::span(logits + row * vocab, vocab))));
    }
    return OkStatus();
  }
  std::function<RequestId(const std::byte* page)> owner;  // of a page that is being written
  Logits rows;

 private:
  Model& model_;
};

struct Loaded {
  explicit Loaded(const std::string& name) : pool(2) {
    ops = Ops::Create("", pool).value();
    model = LoadModel(TERN_SOURCE_DIR "/tests/data/golden/" + name, *ops, {}).value();
  }
  ThreadPool pool;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
};

struct Outcome {
  Logits logits;
  // The seals of all pages of a request, by the rows that it had.
  std::map<std::pair<RequestId, int64_t>, uint64_t> seals;
  std::vector<std::shared_ptr<Sink>> sinks;
  std::set<RequestId> ended;  // by a failed page
  IntegrityStats stats;
};

class EngineRun {
 public:
  EngineRun(Loaded& loaded, IntegrityOptions integrity, int64_t total_tokens = 8192,
            bool deterministic_inference = false)
      : recorder_(*loaded.model) {
    EngineOptions options = {.page_tokens = kPageTokens,
                             .max_running_requests = 32,
                             .chunked_prefill_size = 64,
                             .deterministic_inference = deterministic_inference,
                             .integrity = integrity,
                             .kv_verify_interval_us = 0,
                             .random_seed = 1};
    const MemoryPlan plan = PlanMemory(recorder_.info(), {.page_tokens = kPageTokens,
                                                          .max_total_tokens = total_tokens,
                                                          .available_bytes = uint64_t{1} << 33})
                                .value();
    core = EngineCore::Create(recorder_, loaded.pool, options, plan, 1, clock_, nullptr).value();
    recorder_.owner = [this](const std::byte* base) {
      const PageId page = *core->kv().pool().PageAt(base);
      for (const auto& sequence : core->queues().running) {
        if (sequence->lease.Holds(page)) return sequence->id;
      }
      return RequestId{0};
    };
  }

  RequestId Submit(std::vector<int32_t> prompt, int64_t max_new) {
    GenerateRequest request;
    request.tokens = std::move(prompt);
    request.sampling.temperature = 1.0;
    request.sampling.seed = 7;
    request.sampling.max_new_tokens = max_new;
    request.sampling.ignore_eos = true;
    outcome.sinks.push_back(std::make_shared<Sink>(step));
    const auto id = static_cast<RequestId>(outcome.sinks.size());
    core->Submit(id, std::move(request), outcome.sinks.back(), 0);
    return id;
  }

  bool Step() {
    const bool more = core->Step();
    clock_.AdvanceUs(1000);
    ++step;
    NoteSeals();
    const PagePool& pool = core->kv().pool();
    EXPECT_EQ(pool.count(PageState::kFree) + pool.count(PageState::kCached) +
                  pool.count(PageState::kHeld) + pool.count(PageState::kQuarantined),
              pool.pages());
    EXPECT_TRUE(core->CheckInvariants().ok()) << core->CheckInvariants().ToString();
    return more;
  }
  void Steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) Step();
  }
  void RunAll() {
    while (Step()) ASSERT_LT(step, 20'000);
  }

  Outcome Finish() {
    RunAll();
    for (size_t i = 0; i < outcome.sinks.size(); ++i) {
      const FinishEvent& finish = *outcome.sinks[i]->finish;
      if (finish.status.code() == StatusCode::kDataLoss) outcome.ended.insert(i + 1);
    }
    outcome.stats = core->Stats().integrity;
    outcome.logits = std::move(recorder_.rows);
    return std::move(outcome);
  }

  Sequence* Live(RequestId id) {
    for (const auto& sequence : core->queues().running) {
      if (sequence->id == id) return sequence.get();
    }
    return nullptr;
  }
  std::set<RequestId> HoldersOf(PageId page) {
    std::set<RequestId> ids;
    for (const auto& sequence : core->queues().running) {
      if (sequence->lease.Holds(page)) ids.insert(sequence->id);
    }
    return ids;
  }

  std::unique_ptr<EngineCore> core;
  Outcome outcome;
  int64_t step = 0;

 private:
  void NoteSeals() {
    const SealTable* seals = core->kv().seals();
    if (seals == nullptr) return;
    for (const auto& sequence : core->queues().running) {
      uint64_t hash = 0;
      for (const PageRef& page : sequence->lease.expected()) {
        for (int64_t layer = 0; layer < core->kv().format().layers(); ++layer) {
          const Seal seal = seals->seal(page.id, layer);
          hash = Hash64(std::as_bytes(std::span(&seal.sum, 1)),
                        hash + static_cast<uint64_t>(seal.rows));
        }
      }
      outcome.seals[{sequence->id, sequence->computed}] = hash;
    }
  }

  Recorder recorder_;
  ManualClock clock_;
};

}  // namespace tern::test_run
