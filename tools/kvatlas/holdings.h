// Dumps of any source in one form: which holder holds what, according to that source, and how two
// of them differ.
//
//   leaf=HOST:PORT  hierarchy=HOST:PORT    over gRPC
//   relay=HOST:PORT                        over HTTP: what it tells leaves
//   file=PATH                              lines of JSON as `kvatlas dump --json` and a relay's /dump have them
//   checkpoint=PATH                        a leaf's checkpoint file, engines that it listened to among its holders
//
// *Truth*: each holder is a consistent cut, different holders are of different moments. What
// changes meanwhile differs and is no fault: look again, and take what differs every time
// (`Persisting`).
// *Threads*: none. *Cost*: about 50 bytes a holding.

#ifndef KVATLAS_TOOLS_KVATLAS_HOLDINGS_H_
#define KVATLAS_TOOLS_KVATLAS_HOLDINGS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

struct HoldingsOf {
  std::array<std::set<uint64_t>, kTiers> blocks;  // sequence hashes
  // Names of side blocks of hybrid models, by their class in words (`SideText`); of a class that
  // the source does not know, "".
  std::map<std::string, std::array<std::set<uint64_t>, kTiers>> sides;
  std::string trust;  // "exact"; empty: the source does not say
};

// By domain and holder.
using HolderKey = std::pair<Domain, HolderId>;
using AllHoldings = std::map<HolderKey, HoldingsOf>;

struct DumpFilter {
  std::string model;  // empty: all domains
  std::string tenant;
  std::string worker;  // empty: all

  bool Wants(const std::string& its_model, const std::string& its_tenant) const;
  bool Wants(const std::string& its_model, const std::string& its_tenant,
             const std::string& its_worker) const;
};

enum class SourceKind { kLeaf, kHierarchy, kRelay, kFile, kCheckpoint };

struct Source {
  SourceKind kind = SourceKind::kLeaf;
  std::string where;  // HOST:PORT or a path

  // INVALID_ARGUMENT, naming the text.
  static absl::StatusOr<Source> Parse(std::string_view text);
  std::string ToString() const;  // "leaf=127.0.0.1:7410"
};

// In pieces; the last piece of a holder says so.
absl::Status ReadSource(const Source& source, const DumpFilter& filter, Duration timeout,
                        const std::function<void(const v1::DumpResponse&)>& visit);

// The same, put together. NOT_FOUND: the domain is unknown there.
absl::StatusOr<AllHoldings> LoadSource(const Source& source, const DumpFilter& filter,
                                       Duration timeout);

// Where two sources differ: of one holder in one tier, in its main blocks or in its blocks of one
// side class.
struct Difference {
  HolderKey holder;
  Tier tier = Tier::kDevice;
  bool sides = false;
  std::string side;  // the class; empty: of the main class, or not known
  std::set<uint64_t> only_left;
  std::set<uint64_t> only_right;
};

// In order. With `only_holders_of_…` holders that the other side alone knows are no difference (a
// relay knows its own alone). Where one side does not know the class of a side block, the class
// that the other side says counts.
std::vector<Difference> Compare(const AllHoldings& left, const AllHoldings& right,
                                bool only_holders_of_left, bool only_holders_of_right);

// The part of each difference that is in both.
std::vector<Difference> Persisting(const std::vector<Difference>& before,
                                   const std::vector<Difference>& now);

// "w0", "w0/1" for rank 1, "cell-a@b" for a replica.
std::string HolderText(const HolderId& holder);
std::string HolderText(const v1::Holder& holder);
// "model" or "model/tenant".
std::string DomainName(const Domain& domain);
std::string DomainName(const v1::Domain& domain);
// "window:127", and with another block size than the main class's "window:127/64".
std::string SideText(const CacheClass& side, uint32_t main_block_size);
// The text of a run's class; "": the teller does not know it.
std::string SideTextOf(const v1::DumpResponse& piece, const v1::Stored& run);
const char* TierText(Tier tier);         // "device"
const char* TrustText(v1::Trust trust);  // "exact"

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_HOLDINGS_H_
