#include "indexer/discovery/dns_source.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

class DnsSource : public DirectorySource {
 public:
  DnsSource(const Address& name, const DirectoryOptions& options)
      : name_(name), kind_(options.kind), refresh_(options.refresh), resolve_(options.resolve) {}
  ~DnsSource() override { Stop(); }

  void Start(Report report) override {
    report_ = std::move(report);
    thread_ = std::thread([this] { Run(); });
  }

  void Refresh() override {
    MutexLock lock(&mutex_);
    wanted_ = true;
    changed_.Signal();
  }

  void Stop() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.Signal();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    do {
      report_(Ask());
    } while (WaitForNext());
  }

  absl::StatusOr<std::vector<ServiceRecord>> Ask() const {
    absl::StatusOr<std::vector<std::string>> hosts = resolve_(name_.host);
    if (!hosts.ok()) return hosts.status();
    if (hosts->empty()) return absl::UnavailableError(name_.host + ": no addresses");
    std::sort(hosts->begin(), hosts->end());
    hosts->erase(std::unique(hosts->begin(), hosts->end()), hosts->end());
    std::vector<ServiceRecord> records;
    for (const std::string& host : *hosts) {
      ServiceRecord record;
      record.kind = kind_;
      record.grpc = Address{host, name_.port}.ToString();
      records.push_back(std::move(record));
    }
    return records;
  }

  // False: stop.
  bool WaitForNext() {
    MutexLock lock(&mutex_);
    while (!stopping_ && !wanted_ && changed_.WaitFor(&mutex_, refresh_)) {
    }
    wanted_ = false;
    return !stopping_;
  }

  const Address name_;
  const ServiceKind kind_;
  const Duration refresh_;
  const HostResolver resolve_;
  Report report_;  // immutable after Start
  Mutex mutex_;
  CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<DirectorySource> MakeDnsSource(const Address& name,
                                               const DirectoryOptions& options) {
  return std::make_unique<DnsSource>(name, options);
}

}  // namespace kvatlas
