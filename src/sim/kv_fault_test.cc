// Every mistake of docs/integrity.md, made on purpose: with its check it is caught and nobody who
// ends well has a wrong answer; without its check it goes unseen, and where it can, it corrupts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/metrics.h"
#include "engine/engine_core.h"
#include "kv/kv_sabotage.h"
#include "sim/toy_reference.h"

#if TERN_FAULTS

namespace tern {
namespace {

using enum KvViolationKind;
using Tokens = std::vector<int32_t>;

struct Recorder final : TokenSink {
  void OnToken(TokenEvent event) override { tokens.push_back(event.token); }
  void OnFinish(FinishEvent event) override { finish = std::move(event); }
  Tokens tokens;
  std::optional<FinishEvent> finish;
};

// The toy model, with hands in its passes.
class TamperedModel final : public Model {
 public:
  const ModelInfo& info() const override { return toy->info(); }
  Status Forward(const ForwardBatch& batch, float* logits) override {
    if (const auto hand = std::exchange(before, nullptr)) hand(batch);
    TERN_RETURN_IF_ERROR(toy->Forward(batch, logits));
    if (const auto hand = std::exchange(after, nullptr)) hand(batch);
    return OkStatus();
  }
  std::optional<ToyModel> toy{ToyOptions{}};
  std::function<void(const ForwardBatch&)> before, after;  // of the next pass
};

struct Client {
  RequestId id = 0;
  ToyOptions toy;  // of the weights that answer it
  GenerateRequest request;
  std::shared_ptr<Recorder> sink = std::make_shared<Recorder>();

  Tokens Want() const {
    return AnswerOf(toy, request.tokens, request.sampling, toy.context_length).tokens;
  }
  bool EndedWell() const {
    return sink->finish && (sink->finish->reason == FinishEvent::Reason::kStop ||
                            sink->finish->reason == FinishEvent::Reason::kLength);
  }
  bool EndedByIntegrity() const {
    return sink->finish && sink->finish->status.code() == StatusCode::kDataLoss;
  }
  int64_t cached_tokens() const { return sink->finish ? sink->finish->cached_tokens : -1; }
};

class World {
 public:
  World(KvIntegrity mode, KvFaults faults, IntegrityAction action = IntegrityAction::kAbort) {
    EngineOptions options = {.page_tokens = 4,
                             .integrity = {.mode = mode, .action = action},
                             .kv_verify_interval_us = 0,
                             .random_seed = 1};
    const MemoryPlan plan =
        PlanMemory(model.info(),
                   {.page_tokens = 4, .max_total_tokens = 256, .available_bytes = 1 << 30})
            .value();
    core = EngineCore::Create(model, pool_, options, plan, 1, clock_, nullptr).value();
    core->kv().InjectFaults(faults);
    // Who has nothing to do with what happens, and must not notice.
    bystander = Start({20, 21, 22, 23, 20, 21}, 30);
    Step(2);
  }

  std::shared_ptr<Client> Start(Tokens prompt, int64_t max_new = 16, std::string salt = "") {
    auto client = std::make_shared<Client>();
    client->id = clients.size() + 1;
    client->toy = toy_;
    client->request = {
        .tokens = std::move(prompt),
        .sampling = {.temperature = 0, .max_new_tokens = max_new, .ignore_eos = true},
        .cache_salt = std::move(salt)};
    clients.push_back(client);
    core->Submit(client->id, client->request, client->sink, 0);
    return client;
  }
  void Step(int steps = 1) {
    for (int i = 0; i < steps; ++i) {
      core->Step();
      clock_.AdvanceUs(1000);
    }
  }
  void RunAll() {
    for (int i = 0; i < 1000 && !core->idle(); ++i) Step();
    EXPECT_TRUE(core->idle());
  }
  KvLease& LeaseOf(const std::shared_ptr<Client>& client) {
    for (const auto& sequence : core->queues().running) {
      if (sequence->id == client->id) return sequence->lease;
    }
    ADD_FAILURE() << "request " << client->id << " is not running";
    static KvLease none;
    return none;
  }
  PageId PageOf(const std::shared_ptr<Client>& client, size_t index) {
    return LeaseOf(client).expected()[index].id;
  }
  std::byte* BaseOf(const std::shared_ptr<Client>& client, size_t index) {
    return core->kv().MutablePage(PageOf(client, index));
  }
  KvSaboteur saboteur() { return KvSaboteur(core->kv()); }
  // Other weights answer from now on.
  void Reload() {
    ++toy_.weights;
    model.toy.emplace(toy_);
  }
  // Another row format, of the same size.
  PageFormat TiledFormat() const {
    return PageFormat::Make(model.info().kv_layers, KvFormat::kFp8Tiled, 4).value();
  }

