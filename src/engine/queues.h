// Queues: the live requests. `running` ones hold pages, `waiting` ones hold none; `parked` ones
// wait for another engine (engine/handoff.h), with or without pages. All are sorted by age, oldest
// first. Owner: the scheduler. Thread: the engine thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "engine/handoff.h"
#include "engine/sequence.h"

namespace tern {

struct Queues {
  std::vector<std::unique_ptr<Sequence>> running;
  std::vector<std::unique_ptr<Sequence>> waiting;
  std::vector<std::unique_ptr<Sequence>> parked;

  bool empty() const { return running.empty() && waiting.empty() && parked.empty(); }

  // Queues a new sequence. It also makes room for everybody in all queues, so that moves between
  // them never allocate: a sequence can't get lost when memory runs out.
  void Add(std::unique_ptr<Sequence> sequence) {
    const size_t all = running.size() + waiting.size() + parked.size() + 1;
    running.reserve(all);
    waiting.reserve(all);
    parked.reserve(all);
    Insert(std::move(sequence), &waiting);
  }

  // Puts the youngest running sequence back to wait and frees its pages. Its rows are computed anew
  // later, in the forms they had, so its output does not change; rows that came from another engine
  // are asked for again. REQUIRES: one is running.
  Sequence* RetractYoungest(KvCache& kv) { return Retract(running.size() - 1, kv); }

  // The same for running[index].
  Sequence* Retract(size_t index, KvCache& kv) {
    std::unique_ptr<Sequence> victim = std::move(running[index]);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
    kv.Release(&victim->lease);
    victim->computed = 0;
    ++victim->retractions;
    if (victim->handoff == nullptr) return Insert(std::move(victim), &waiting);
    victim->handoff->OnRetracted();
    return Insert(std::move(victim), &parked);
  }

  // Moves a running or waiting sequence to the parked ones.
  void Park(RequestId id) {
    std::unique_ptr<Sequence> sequence = Take(id, &running);
    if (sequence == nullptr) sequence = Take(id, &waiting);
    Insert(std::move(sequence), &parked);
  }
  // Moves a parked sequence to one of the other queues.
  Sequence* Unpark(RequestId id, std::vector<std::unique_ptr<Sequence>>* queue) {
    return Insert(Take(id, &parked), queue);
  }
  // Takes a sequence out of a queue; null when it is not there.
  static std::unique_ptr<Sequence> Take(RequestId id,
                                        std::vector<std::unique_ptr<Sequence>>* queue) {
    const auto it = std::find_if(queue->begin(), queue->end(),
                                 [id](const auto& sequence) { return sequence->id == id; });
    if (it == queue->end()) return nullptr;
    std::unique_ptr<Sequence> result = std::move(*it);
    queue->erase(it);
    return result;
  }
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    for (const auto* queue : {&running, &waiting, &parked}) {
      for (const auto& sequence : *queue) fn(*sequence);
    }
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
