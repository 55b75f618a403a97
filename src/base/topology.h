// What this process may use of the machine: limits of containers are respected.
// Thread: any; files under /proc and /sys are read at each call.
#pragma once

#include <cstdint>
#include <string>

namespace tern {

// min(CPUs in the affinity mask, cgroup CPU quota rounded up), at least 1.
int AvailableThreads();
// min(MemAvailable, cgroup limit - use) in bytes.
uint64_t AvailableMemoryBytes();
// Resident set of this process in bytes.
uint64_t ResidentBytes();
// Of these, pages of mapped files: code and libraries.
uint64_t ResidentFileBytes();
// "AMD EPYC 9554", from /proc/cpuinfo; "unknown" when it does not say.
std::string CpuName();

}  // namespace tern