  TamperedModel model;
  std::unique_ptr<EngineCore> core;
  std::vector<std::shared_ptr<Client>> clients;
  std::shared_ptr<Client> bystander;
  bool leak = false;  // a tenant got another's pages

 private:
  ToyOptions toy_;
  ThreadPool pool_{1};
  ManualClock clock_;
};

// The bytes of one row of one layer.
std::vector<std::byte> RowBytes(const KvView& kv, int64_t layer, int64_t position) {
  std::vector<std::byte> bytes;
  const int64_t page_tokens = kv.format->page_tokens();
  for (const KvRowPart& part : kv.format->row_parts(layer)) {
    const std::byte* row = kv.pages[size_t(position / page_tokens)] + part.offset_bytes +
                           position % page_tokens * part.row_bytes;
    bytes.insert(bytes.end(), row, row + part.row_bytes);
  }
  return bytes;
}
void PutRow(const KvView& kv, int64_t layer, int64_t position,
            const std::vector<std::byte>& bytes) {
  const int64_t page_tokens = kv.format->page_tokens();
  const std::byte* next = bytes.data();
  for (const KvRowPart& part : kv.format->row_parts(layer)) {
    std::memcpy(kv.pages[size_t(position / page_tokens)] + part.offset_bytes +
                    position % page_tokens * part.row_bytes,
                next, size_t(part.row_bytes));
    next += part.row_bytes;
  }
}

// In the next pass, the row that the batch's last run writes last goes to another place: what its
// own place held before stays there.
void MisplaceNextRow(World& world, int64_t to_layer, int64_t position_shift) {
  auto saved = std::make_shared<std::vector<std::byte>>();
  const auto place = [](const ForwardBatch& batch) {
    const ForwardRun& run = batch.runs.back();
    return run.first_position + run.rows - 1;
  };
  world.model.before = [=](const ForwardBatch& batch) {
    *saved = RowBytes(batch.runs.back().kv, 0, place(batch));
  };
  world.model.after = [=](const ForwardBatch& batch) {
    const KvView& kv = batch.runs.back().kv;
    const std::vector<std::byte> row = RowBytes(kv, 0, place(batch));
    PutRow(kv, 0, place(batch), *saved);
    if (to_layer >= 0) PutRow(kv, to_layer, place(batch) + position_shift, row);
  };
}

struct FaultCase {
  const char* name;
  KvIntegrity mode;
  std::vector<KvViolationKind> catchers;  // any of them; without them all it goes unseen
  bool corrupts;                          // unseen, it changes an answer or crosses tenants
  std::function<void(KvFaults&)> faults;  // mistakes of the code
  std::function<void(World&)> run;        // what happens, damage included
};

const Tokens kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
constexpr uint64_t kOtherModel = 2;  // no engine's key

std::vector<FaultCase> Cases() {
  const auto none = [](KvFaults&) {};
  using enum KvIntegrity;
  return {
      {"DoubleOwner",
       kTags,
       {kTag, kRows, kChain, kOwner},
       true,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 20);
         w.Step(3);
         w.saboteur().GiveAway(w.PageOf(a, 0));
         w.Start({11, 12, 13, 14, 15, 16}, 12);
       }},
      {"DoubleOwnerUnderOneTag",
       kTags,
       {kTag, kRows, kChain, kOwner},
       true,
       [](KvFaults& f) { f.reuse_without_new_tag = true; },
       [](World& w) {
         const auto a = w.Start(kPrompt, 20);
         w.Step(3);
         w.saboteur().GiveAway(w.PageOf(a, 0));
         w.Start({11, 12, 13, 14, 15, 16}, 12);
       }},
      {"PageFreedUnderItsHolder",
       kTags,
       {kTag, kRows, kChain, kOwner},
       true,
       none,
       [](World& w) {
         const auto a = w.Start({1, 2, 3}, 20);
         w.Step(6);
         w.saboteur().Free(w.PageOf(a, 1));
         w.Start({11, 12, 13, 14, 15, 16}, 12);
       }},
      {"StaleBlockTableEntry",
       kTags,
       {kBlockTable, kOwner},
       true,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 20);
         w.Step(3);
         KvSaboteur::Redirect(w.LeaseOf(a), 1, w.BaseOf(w.bystander, 0));
       }},
      {"BlockTableChangesDuringThePass",
       kTags,
       {kBlockTable, kOwner},
       true,
       none,
       [](World& w) {
         const auto a = w.Start({1, 2, 3, 4, 5}, 20);
         const auto b = w.Start({1, 3, 5, 7, 9}, 20);
         w.Step(3);
         w.model.before = [&w, a, b](const ForwardBatch&) {
           KvSaboteur::Redirect(w.LeaseOf(a), 1, w.BaseOf(b, 1));
         };
       }},
      {"RecycledSlot",
       kTags,
       {kBlockTable, kOwner},
       true,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 20);
         const auto b = w.Start({11, 12, 13, 14, 15, 16, 17, 18, 19}, 20);
         w.Step(3);
         KvSaboteur::CopyTable(w.LeaseOf(b), w.LeaseOf(a));
       }},
      {"DuplicateFreedWhileTheTableStillHasIt",
       kTags,
       {kBlockTable, kOwner},
       true,
       [](KvFaults& f) { f.keep_duplicate_in_table = true; },
       [](World& w) {
         w.Start(kPrompt, 20);
         w.Start(kPrompt, 20);
         w.Step(2);
         w.Start({11, 12, 13, 14, 15, 16, 17, 18, 19}, 12);
       }},
      {"FreedPageStillInTheTree",
       kTags,
       {kTag, kRows, kChain},
       true,
       [](KvFaults& f) { f.free_while_referenced = true; },
       [](World& w) {
         w.RunAll();  // the bystander's own pages are not freed twice
         w.Start(kPrompt, 1);
         w.Step(3);
         w.Start({11, 12, 13, 14, 15, 16}, 12);
         w.Step(3);
         w.Start(kPrompt, 12);
       }},
      {"PagesSwappedInTheTree",
       kTags,
       {kChain},
       true,
       [](KvFaults& f) { f.swap_committed_pages = true; },
       [](World& w) {
         w.Start(kPrompt, 1);
         w.Step(3);
         w.Start(kPrompt, 12);
       }},
      {"PagesSwappedByTheirHolder",
       kTags,
       {kChain},
       true,
       none,
       [](World& w) {
         const auto a = w.Start({1, 2, 3}, 20);
         w.Step(12);
         KvSaboteur::Swap(w.LeaseOf(a), 0, 1);
       }},
      {"HashCollisionInThePrefixIndex",
       kTags,
       {kChain},
       true,
       [](KvFaults& f) { f.match_without_tokens = true; },
       [](World& w) {
         for (int32_t first = 1; first < 12; ++first) {
           w.Start({first, 2, 3, 4, 5, first}, 12);
           w.Step(14);
         }
       }},
      {"SaltIgnored",
       kTags,
       {kChain},
       true,
       [](KvFaults& f) { f.match_across_salts = true; },
       [](World& w) {
         w.Start(kPrompt, 2, "a");
         w.Step(4);
         const auto b = w.Start(kPrompt, 2, "b");
         w.Step(4);
         w.leak = b->cached_tokens() > 0;
       }},
      {"WrongLengthAtAPageBorder",
       kTags,
       {kRows},
       true,
       [](KvFaults& f) { f.commit_partial_page = true; },
       [](World& w) {
         const auto a = w.Start({1, 2, 3, 4, 5}, 3);
         w.Step(5);
         Tokens next = a->request.tokens;
         next.insert(next.end(), a->sink->tokens.begin(), a->sink->tokens.end());
         next.push_back(9);
         w.Start(next, 12);
       }},
      {"AbortedStepLeavesACommittedPage",
       kTags,
       {kRows},
       true,
       [](KvFaults& f) { f.commit_failed_pass = true; },
       [](World& w) {
         w.RunAll();
         w.model.toy->FailWith(Unavailable("the pass is lost"));
         w.Start(kPrompt, 12);
         w.Step();
         w.model.toy->FailWith(OkStatus());
         w.Start(kPrompt, 12);
       }},
      {"ARowTooManyIsCopied",
       kTags,
       {kChain},
       true,
       [](KvFaults& f) { f.copy_a_row_too_many = true; },
       [](World& w) {
         w.RunAll();
         w.Start(kPrompt, 1);
         w.Step(3);
         w.Start({1, 2, 3, 4, 5, 6, 20, 21, 22}, 12);
       }},
      {"TailOfAnotherTenantIsCopied",
       kTags,
       {kChain},
       true,
       [](KvFaults& f) { f.match_across_salts = true; },
       [](World& w) {
         w.Start({1, 2, 3}, 1, "a");
         w.Step(4);
         const auto b = w.Start({1, 2, 3}, 2, "b");
         w.Step(4);
         w.leak = b->cached_tokens() > 0;
       }},
      {"LayerLeftOutOfACopy",
       kSealed,
       {kSeal},
       true,
       [](KvFaults& f) { f.leave_a_layer_out_of_copies = true; },
       [](World& w) {
         w.Start(kPrompt, 1);
         w.Step(3);
         w.Start({1, 2, 3, 4, 5, 6, 20, 21, 22}, 12);
       }},
      {"BitFlipInAPageThatIsCopied",
       kSealed,
       {kSeal},
       true,
       none,
       [](World& w) {
         const auto a = w.Start({1, 2, 3}, 2);
         w.Step(1);
         const PageId page = w.PageOf(a, 0);
         w.RunAll();
         w.saboteur().FlipBit(page, 3, 0);
         w.Start({1, 2, 3, 9}, 12);
       }},
      {"DamagedHeader",
       kTags,
       {kTag},
       false,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 20);
         w.Step(3);
         w.saboteur().FlipHeaderBit(w.PageOf(a, 1), 5, 3);
       }},
      {"BitFlipInAPageInUse",
       kSealed,
       {kSeal},
       true,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 20);
         w.Step(3);
         w.saboteur().FlipBit(w.PageOf(a, 0), 9, 5);
       }},
      {"BitFlipInACachedPage",
       kSealed,
       {kSeal},
       true,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 2);
         w.Step(1);
         const PageId page = w.PageOf(a, 1);
         w.RunAll();
         w.saboteur().FlipBit(page, 3, 0);
         w.Start(kPrompt, 12);
       }},
      {"RowsOfACachedPageChangePlaces",
       kSealed,
       {kSeal},
       true,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 2);
         w.Step(1);
         const PageId page = w.PageOf(a, 1);
         w.RunAll();
         w.saboteur().SwapRows(page, 1, 2);
         w.Start(kPrompt, 12);
       }},
      {"LayersOfACachedPageChangePlaces",
       kSealed,
       {kSeal},
       true,
       none,
       [](World& w) {
         const auto a = w.Start(kPrompt, 2);
         w.Step(1);
         const PageId page = w.PageOf(a, 1);
         w.RunAll();
         w.saboteur().SwapLayers(page, 0, 1);
         w.Start(kPrompt, 12);
       }},
      {"CachedRowsAreReadInAnotherFormat",
       kSealed,
       {kSeal},
       true,
       none,
       [](World& w) {
         w.Start(kPrompt, 2);
         w.RunAll();
         w.saboteur().SetFormat(w.TiledFormat());
         w.Start(kPrompt, 12);
       }},
      {"CacheOutlivesItsFormat",
       kTags,
       {kChain},
       true,
       none,
       [](World& w) {
         w.Start(kPrompt, 2);
         w.RunAll();
         w.saboteur().SetFormat(w.TiledFormat());
         w.saboteur().SetModel(kOtherModel);
         w.Start(kPrompt, 12);
       }},
      {"CacheOutlivesItsModel",
       kTags,
       {kChain},
       true,
       none,
       [](World& w) {
         w.Start(kPrompt, 2);
         w.RunAll();
         w.Reload();
         w.saboteur().SetModel(kOtherModel);
         w.Start(kPrompt, 12);
       }},
      {"TailOutlivesItsModel",
       kTags,
       {kChain},
       true,
       none,
       [](World& w) {
         w.Start({1, 2, 3}, 1);
         w.RunAll();
         w.Reload();
         w.saboteur().SetModel(kOtherModel);
         w.Start({1, 2, 3, 9}, 12);
       }},
      {"LateWriteAfterFree",
       kSealed,
       {kSeal},
       true,
       none,
       [](World& w) {
         const auto a = w.Start({1}, 20);
         w.Step(2);
         const PageId page = w.PageOf(a, 0);
         w.core->Cancel(a->id, -1);
         const auto b = w.Start({11}, 20);
         w.Step(3);
         EXPECT_EQ(w.PageOf(b, 0), page);
         w.saboteur().WriteRow(page, 1, std::byte{42});
       }},
      {"RowWrittenUnderAnotherLayer",
       kSealed,
       {kUnwritten},
       true,
       none,
       [](World& w) {
         w.Start(kPrompt, 20);
         w.Step(2);
         MisplaceNextRow(w, 1, 0);
       }},
      {"RowWrittenUnderTheNextPosition",
       kSealed,
       {kUnwritten},
       true,
       none,
       [](World& w) {
         w.Start(kPrompt, 20);
         w.Step(2);
         MisplaceNextRow(w, 0, 1);
       }},
      {"RowWrittenOverTheLastPosition",
       kSealed,
       {kUnwritten, kSeal},
       true,
       none,
       [](World& w) {
         w.Start(kPrompt, 20);
         w.Step(2);
         MisplaceNextRow(w, 0, -1);
       }},
      {"RowLeftOut",
       kSealed,
       {kUnwritten},
       true,
       none,
       [](World& w) {
         w.Start(kPrompt, 20);
         w.Step(2);
         MisplaceNextRow(w, -1, 0);
       }},
  };
}

