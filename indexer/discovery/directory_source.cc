// From an entry of a list to the source that answers it. The kinds are told apart by prefix; all
// else must be an address.

#include "indexer/discovery/directory_source.h"

#include <utility>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/discovery/dns_source.h"
#include "indexer/discovery/k8s_service.h"
#include "indexer/discovery/k8s_source.h"
#include "indexer/discovery/redis_source.h"
#include "indexer/net/redis_url.h"

namespace kvatlas {
namespace {

constexpr std::string_view kDns = "dns:";

// With the slash: "redis:6379" is a host named redis.
bool IsLeases(std::string_view entry) {
  return entry.starts_with("redis:/") || entry.starts_with("rediss:/");
}

// The name and the place of "NAME=dns:…" or "NAME=k8s:…"; an empty name for any other entry. A '='
// elsewhere, in a URL's password for instance, splits nothing.
std::pair<std::string, std::string_view> SplitName(std::string_view entry) {
  const size_t equals = entry.find('=');
  if (equals == std::string_view::npos) return {"", entry};
  const std::string_view rest = entry.substr(equals + 1);
  if (!rest.starts_with(kDns) && !rest.starts_with(kK8sPrefix)) return {"", entry};
  return {std::string(entry.substr(0, equals)), rest};
}

// Gives the records of another source a name, on their way to the report.
class NamedSource : public DirectorySource {
 public:
  NamedSource(std::string name, std::unique_ptr<DirectorySource> source)
      : name_(std::move(name)), source_(std::move(source)) {}
  void Start(Report report) override {
    source_->Start(
        [this, report = std::move(report)](absl::StatusOr<std::vector<ServiceRecord>> records) {
          if (records.ok())
            for (ServiceRecord& record : *records) record.name = name_;
          report(std::move(records));
        });
  }
  void Refresh() override { source_->Refresh(); }
  void Stop() override { source_->Stop(); }

 private:
  const std::string name_;
  const std::unique_ptr<DirectorySource> source_;
};

// Reports its one record from within `Start`, on the caller's thread; it has none of its own.
class FixedSource : public DirectorySource {
 public:
  explicit FixedSource(ServiceRecord record) : record_(std::move(record)) {}
  void Start(Report report) override { report(std::vector<ServiceRecord>{record_}); }
  void Refresh() override {}
  void Stop() override {}

 private:
  const ServiceRecord record_;
};

// Entries are shown without passwords: errors end up in logs.
absl::Status Bad(std::string_view entry, std::string_view why) {
  return absl::InvalidArgumentError("'" + RedisUrlWithoutPassword(entry) +
                                    "': " + std::string(why));
}

// [NAME=]HOST:PORT. Addresses are not resolved here; port 0 would only fail later.
absl::StatusOr<std::unique_ptr<DirectorySource>> MakeFixedSource(std::string_view entry,
                                                                 const DirectoryOptions& options) {
  ServiceRecord record;
  record.kind = options.kind;
  std::string_view address = entry;
  if (const size_t equals = entry.find('='); equals != std::string_view::npos) {
    record.name = entry.substr(0, equals);
    address = entry.substr(equals + 1);
    if (record.name.empty()) return Bad(entry, "no name before '='");
  }
  absl::StatusOr<Address> parsed = Address::Parse(address);
  if (!parsed.ok())
    return Bad(entry, "is none of [NAME=]HOST:PORT, dns:HOST:PORT, k8s:SERVICE, redis://HOST:PORT");
  if (parsed->port == 0) return Bad(entry, "port 0 cannot be reached");
  record.grpc = parsed->ToString();
  return std::unique_ptr<DirectorySource>(std::make_unique<FixedSource>(std::move(record)));
}

}  // namespace

// Must know the same prefixes as `MakeDirectorySource`.
bool IsPlaceToLook(std::string_view entry) {
  const std::string_view place = SplitName(entry).second;
  return place.starts_with(kDns) || place.starts_with(kK8sPrefix) ||
         place.starts_with(kK8sPodsPrefix) || IsLeases(place);
}

// Making a source has no effect beyond memory: nothing is asked before `Start`.
// `CheckDirectoryEntry` relies on it.
absl::StatusOr<std::unique_ptr<DirectorySource>> MakeDirectorySource(
    std::string_view entry, const DirectoryOptions& options) {
  if (IsLeases(entry)) return MakeRedisSource(std::string(entry), options);
  if (entry.starts_with(kK8sPodsPrefix)) {
    const absl::StatusOr<K8sPodsQuery> pods =
        K8sPodsQuery::Parse(entry.substr(kK8sPodsPrefix.size()));
    if (!pods.ok()) return pods.status();
    return MakeK8sPodsSource(*pods, options);
  }
  const auto [name, place] = SplitName(entry);
  if (entry.starts_with("=")) return Bad(entry, "no name before '='");
  std::unique_ptr<DirectorySource> source;
  if (place.starts_with(kK8sPrefix)) {
    const absl::StatusOr<K8sService> service = K8sService::Parse(place);
    if (!service.ok()) return service.status();
    source = MakeK8sSource(*service, options);
  } else if (place.starts_with(kDns)) {
    const absl::StatusOr<Address> host = Address::Parse(place.substr(kDns.size()));
    if (!host.ok() || host->port == 0) return Bad(entry, "is not dns:HOST:PORT");
    source = MakeDnsSource(*host, options);
  } else {
    return MakeFixedSource(entry, options);
  }
  if (name.empty()) return source;
  return std::unique_ptr<DirectorySource>(std::make_unique<NamedSource>(name, std::move(source)));
}

absl::Status CheckDirectoryEntry(std::string_view entry) {
  return MakeDirectorySource(entry, DirectoryOptions()).status();
}

}  // namespace kvatlas
