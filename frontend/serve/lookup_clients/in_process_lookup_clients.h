// The frontend's questions to leaves, answered in the same process: by a call into the leaf's
// registry, without a socket and without a message.
//
// *Place*: a process that has both a frontend and a leaf, which never include each other; this is
// above both.
// *Truth*: the answer, or the code of the refusal, that the leaf's service gives to the same
// question over gRPC: the same workers in the same order, the same bounds on names, blocks and
// memory. Other than there, a name that is not UTF-8, which no message can carry, is
// INVALID_ARGUMENT. An answer that took longer than the deadline is DEADLINE_EXCEEDED.
// *Threads*: any. For the own address the callback runs in the caller's thread, before the call
// returns.
// *Cost*: the registry's query, a sort of W workers, and per worker a copy of its id. Labels are
// copied when one of the domain's changes, and else shared by all answers.
// *Bounds*: labels of `kLabelDomainsMax` domains are kept; beyond, all are copied again.
// *Lifetime*: registry, clock and `others` outlive the finder.
//
// Example:
//   InProcessOverlapFinder finder("own", &leaf->registry(), /*others=*/nullptr, &Clock::Real());
//   Frontend frontend({.leaves = {{"cell", "own"}}}, &cell_finder, &finder, &Clock::Real());

#ifndef KVATLAS_FRONTEND_SERVE_LOOKUP_CLIENTS_IN_PROCESS_LOOKUP_CLIENTS_H_
#define KVATLAS_FRONTEND_SERVE_LOOKUP_CLIENTS_IN_PROCESS_LOOKUP_CLIENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

inline constexpr size_t kLabelDomainsMax = 1024;

class InProcessOverlapFinder : public OverlapFinder {
 public:
  // `own` is the address that means `registry`. Every other address is asked through `others`;
  // without them it is UNAVAILABLE. `asked`, where there is one, is called at each question to
  // `registry`.
  InProcessOverlapFinder(std::string own, HolderRegistry* registry, OverlapFinder* others,
                         const Clock* clock, std::function<void()> asked = nullptr);

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;
  void Tell(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
            const Routed& routed) override;
  void End(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
           const RouteOver& over) override;

 private:
  struct KnownLabels {
    uint64_t version = 0;
    std::shared_ptr<const LabelsByWorker> labels;
  };

  absl::StatusOr<WorkersAnswer> Find(const OverlapQuestion& question);
  std::shared_ptr<const LabelsByWorker> LabelsOf(const Domain& domain, const OverlapAnswer& answer);

  const std::string own_;
  HolderRegistry* const registry_;
  OverlapFinder* const others_;
  const Clock* const clock_;
  const std::function<void()> asked_;
  Mutex mutex_;
  absl::flat_hash_map<Domain, KnownLabels> labels_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_LOOKUP_CLIENTS_IN_PROCESS_LOOKUP_CLIENTS_H_
