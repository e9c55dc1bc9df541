// Resolves a name every `refresh`. The resolver blocks and cannot be interrupted, so `Stop` waits
// for a resolution in progress.

#include "indexer/discovery/dns_source.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/discovery/waiting_source.h"

namespace kvatlas {
namespace {

class DnsSource : public WaitingSource {
 public:
  DnsSource(const Address& name, const DirectoryOptions& options)
      : name_(name), kind_(options.kind), refresh_(options.refresh), resolve_(options.resolve) {}
  ~DnsSource() override { Stop(); }

 private:
  // The first resolution is at once; `Refresh` resolves again without waiting.
  void Run() override {
    do {
      Tell(Ask());
    } while (Wait(refresh_));
  }

  // Sorted and each once, so that a resolver that rotates its answers causes no change.
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

  const Address name_;
  const ServiceKind kind_;
  const Duration refresh_;
  const HostResolver resolve_;
};

}  // namespace

std::unique_ptr<DirectorySource> MakeDnsSource(const Address& name,
                                               const DirectoryOptions& options) {
  return std::make_unique<DnsSource>(name, options);
}

}  // namespace kvatlas
