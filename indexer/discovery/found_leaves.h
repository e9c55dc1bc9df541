// Which leaves does a sender of holdings tell, now? The replicas of its cell's leaf: given as
// addresses, found by DNS names, by EndpointSlices, or by leases in Redis.
//
//   10.0.0.5:7410               given: always told
//   dns:leaf.cell-a:7410        every address of the name
//   k8s:leaf-a.llm:7410         every ready endpoint of a Service
//   redis://10.0.0.9:6379       every leaf of the cell that announces itself there
//
// *Truth*: whatever fails, leaves stay as they were; there is never a change to an empty list: a
// single leaf that comes back at its address then finds its stream where it was. Addresses are
// compared as texts: name a leaf in one way.
// *Threads*: one at a time. *Cost*: `Changed` takes a short lock; call it a few times a second.
// *Bounds*: `kFoundLeavesMax` addresses. Beyond, those known before stay, which others are left out
// is logged.
//
// Example:
//   absl::StatusOr<std::unique_ptr<FoundLeaves>> leaves =
//   FoundLeaves::Open({"redis://10.0.0.9:6379"}, "cell-a");
//   for (const std::string& address : (*leaves)->addresses()) …
//   ...                                             // a few times a second:
//   if (auto changed = (*leaves)->Changed(); changed.has_value()) …

#ifndef KVATLAS_INDEXER_DISCOVERY_FOUND_LEAVES_H_
#define KVATLAS_INDEXER_DISCOVERY_FOUND_LEAVES_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/discovery/directory.h"

namespace kvatlas {

inline constexpr size_t kFoundLeavesMax = 16;

class FoundLeaves {
 public:
  // INVALID_ARGUMENT, naming the entry: it cannot be understood; leases without a cell; too many.
  // Nothing need be reachable, and nothing is waited for but `options.first_answer`. `options` are
  // for DNS and Redis; entries, kind and name are filled in.
  static absl::StatusOr<std::unique_ptr<FoundLeaves>> Open(const std::vector<std::string>& entries,
                                                           const std::string& cell,
                                                           DirectoryOptions options = {});
  // Refuses what `Open` refuses, without opening; for flags.
  static absl::Status Check(const std::vector<std::string>& entries, const std::string& cell);

  ~FoundLeaves();
  FoundLeaves(const FoundLeaves&) = delete;
  FoundLeaves& operator=(const FoundLeaves&) = delete;

  // As of `Open` or the last look: those given, as they are written, then those found.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // In any other way: leaves may come.
  bool finds() const { return found_ != nullptr; }

  // The addresses, when they are others than at the last look.
  std::optional<std::vector<std::string>> Changed();

 private:
  struct Found;
  FoundLeaves();
  // Known addresses first, in their order.
  std::vector<std::string> Merged(const std::vector<std::string>& found) const;

  std::vector<std::string> given_;
  std::vector<std::string> addresses_;
  std::unique_ptr<Found> found_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_FOUND_LEAVES_H_
