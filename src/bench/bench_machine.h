// BenchMachine: where a result was measured; every result carries it. Thread: values.
#pragma once

#include <string>

#include "base/json.h"

namespace tern {

struct BenchMachine {
  std::string cpu;
  std::string isa;
  int threads = 0;
  double load_average = 0;  // of the minute before: other work on the machine shows here

  static BenchMachine Here(std::string isa, int threads);
  Json ToJson() const;
  // "AMD EPYC, avx512, 2 threads, load 0.3"
  std::string ToText() const;
};

// Milli- to tera-: "41.9 G", "912 G"; three digits. 0 gives "-".
std::string WithUnit(double value);

}  // namespace tern
