// How much memory does a structure take, and how much does it give back?
//
// Every structure is measured in a process of its own, forked for it: anonymous resident memory
// (`RssAnon`) after the allocator gave back what it could, minus that before the structure was
// made. Events are made one by one, so that nothing else is in the difference.
//
//   build ─▶ bytes_built ─▶ (churn ─▶ bytes_after_churn) ─▶ clear every worker ─▶ upkeep ─▶ bytes_after_clear
//
// Churn replaces every worker's holdings again and again: the file's stores once more with other
// hashes, and for every block stored one of those from the pass before removed, until `churn` times
// the live holdings were stored.
//
// *Truth*: live holdings and distinct blocks are counted by a model in another process, in shared
// memory.

#include "tools/bench/modes.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tools/bench/bench_input.h"
#include "tools/bench/final_holdings.h"
#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

constexpr size_t kOpsBetweenSamples = 64;
constexpr size_t kReasonBytes = 160;
// Upkeep after clearing: so many calls of so many steps.
constexpr int kTends = 64;
constexpr size_t kTendSteps = 1 << 16;

// Anonymous resident bytes of this process.
uint64_t AnonymousBytes() {
  FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  unsigned long kib = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "RssAnon: %lu", &kib) == 1) break;
  }
  std::fclose(file);
  return uint64_t{kib} * 1024;
}

// The same after the allocator gave back what it could.
uint64_t SettledBytes() {
  malloc_trim(0);
  return AnonymousBytes();
}

// What the child leaves for its parent.
struct Report {
  bool done;
  char skipped[kReasonBytes];
  uint64_t built, peak, after_churn, after_clear, stated;
  uint64_t churn_stored_blocks, refused_events;
  Percentiles clear_us;
  double clear_ns_per_block;
};

// Other hashes for every pass, the same for equal ones; pass 0 is the file's own.
class Salted {
 public:
  explicit Salted(uint64_t pass) : salt_(pass * 0x9E3779B97F4A7C15) {}

  SequenceHash operator()(SequenceHash hash) const {
    if (salt_ == 0 || hash == kNoParent) return hash;
    uint64_t mixed = Raw(hash) ^ salt_;
    mixed = (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93;
    return SequenceHash{mixed ^ (mixed >> 32)};
  }

 private:
  const uint64_t salt_;
};

class MemRun {
 public:
  MemRun(Index* index, const OpsFile& file, const FinalHoldings& holdings,
         const BenchOptions& options, uint64_t bytes_before, Report* report)
      : index_(index),
        file_(file),
        holdings_(holdings),
        limit_(options.limit_s),
        bytes_before_(bytes_before),
        report_(report) {}

  // False when it would take too long.
  bool Build() {
    const double all = static_cast<double>(file_.ops().size());
    size_t done = 0;
    for (const BenchOp& op : file_.ops()) {
      if (op.header.kind != OpKind::kQuery)
        Apply(op.header.worker, EventOf(op, 0, op.header.count));
      if (++done % kOpsBetweenSamples != 0) continue;
      Sample();
      if (auto why = limit_.Exceeded(static_cast<double>(done), all); why.has_value()) {
        std::snprintf(report_->skipped, kReasonBytes, "%s", why->c_str());
        return false;
      }
    }
    report_->built = Settled();
    report_->stated = index_->Stats().bytes;
    return true;
  }

  void Churn(uint64_t blocks_min) {
    uint64_t pass = 0;
    while (report_->churn_stored_blocks < blocks_min && file_.header().store_blocks > 0) {
      ChurnOnce(++pass);
      // Looks at time only between passes: half a pass would leave two contents.
      if (limit_.Exceeded(1, 1).has_value()) break;
    }
    report_->after_churn = Settled();
  }

  void Clear() {
    Latencies latencies;
    double cpu_s = 0;
    for (uint32_t worker = 0; worker < file_.header().workers; ++worker) {
      const double cpu_before_s = CpuSeconds();
      const uint64_t start = Ticks();
      index_->Apply(HolderIndex{worker}, Cleared{}, nullptr).IgnoreError();
      latencies.Add(Ticks() - start);
      cpu_s += CpuSeconds() - cpu_before_s;
      if (worker % kOpsBetweenSamples == 0) Sample();
    }
    for (int i = 0; i < kTends; ++i) index_->Maintain(kTendSteps);
    Percentiles us = latencies.InNs();
    for (double Percentiles::* field : {&Percentiles::p50, &Percentiles::p99, &Percentiles::p999,
                                        &Percentiles::max, &Percentiles::mean}) {
      us.*field /= 1e3;
    }
    report_->clear_us = us;
    report_->clear_ns_per_block =
        1e9 * cpu_s / static_cast<double>(std::max<uint64_t>(1, holdings_.holdings()));
    latencies = Latencies();
    report_->after_clear = Settled();
  }

 private:
  void Apply(uint32_t worker, const Event& event) {
    report_->refused_events += !index_->Apply(HolderIndex{worker}, event, nullptr).ok();
  }

