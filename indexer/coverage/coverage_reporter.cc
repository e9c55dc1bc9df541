#include "indexer/coverage/coverage_reporter.h"

#include <algorithm>
#include <utility>

#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender_pump.h"

namespace kvatlas {

struct CoverageReporter::DomainReport {
  DomainReport(const Domain& domain, const CoverageOptions& options)
      : domain(domain), coverage(options) {}

  struct Parent {
    std::string name;
    std::function<uint64_t()> bytes_sent;
    std::unique_ptr<SenderPump> pump;
  };

  const Domain domain;
  Coverage coverage;
  Mutex resident_mutex;
  ResidentSet resident ABSL_GUARDED_BY(resident_mutex);
  std::vector<Parent> parents;
  bool started = false;  // of the thread that ticks
  bool stopped = false;
};

CoverageReporter::CoverageReporter(CoverageReporterOptions options)
    : options_(std::move(options)) {}

CoverageReporter::~CoverageReporter() { Stop(/*goodbye=*/false, Duration::zero()); }

DomainObserver* CoverageReporter::Observe(const Domain& domain, uint32_t block_size) {
  if (options_.parents.empty()) return nullptr;
  MutexLock lock(&mutex_);
  for (const auto& report : reports_) {
    if (report->domain == domain) return &report->coverage;
  }
  reports_.push_back(MakeReport(domain, block_size));
  return &reports_.back()->coverage;
}

std::unique_ptr<CoverageReporter::DomainReport> CoverageReporter::MakeReport(
    const Domain& domain, uint32_t block_size) const {
  auto report = std::make_unique<DomainReport>(domain, options_.coverage);
  const SenderIdentity identity{.holder = options_.self,
                                .domain = domain,
                                .block_size = block_size,
                                .contract_id = options_.contract_id,
                                .schedule = options_.coverage.schedule->Name(),
                                .address = options_.address,
                                .labels = options_.labels,
                                .epoch = options_.epoch,
                                .instance_id = options_.instance_id};
  for (const std::string& parent : options_.parents) {
    ParentLink link = options_.make_link(parent);
    auto pump = std::make_unique<SenderPump>(options_.sender, identity, &report->resident,
                                             &report->resident_mutex, std::move(link.link),
                                             options_.coverage.clock);
    report->parents.push_back({parent, std::move(link.bytes_sent), std::move(pump)});
  }
  return report;
}

std::vector<CoverageReporter::DomainReport*> CoverageReporter::Reports() const {
  std::vector<DomainReport*> reports;
  MutexLock lock(&mutex_);
  for (const auto& report : reports_) reports.push_back(report.get());
  return reports;
}

void CoverageReporter::Tick() {
  for (DomainReport* report : Reports()) {
    if (report->stopped) continue;
    const Coverage::News news = report->coverage.Take();
    if (!news.events.empty() || news.load.has_value()) {
      MutexLock lock(&report->resident_mutex);
      for (const Event& event : news.events) report->resident.Apply(event);
      for (auto& parent : report->parents) parent.pump->Append(news.events, news.load);
    }
    for (auto& parent : report->parents) {
      if (!report->started) parent.pump->Start();
      parent.pump->Tick();
    }
    report->started = true;
  }
}

std::vector<ParentReport> CoverageReporter::Stats() const {
  std::vector<ParentReport> stats;
  for (DomainReport* report : Reports()) {
    const CoverageStats coverage = report->coverage.stats();
    const bool quiet = report->coverage.AtRest();
    for (const auto& parent : report->parents) {
      stats.push_back({.parent = parent.name,
                       .domain = report->domain,
                       .connected = parent.pump->connected(),
                       .at_rest = quiet && parent.pump->AtRest(),
                       .waypoints_announced = coverage.announcements,
                       .waypoints_withdrawn = coverage.withdrawals,
                       .waypoints_held = coverage.announced,
                       .bytes_sent = parent.bytes_sent ? parent.bytes_sent() : 0,
                       .status = parent.pump->status()});
    }
  }
  return stats;
}

bool CoverageReporter::AtRest() const {
  const std::vector<ParentReport> reports = Stats();
  return std::all_of(reports.begin(), reports.end(),
                     [](const ParentReport& report) { return report.at_rest; });
}

void CoverageReporter::Stop(bool goodbye, Duration flush_for) {
  for (DomainReport* report : Reports()) {
    if (std::exchange(report->stopped, true)) continue;
    for (auto& parent : report->parents) parent.pump->Stop(goodbye, flush_for);
  }
}

}  // namespace kvatlas