void Skip(KvViolationKind kind, KvFaults& faults) {
  switch (kind) {
    case kBlockTable:
      faults.skip_block_table_check = true;
      break;
    case kTag:
      faults.skip_tag_check = true;
      break;
    case kChain:
      faults.skip_chain_check = true;
      break;
    case kRows:
      faults.skip_rows_check = true;
      break;
    case kOwner:
      faults.skip_owner_check = true;
      break;
    case kUnwritten:
      faults.skip_unwritten_check = true;
      break;
    case kSeal:
      faults.skip_seal_check = true;
      break;
  }
}

class KvFault : public testing::TestWithParam<FaultCase> {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override { SetLogLevel(LogLevel::kInfo); }

  // Runs the case; returns how often one of its catchers caught something.
  int64_t Run(World& world) {
    GetParam().run(world);
    world.RunAll();
    int64_t caught = 0;
    for (const KvViolationKind kind : GetParam().catchers) {
      caught += world.core->Stats().integrity.violations[size_t(kind)];
    }
    return caught;
  }
  static int64_t WrongAnswers(const World& world) {
    int64_t wrong = world.leak ? 1 : 0;
    for (const auto& client : world.clients) {
      if (client->EndedWell() && client->sink->tokens != client->Want()) ++wrong;
    }
    return wrong;
  }
};

