// Rng: seeded random numbers that are the same on every machine (SplitMix64; std distributions
// are not portable). Thread: not shared; each owner has its own.
// Formula: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#pragma once

#include <cstdint>

namespace tern {

// The SplitMix64 finaliser: a bijection of 64-bit values that mixes well.
inline uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return Mix64(state_ += 0x9E3779B97F4A7C15u); }
  // Uniform in [0, n). REQUIRES: n > 0. Bias is below n / 2^64.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  // Uniform in [0, 1), 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  bool Chance(double p) { return Uniform() < p; }

 private:
  uint64_t state_;
};

// A seed that nobody can guess, from the operating system.
uint64_t RandomSeed();

}  // namespace tern
