// Engine::Start with real Ops: what it refuses, and that what it starts answers. The thread itself
// is tested in sim/engine_thread_test.cc.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <future>

namespace tern {
namespace {

// Always continues with the token after the last one.
class SuccessorModel final : public Model {
 public:
  SuccessorModel() {
    info_.vocab_size = 10;
    info_.context_length = 32;
    info_.kv_layers = {{.kind = KvLayerSpec::Kind::kGqa, .kv_heads = 1, .head_dim = 4}};
  }
  const ModelInfo& info() const override { return info_; }
  Status Forward(const ForwardBatch& batch, float* logits) override {
    for (const int32_t row : batch.logit_rows) {
      for (int32_t token = 0; token < 10; ++token) {
        *logits++ = token == (batch.tokens[size_t(row)] + 1) % 10 ? 1.0f : 0.0f;
      }
    }
    return OkStatus();
  }

 private:
  ModelInfo info_;
};

struct FutureSink final : TokenSink {
  void OnToken(TokenEvent event) override { tokens.push_back(event.token); }
  void OnFinish(FinishEvent event) override { done.set_value(std::move(event)); }
  std::vector<int32_t> tokens;
  std::promise<FinishEvent> done;
};

class EngineStart : public testing::Test {
 protected:
  Result<std::unique_ptr<Engine>> Start(EngineOptions options) {
    return Engine::Start(model_, *ops_, options, registry_);
  }
  SuccessorModel model_;
  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = Ops::Create("ref", pool_).value();
  MetricRegistry registry_;
};

TEST_F(EngineStart, Answers) {
  auto engine = Start({.max_total_tokens = 128});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  auto sink = std::make_shared<FutureSink>();
  const GenerateRequest request = {.tokens = {5},
                                   .sampling = {.temperature = 0, .max_new_tokens = 7}};
  ASSERT_TRUE((*engine)->Submit(request, sink).ok());
  const FinishEvent finish = sink->done.get_future().get();
  EXPECT_EQ(finish.reason, FinishEvent::Reason::kLength);
  EXPECT_EQ(sink->tokens, (std::vector<int32_t>{6, 7, 8, 9, 0, 1, 2}));
  EXPECT_EQ((*engine)->Stats().total_tokens, 128);
  EXPECT_EQ((*engine)->Stats().context_length, 32);
}

TEST_F(EngineStart, RefusesOptionsThatContradict) {
  const auto refused = [&](EngineOptions options, StatusCode code, const char* what) {
    const Status status = Start(options).status();
    EXPECT_EQ(status.code(), code) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused({.page_tokens = 3}, StatusCode::kInvalidArgument, "page size");
  refused({.kv_format = KvFormat::kFp8DsMla}, StatusCode::kInvalidArgument, "fp8_ds_mla");
  refused({.max_queued_requests = 0}, StatusCode::kInvalidArgument, "max_queued_requests");
  refused({.max_running_requests = 0}, StatusCode::kInvalidArgument, "max_running_requests");
  refused({.chunked_prefill_size = -5}, StatusCode::kInvalidArgument, "chunked_prefill_size");
  refused({.context_length = 33}, StatusCode::kInvalidArgument, "context_length");
  refused({.max_total_tokens = int64_t{1} << 50}, StatusCode::kResourceExhausted,
          "max_total_tokens");
}

}  // namespace
}  // namespace tern