  uint64_t Above(uint64_t bytes) const { return bytes > bytes_before_ ? bytes - bytes_before_ : 0; }

  uint64_t Settled() {
    Sample();
    return Above(SettledBytes());
  }

  void Sample() { report_->peak = std::max(report_->peak, Above(AnonymousBytes())); }

  // The file with the hashes of `pass`; what the pass before left goes in step with what is stored.
  void ChurnOnce(uint64_t pass) {
    const Salted now(pass), before(pass - 1);
    std::vector<uint32_t> left(file_.header().workers);
    for (uint32_t worker = 0; worker < left.size(); ++worker) {
      left[worker] = static_cast<uint32_t>(holdings_.of(worker).size());
    }
    size_t done = 0;
    for (const BenchOp& op : file_.ops()) {
      const uint32_t worker = op.header.worker;
      if (op.header.kind == OpKind::kStore) {
        RemoveLeft(worker, before, op.header.count, &left[worker]);
        report_->churn_stored_blocks += op.header.count;
      }
      if (op.header.kind == OpKind::kClear) left[worker] = 0;  // it takes that, too
      if (op.header.kind != OpKind::kQuery) Apply(worker, SaltedEvent(op, now));
      if (++done % kOpsBetweenSamples == 0) Sample();
    }
    for (uint32_t worker = 0; worker < left.size(); ++worker) {
      RemoveLeft(worker, before, left[worker], &left[worker]);
    }
  }

  // The last `blocks` of the first `left` that the worker held at the end of the pass before.
  void RemoveLeft(uint32_t worker, const Salted& salted, uint32_t blocks, uint32_t* left) {
    const uint32_t count = std::min(blocks, *left);
    if (count == 0) return;
    Removed removed;
    removed.blocks.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      removed.blocks.push_back(salted(holdings_.of(worker)[--*left]));
    }
    Apply(worker, removed);
  }

  static Event SaltedEvent(const BenchOp& op, const Salted& salted) {
    Event event = EventOf(op, 0, op.header.count);
    if (auto* stored = std::get_if<Stored>(&event)) {
      stored->parent = salted(stored->parent);
      stored->local_hashes.clear();  // would not fit the other hashes
      for (SequenceHash& block : stored->blocks) block = salted(block);
    } else if (auto* removed = std::get_if<Removed>(&event)) {
      for (SequenceHash& block : removed->blocks) block = salted(block);
    }
    return event;
  }

  Index* const index_;
  const OpsFile& file_;
  const FinalHoldings& holdings_;
  const TimeLimit limit_;
  const uint64_t bytes_before_;
  Report* const report_;
};

// In a process of its own.
void Measure(const Contender& contender, const OpsFile& file, const FinalHoldings& holdings,
             const BenchOptions& options, Report* report) {
  NsPerTick();
  const uint64_t bytes_before = SettledBytes();
  IndexOptions index_options;
  index_options.holders_max = std::max(1u, file.header().workers);
  absl::StatusOr<std::unique_ptr<Index>> index =
      MakeWithHolders(contender, index_options, file.header().workers);
  if (!index.ok()) {
    const std::string why(index.status().message());
    std::snprintf(report->skipped, kReasonBytes, "%s", why.c_str());
    return;
  }
  MemRun run(index->get(), file, holdings, options, bytes_before, report);
  if (!run.Build()) return;
  if (options.churn > 0) run.Churn(options.churn * holdings.holdings());
  run.Clear();
  report->done = true;
}

}  // namespace

BenchResult RunMem(const Contender& contender, const OpsFile& file, const BenchOptions& options) {
  BenchResult result;
  absl::StatusOr<FinalHoldings> holdings = FinalHoldings::Of(file);
  const SharedMemory shared(sizeof(Report));
  auto* report = static_cast<Report*>(shared.data());
  absl::Status ran = holdings.status();
  if (ran.ok()) {
    ran = RunInChild([&] { Measure(contender, file, *holdings, options, report); });
  }
  if (!ran.ok() || !report->done) {
    result.skipped = ran.ok() ? std::string(report->skipped) : std::string(ran.message());
    return result;
  }
  MemoryResult memory;
  memory.holdings = holdings->holdings();
  memory.distinct_blocks = holdings->distinct_blocks();
  memory.bytes_built = report->built;
  memory.bytes_peak = report->peak;
  memory.bytes_after_clear = report->after_clear;
  memory.bytes_stated = report->stated;
  memory.clear_us = report->clear_us;
  memory.clear_ns_per_block = report->clear_ns_per_block;
  if (options.churn > 0) {
    memory.churn_stored_blocks = report->churn_stored_blocks;
    memory.bytes_after_churn = report->after_churn;
  }
  result.refused_events = report->refused_events;
  result.memory = memory;
  options.progress(contender.name + " mem: " + std::to_string(memory.bytes_built / 1000000) +
                   " MB built, " + std::to_string(memory.bytes_after_clear / 1000000) +
                   " MB after clear");
  return result;
}

}  // namespace kvatlas
