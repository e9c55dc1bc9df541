// Asks a leaf about its workers, as against about prompts.
//
// *Threads*: called from any; a callback is called once, from any thread, possibly before the call
// returns.

#ifndef KVATLAS_FRONTEND_ACCURACY_LEAF_PROBER_H_
#define KVATLAS_FRONTEND_ACCURACY_LEAF_PROBER_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/accuracy/evidence.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// The answer about one domain of one leaf.
struct LeafAnswer {
  std::string contract;
  uint32_t block_size = 0;  // 0: it does not know the domain
  std::map<HolderId, LeafView> workers;
};

class LeafProber {
 public:
  using Callback = std::function<void(absl::StatusOr<LeafAnswer>)>;
  virtual ~LeafProber() = default;
  virtual void Probe(const std::string& leaf_address, const Domain& domain, Duration deadline,
                     Callback callback) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_LEAF_PROBER_H_
