#include "indexer/discovery/directory_source.h"

#include <utility>

#include "absl/status/status.h"
#include "indexer/discovery/dns_source.h"
#include "indexer/discovery/redis_source.h"
#include "indexer/service/address.h"
#include "indexer/service/redis_url.h"

namespace kvatlas {
namespace {

constexpr std::string_view kDns = "dns:";
constexpr std::string_view kRedis = "redis://";

class FixedSource : public DirectorySource {
 public:
  explicit FixedSource(ServiceRecord record) : record_(std::move(record)) {}
  void Start(Report report) override { report(std::vector<ServiceRecord>{record_}); }
  void Refresh() override {}
  void Stop() override {}

 private:
  const ServiceRecord record_;
};

absl::Status Bad(std::string_view entry, std::string_view why) {
  return absl::InvalidArgumentError("'" + RedisUrlWithoutPassword(entry) +
                                    "': " + std::string(why));
}

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
    return Bad(entry, "is none of [NAME=]HOST:PORT, dns:HOST:PORT, redis://HOST:PORT");
  if (parsed->port == 0) return Bad(entry, "port 0 cannot be reached");
  record.grpc = parsed->ToString();
  return std::unique_ptr<DirectorySource>(std::make_unique<FixedSource>(std::move(record)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectorySource>> MakeDirectorySource(
    std::string_view entry, const DirectoryOptions& options) {
  if (entry.starts_with(kRedis) || entry.starts_with("rediss://"))
    return MakeRedisSource(std::string(entry), options);
  if (!entry.starts_with(kDns)) return MakeFixedSource(entry, options);
  absl::StatusOr<Address> name = Address::Parse(entry.substr(kDns.size()));
  if (!name.ok() || name->port == 0) return Bad(entry, "is not dns:HOST:PORT");
  return MakeDnsSource(*name, options);
}

absl::Status CheckDirectoryEntry(std::string_view entry) {
  return MakeDirectorySource(entry, DirectoryOptions()).status();
}

}  // namespace kvatlas
