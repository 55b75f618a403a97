// Queues: the live requests. `running` ones hold pages, `waiting` ones hold none. Both are sorted
// by age, oldest first. Owner: the scheduler. Thread: the engine thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/sequence.h"

namespace tern {

struct Queues {
  std::vector<std::unique_ptr<Sequence>> running;
  std::vector<std::unique_ptr<Sequence>> waiting;

  bool empty() const { return running.empty() && waiting.empty(); }

  // Queues a new sequence. It also makes room for everybody in both queues, so that moves between
  // them never allocate: a sequence can't get lost when memory runs out.
  void Add(std::unique_ptr<Sequence> sequence) {
    const size_t all = running.size() + waiting.size() + 1;
    running.reserve(all);
    waiting.reserve(all);
    waiting.push_back(std::move(sequence));
  }

  // Puts the youngest running sequence back to wait and frees its pages. Its rows are computed anew
  // later, in the forms they had, so its output does not change. REQUIRES: one is running.
  Sequence* RetractYoungest(KvCache& kv) { return Retract(running.size() - 1, kv); }

  // The same for running[index].
  Sequence* Retract(size_t index, KvCache& kv) {
    std::unique_ptr<Sequence> victim = std::move(running[index]);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
    kv.Release(&victim->lease);
    victim->computed = 0;
    ++victim->retractions;
    return Insert(std::move(victim), &waiting);
  }

  // Moves the oldest waiting sequence to the running ones. REQUIRES: one is waiting.
  Sequence* AdmitOldest() {
    std::unique_ptr<Sequence> sequence = std::move(waiting.front());
    waiting.erase(waiting.begin());
    return Insert(std::move(sequence), &running);
  }

  template <typename Queue>
  static Sequence* Insert(std::unique_ptr<Sequence> sequence, Queue* queue) {
    Sequence* result = sequence.get();
    const auto younger = [&](const auto& other) { return other->id > result->id; };
    queue->insert(std::find_if(queue->begin(), queue->end(), younger), std::move(sequence));
    return result;
  }
};

}  // namespace tern
