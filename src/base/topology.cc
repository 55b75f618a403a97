#include "base/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace tern {
namespace {

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<uint64_t> Number(const std::string& path) {
  const auto line = FirstLine(path);
  if (!line) return std::nullopt;
  char* end = nullptr;
  const uint64_t value = std::strtoull(line->c_str(), &end, 10);
  if (end == line->c_str()) return std::nullopt;  // "max"
  return value;
}

// The cgroup v2 folder of this process ("0::/path" in /proc/self/cgroup), or the v2 root.
std::string CgroupDir() {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("0::", 0) == 0) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "/sys/fs/cgroup";
}

// CPUs granted by "QUOTA PERIOD" of cgroup v2 or the two files of v1; nullopt: no limit.
std::optional<double> CpuQuota() {
  if (const auto line = FirstLine(CgroupDir() + "/cpu.max")) {
    std::istringstream in(*line);
    double quota = 0, period = 0;
    if (in >> quota >> period && period > 0) return quota / period;
    return std::nullopt;
  }
  const auto quota = FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto period = Number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (quota && period && *period > 0 && std::atof(quota->c_str()) > 0) {
    return std::atof(quota->c_str()) / static_cast<double>(*period);
  }
  return std::nullopt;
}

uint64_t MemInfoBytes(const std::string& key) {
  std::ifstream in("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string rest;
  while (in >> name >> kib && std::getline(in, rest)) {
    if (name == key + ":") return kib * 1024;
  }
  return 0;
}

}  // namespace

int AvailableThreads() {
  cpu_set_t set;
  int cpus = 1;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) cpus = CPU_COUNT(&set);
  if (const auto quota = CpuQuota()) cpus = std::min(cpus, static_cast<int>(std::ceil(*quota)));
  return std::max(cpus, 1);
}

uint64_t AvailableMemoryBytes() {
  uint64_t available = MemInfoBytes("MemAvailable");
  const auto limit = [&](std::optional<uint64_t> max, std::optional<uint64_t> used) {
    if (max && used) available = std::min(available, *max > *used ? *max - *used : 0);
  };
  const std::string dir = CgroupDir();
  limit(Number(dir + "/memory.max"), Number(dir + "/memory.current"));
  limit(Number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Number("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
  return available;
}

namespace {

// The first numbers of /proc/self/statm: all, resident, resident of files.
std::array<uint64_t, 3> StatmBytes() {
  std::ifstream in("/proc/self/statm");
  std::array<uint64_t, 3> bytes = {};
  for (uint64_t& number : bytes) {
    in >> number;
    number *= static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  return bytes;
}

}  // namespace

uint64_t ResidentBytes() { return StatmBytes()[1]; }
uint64_t ResidentFileBytes() { return StatmBytes()[2]; }

std::string CpuName() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind("model name", 0) == 0) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace tern
