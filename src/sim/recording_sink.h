// RecordingSink: keeps what a request was told, for tests. Thread: the engine's.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/request.h"

namespace tern {

struct RecordingSink : TokenSink {
  void OnToken(TokenEvent event) override { events.push_back(std::move(event)); }
  void OnFinish(FinishEvent event) override { finishes.push_back(std::move(event)); }

  std::vector<int32_t> tokens() const {
    std::vector<int32_t> result;
    for (const TokenEvent& event : events) result.push_back(event.token);
    return result;
  }
  bool ended() const { return !finishes.empty(); }
  const FinishEvent& finish() const {
    EXPECT_EQ(finishes.size(), 1u);
    return finishes.front();
  }

  std::vector<TokenEvent> events;
  std::vector<FinishEvent> finishes;
};

}  // namespace tern
