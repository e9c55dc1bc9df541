// Reads /proc and the control groups at each call; nothing is cached but the flag of critical
// memory.

#include "indexer/telemetry/process_memory.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <string>

namespace kvatlas {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

uint64_t PageBytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

// The number in a file; no limit if it says "max" or cannot be read.
uint64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : kNoLimit;
}

// The smallest limit of a control group and of all groups above it.
uint64_t GroupLimit(const std::string& root, std::string group, const char* file) {
  uint64_t limit = kNoLimit;
  while (true) {
    limit = std::min(limit, NumberIn(root + group + "/" + file));
    const size_t parent = group.rfind('/');
    if (parent == std::string::npos) return limit;
    group.resize(parent);
  }
}

// Written by the timer that measures, read by watchers without a `MemoryBudget`
// (grpc_call_watch.h).
std::atomic<bool> memory_critical{false};

}  // namespace

void SetMemoryCritical(bool critical) {
  memory_critical.store(critical, std::memory_order_relaxed);
}
bool MemoryIsCritical() { return memory_critical.load(std::memory_order_relaxed); }

// Resident less shared pages: pages of files can be dropped and read again, and do not count.
uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0, shared = 0;
  if (!(statm >> size >> resident >> shared)) return 0;
  return (resident - std::min(resident, shared)) * PageBytes();
}

uint64_t AddressSpaceBytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * PageBytes();
}

std::optional<uint64_t> AddressSpaceLimitBytes() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// The least of physical memory, the limit of addresses, and the limits of the process's control
// groups, of version 1 and 2.
uint64_t MemoryLimitBytes() {
  uint64_t limit = std::min(static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * PageBytes(),
                            AddressSpaceLimitBytes().value_or(kNoLimit));
  // "0::/group" is of version 2, which has no controllers; "9:memory:/group" is of version 1.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t controllers = line.find(':');
    const size_t path =
        controllers == std::string::npos ? controllers : line.find(':', controllers + 1);
    if (path == std::string::npos) continue;
    const std::string of = "," + line.substr(controllers + 1, path - controllers - 1) + ",";
    std::string group = line.substr(path + 1);
    while (group.ends_with('/')) group.pop_back();
    if (of == ",,") limit = std::min(limit, GroupLimit("/sys/fs/cgroup", group, "memory.max"));
    if (of.find(",memory,") != std::string::npos)
      limit = std::min(limit, GroupLimit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

void FitAddressSpace() {
  if (!AddressSpaceLimitBytes().has_value()) return;
  mallopt(M_ARENA_MAX, 2);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kSmallStackBytes);
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

// Each thread reserves a stack of `kSmallStackBytes` (FitAddressSpace). At least one.
int ThreadsThatFit(int threads) {
  const std::optional<uint64_t> limit = AddressSpaceLimitBytes();
  if (!limit.has_value()) return threads;
  const uint64_t fit = *limit / 8 / kSmallStackBytes;
  return static_cast<int>(std::clamp<uint64_t>(fit, 1, static_cast<uint64_t>(threads)));
}

}  // namespace kvatlas
