// How does the level above learn what this process covers? One stream of waypoints per domain and parent, fed
// from `Coverage`.
//
//   registry ─▶ Coverage (per domain) ─▶ ResidentSet (per domain) ─▶ SenderPump (per parent) ─▶ link
//
// *Place*: a leaf has one, reporting its cell; a hierarchy node has one when it has parents of its own.
// *Truth*: every parent is told the same, independently; one that is down gets a snapshot when it is back. To the level
// above, positions are the ordinals of waypoints.
// *Threads*: `Observe` from any; `Tick` from one thread at a time, about every 10 ms: news waits that long and is sent
// together. `Stats` and `AtRest` from any.
// *Lifetime*: outlives the registry that it observes; `Stop` before the links' program ends.

#ifndef KVATLAS_INDEXER_COVERAGE_COVERAGE_REPORTER_H_
#define KVATLAS_INDEXER_COVERAGE_COVERAGE_REPORTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/coverage/coverage.h"
#include "indexer/stream/link.h"
#include "indexer/stream/sender.h"

namespace kvatlas {

// A connection to a parent, and how many bytes went through it so far.
struct ParentLink {
  std::unique_ptr<SenderLink> link;
  std::function<uint64_t()> bytes_sent;  // may be empty; valid while the link lives
};

struct CoverageReporterOptions {
  HolderId self;        // (cell, 0, replica)
  std::string address;  // where this process answers queries
  std::string contract_id;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> parents;  // HOST:PORT; none: reports to nobody
  std::function<ParentLink(const std::string& parent)> make_link;
  CoverageOptions coverage;
  SenderOptions sender;
  Epoch epoch = 0;           // start time
  uint64_t instance_id = 0;  // random
};

struct ParentReport {
  std::string parent;
  Domain domain;
  bool connected = false;
  bool at_rest = false;  // everything is announced and acknowledged, and no withdrawal is pending
  uint64_t waypoints_announced = 0;
  uint64_t waypoints_withdrawn = 0;
  uint64_t waypoints_held = 0;
  uint64_t bytes_sent = 0;
  absl::Status status;  // not OK: refused or replaced for good
};

class CoverageReporter {
 public:
  explicit CoverageReporter(CoverageReporterOptions options);
  ~CoverageReporter();

  CoverageReporter(const CoverageReporter&) = delete;
  CoverageReporter& operator=(const CoverageReporter&) = delete;

  // For `HolderRegistryOptions::observe`: the domain's coverage, made on the first call. Null without parents.
  DomainObserver* Observe(const Domain& domain, uint32_t block_size);

  // Sends what is news or due.
  void Tick();

  std::vector<ParentReport> Stats() const;
  bool AtRest() const;

  // Says goodbye when asked to: the cell is then forgotten above at once. Idempotent.
  void Stop(bool goodbye, Duration flush_for);

 private:
  struct DomainReport;

  std::unique_ptr<DomainReport> MakeReport(const Domain& domain, uint32_t block_size) const;
  std::vector<DomainReport*> Reports() const;

  const CoverageReporterOptions options_;
  mutable Mutex mutex_;
  // Only grows until `Stop`.
  std::vector<std::unique_ptr<DomainReport>> reports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COVERAGE_COVERAGE_REPORTER_H_
