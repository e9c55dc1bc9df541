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

// A file that has one number; "max" and what cannot be read are no limit.
uint64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : kNoLimit;
}

// Of this group and those above it.
uint64_t GroupLimit(const std::string& root, std::string group, const char* file) {
  uint64_t limit = kNoLimit;
  while (true) {
    limit = std::min(limit, NumberIn(root + group + "/" + file));
    const size_t parent = group.rfind('/');
    if (parent == std::string::npos) return limit;
    group.resize(parent);
  }
}

std::atomic<bool> memory_critical{false};

}  // namespace

void SetMemoryCritical(bool critical) {
  memory_critical.store(critical, std::memory_order_relaxed);
}
bool MemoryIsCritical() { return memory_critical.load(std::memory_order_relaxed); }

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

uint64_t MemoryLimitBytes() {
  uint64_t limit = std::min(static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * PageBytes(),
                            AddressSpaceLimitBytes().value_or(kNoLimit));
  // "0::/group", of the second version; "9:memory:/group", of the first.
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

int ThreadsThatFit(int threads) {
  const std::optional<uint64_t> limit = AddressSpaceLimitBytes();
  if (!limit.has_value()) return threads;
  const uint64_t fit = *limit / 8 / kSmallStackBytes;
  return static_cast<int>(std::clamp<uint64_t>(fit, 1, static_cast<uint64_t>(threads)));
}

}  // namespace kvatlas
