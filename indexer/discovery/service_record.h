// A service's description of itself, for processes that look for it: what it offers, and where.
//
// *Format*: JSON, one object: `kind`, `name`, `replica`, `grpc`, `http`, `epoch`, `instance`,
// `labels`, `serves`, `load`. A reader skips fields that it does not know.
// *Bounds*: names as everywhere (`ValidateHolder`); at most 64 labels and 1,024 names in `serves`;
// `kServiceRecordBytesMax` as JSON.
// *Threads*: plain values.

#ifndef KVATLAS_INDEXER_DISCOVERY_SERVICE_RECORD_H_
#define KVATLAS_INDEXER_DISCOVERY_SERVICE_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

inline constexpr size_t kServiceRecordBytesMax = 64 << 10;
inline constexpr size_t kServiceLabelsMax = 64;
inline constexpr size_t kServiceServesMax = 1024;

enum class ServiceKind { kLeaf, kHierarchy, kFrontend, kRelay };

// "leaf", "hierarchy", "frontend", "relay".
std::string_view ToString(ServiceKind kind);

struct ServiceRecord {
  ServiceKind kind = ServiceKind::kLeaf;
  std::string
      name;  // the cell of a leaf, the node of a hierarchy; empty: not said (an address alone)
  std::string replica;  // tells replicas of one name apart
  std::string grpc;     // HOST:PORT as others reach it
  std::string http;     // may be empty
  Epoch epoch = 0;
  uint64_t instance_id = 0;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> serves;  // models
  std::optional<Load> load;

  friend bool operator==(const ServiceRecord&, const ServiceRecord&) = default;
};

// Name and replica (or the address of a nameless one): there is one live record of an id and kind.
std::string IdOf(const ServiceRecord& record);

// The same service, whatever its load is now.
bool SameButLoad(const ServiceRecord& a, const ServiceRecord& b);

std::string ToJson(const ServiceRecord& record);
// The value of `load`.
std::string LoadToJson(const Load& load);

// INVALID_ARGUMENT, naming the field: not a record, or over a bound.
absl::StatusOr<ServiceRecord> ServiceRecordFromJson(std::string_view json);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_SERVICE_RECORD_H_