TEST_P(KvFault, IsCaughtAndNoWrongAnswerEndsWell) {
  KvFaults faults;
  GetParam().faults(faults);
  World world(GetParam().mode, faults);
  EXPECT_GT(Run(world), 0);
  EXPECT_EQ(WrongAnswers(world), 0);
  EXPECT_TRUE(world.bystander->EndedWell());
  const IntegrityStats stats = world.core->Stats().integrity;
  int64_t ended = 0;
  for (const auto& client : world.clients) ended += client->EndedByIntegrity() ? 1 : 0;
  EXPECT_EQ(stats.ended_requests, ended);
}

TEST_P(KvFault, GoesUnseenWithoutItsChecks) {
  KvFaults faults;
  GetParam().faults(faults);
  for (const KvViolationKind kind : GetParam().catchers) Skip(kind, faults);
  World world(GetParam().mode, faults);
  EXPECT_EQ(Run(world), 0);
  EXPECT_EQ(world.core->Stats().integrity.all_violations(), 0);
  if (GetParam().corrupts) {
    EXPECT_GT(WrongAnswers(world), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(, KvFault, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// The modes without a class's check don't catch it, and say so in nothing.
TEST(KvFaultModes, EachModeCatchesItsOwn) {
  SetLogLevel(LogLevel::kError);
  for (const FaultCase& c : Cases()) {
    for (const KvIntegrity mode : {KvIntegrity::kOff, KvIntegrity::kTags, KvIntegrity::kSealed}) {
      KvFaults faults;
      c.faults(faults);
      World world(mode, faults);
      c.run(world);
      world.RunAll();
      EXPECT_EQ(world.core->Stats().integrity.all_violations() > 0, mode >= c.mode)
          << c.name << " in mode " << static_cast<int>(mode);
    }
  }
  SetLogLevel(LogLevel::kInfo);
}

// What an operator reads in /metrics after one page of one request has failed.
TEST(KvFaultMetrics, SayWhatHappened) {
  SetLogLevel(LogLevel::kError);
  for (const IntegrityAction action : {IntegrityAction::kAbort, IntegrityAction::kRecompute}) {
    World world(KvIntegrity::kSealed, {}, action);
    const auto a = world.Start(kPrompt, 20);
    world.Step(3);
    world.saboteur().FlipHeaderBit(world.PageOf(a, 1), 5, 3);
    world.RunAll();
    world.Start(kPrompt, 2);  // finds the first page, and verifies it
    world.RunAll();
    MetricRegistry registry;
    EngineMetrics metrics(registry);
    metrics.Publish(world.core->Stats(), 0);
    const std::string text = registry.Render();
    const bool healed = action == IntegrityAction::kRecompute;
    for (const std::string& line : {std::string("violations_total{class=\"tag\"} 1"),
                                    std::string("violations_total{class=\"seal\"} 0"),
                                    fmt::format("ended_requests_total {}", healed ? 0 : 1),
                                    fmt::format("healed_total {}", healed ? 1 : 0),
                                    std::string("exposed_requests_total 0")}) {
      EXPECT_NE(text.find("\ntern:kv_integrity_" + line + "\n"), std::string::npos) << line << text;
    }
    EXPECT_NE(text.find("\ntern:kv_quarantined_pages 1\n"), std::string::npos) << text;
    for (const char* counted : {"sealed_rows_total", "swept_pages_total", "verified_pages_total"}) {
      EXPECT_NE(text.find(std::string("\ntern:kv_integrity_") + counted + " "), std::string::npos);
      EXPECT_EQ(text.find(std::string("\ntern:kv_integrity_") + counted + " 0\n"),
                std::string::npos)
          << counted;
    }
  }
  SetLogLevel(LogLevel::kInfo);
}

}  // namespace
}  // namespace tern

#endif  // TERN_FAULTS
