#include "bench/bench_machine.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/topology.h"

namespace tern {

BenchMachine BenchMachine::Here(std::string isa, int threads) {
  BenchMachine machine{.cpu = CpuName(), .isa = std::move(isa), .threads = threads};
  double load = 0;
  if (::getloadavg(&load, 1) == 1) machine.load_average = load;
  return machine;
}

Json BenchMachine::ToJson() const {
  return {{"cpu", cpu}, {"isa", isa}, {"threads", threads}, {"load_average", load_average}};
}

std::string BenchMachine::ToText() const {
  return fmt::format("{}, {}, {} thread{}, load {:.2f}", cpu, isa, threads, threads == 1 ? "" : "s",
                     load_average);
}

std::string WithUnit(double value) {
  if (value == 0 || !std::isfinite(value)) return "-";
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P"};
  int unit = 0;
  while (std::fabs(value) >= 999.5 && unit < 5) {
    value /= 1000;
    ++unit;
  }
  const int digits = std::fabs(value) >= 99.95 ? 0 : std::fabs(value) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, digits, kUnits[unit]);
}

}  // namespace tern
