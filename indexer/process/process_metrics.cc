#include "indexer/process/process_metrics.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "indexer/base/version.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/message_account.h"
#include "indexer/process/build_version.h"
#include "indexer/telemetry/metric_families.h"

namespace kvatlas {
namespace {

struct ProcessStat {
  double cpu_seconds = 0;
  uint64_t threads = 0;
  double started_after_boot = 0;  // seconds
  uint64_t virtual_bytes = 0;
  uint64_t resident_bytes = 0;
};

// Reads /proc/self/stat. The program's name is in parentheses and may contain any character, so the
// fields are counted from the last ')'.
std::optional<ProcessStat> ReadStat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(name_end + 1));
  std::string state;
  rest >> state;
  // Fields 4 to 24, as proc(5) counts them.
  constexpr int kFirst = 4, kUser = 14, kSystem = 15, kThreads = 20, kStart = 22, kVirtual = 23,
                kResident = 24;
  int64_t fields[kResident + 1] = {};
  for (int i = kFirst; i <= kResident; ++i) rest >> fields[i];
  if (rest.fail()) return std::nullopt;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  return ProcessStat{.cpu_seconds = static_cast<double>(fields[kUser] + fields[kSystem]) / ticks,
                     .threads = static_cast<uint64_t>(fields[kThreads]),
                     .started_after_boot = static_cast<double>(fields[kStart]) / ticks,
                     .virtual_bytes = static_cast<uint64_t>(fields[kVirtual]),
                     .resident_bytes = static_cast<uint64_t>(fields[kResident]) *
                                       static_cast<uint64_t>(sysconf(_SC_PAGESIZE))};
}

double SecondsOf(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Counts /proc/self/fd, less the descriptor that reads it.
std::optional<uint64_t> OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return std::nullopt;
  uint64_t entries = 0;
  while (const dirent* entry = readdir(directory)) entries += entry->d_name[0] != '.';
  closedir(directory);
  return entries == 0 ? 0 : entries - 1;
}

// Read anew at each scrape. A file of /proc that cannot be opened, as without a free descriptor,
// leaves its series out.
void AppendProcess(MetricFamilies* families) {
  families->Gauge("kvatlas_clock_seconds", "The wall clock at this scrape, in Unix time.", "",
                  SecondsOf(CLOCK_REALTIME));
  if (const std::optional<ProcessStat> stat = ReadStat(); stat.has_value()) {
    families->Count("process_cpu_seconds_total", "Processor time, of user and system.", "",
                    stat->cpu_seconds);
    families->Gauge("process_resident_memory_bytes", "Resident memory, files mapped included.", "",
                    static_cast<double>(stat->resident_bytes));
    families->Gauge("process_virtual_memory_bytes", "Addresses that are mapped.", "",
                    static_cast<double>(stat->virtual_bytes));
    const struct mallinfo2 heap = mallinfo2();
    families->Gauge("process_heap_in_use_bytes",
                    "Allocated and not freed. What is resident beside it is free and kept by the "
                    "allocator (16 MiB at most, then it goes back), mapped by indexes, or of files "
                    "and stacks.",
                    "", static_cast<double>(heap.uordblks + heap.hblkhd));
    families->Gauge("process_threads", "Threads.", "", static_cast<double>(stat->threads));
    // Computed once: the difference of the two clocks varies a little, and a change of the start
    // time would be taken for a restart.
    static const double booted = SecondsOf(CLOCK_REALTIME) - SecondsOf(CLOCK_BOOTTIME);
    families->Gauge("process_start_time_seconds", "When it started, in Unix time.", "",
                    booted + stat->started_after_boot);
  }
  if (const std::optional<uint64_t> open = OpenDescriptors(); open.has_value())
    families->Gauge("process_open_fds", "Open descriptors.", "", static_cast<double>(*open));
  for (const auto& [reason, label] : {std::pair(EndedFor::kBytes, "reason=\"bytes\""),
                                      std::pair(EndedFor::kCalls, "reason=\"calls\""),
                                      std::pair(EndedFor::kEngine, "reason=\"engine\"")}) {
    families->Count("kvatlas_connections_ended_total",
                    "Connections closed for what they had this process hold: gRPC calls, bytes of "
                    "which nothing came, messages of an engine that did not end.",
                    label, static_cast<double>(ConnectionsEnded(reason)));
  }
  const MessageAccount& messages = MessageAccount::OfProcess();
  families->Gauge(
      "kvatlas_grpc_messages_bytes",
      "What gRPC messages of more than 64 KiB that are being read or answered take once "
      "they are parsed, at most; an eighth of --memory_budget is their bound.",
      "", static_cast<double>(messages.bytes()));
  for (const auto& [reason, label] :
       {std::pair(MessageAccount::Refused::kTooLarge, "reason=\"parts\""),
        std::pair(MessageAccount::Refused::kTooMany, "reason=\"sum\"")}) {
    families->Count("kvatlas_grpc_messages_refused_total",
                    "gRPC messages that were not parsed: of too many parts, or with too many other "
                    "large ones at once.",
                    label, static_cast<double>(messages.refused(reason)));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
    families->Gauge("process_max_fds", "Descriptors that it may have.", "",
                    static_cast<double>(limit.rlim_cur));
}

}  // namespace

// `kvatlas_build_info` is a constant series; its labels are the information.
void AddProcessMetrics(std::string_view program, Metrics* metrics) {
  metrics
      ->AddGauge("kvatlas_build_info", "1: the program, its version and the commit of its build.",
                 {{"program", std::string(program)},
                  {"version", kVersion},
                  {"commit", std::string(BuildCommit())}})
      .Set(1);
  metrics->OnText([](std::string* text) {
    MetricFamilies families;
    AppendProcess(&families);
    families.AppendTo(text);
  });
}

}  // namespace kvatlas
