// Which other replicas does this leaf know? Where it recovers from when it starts, and what it
// tells those who ask.
//
// *Truth*: any text, without repeats, in the order it was told: clients of the field's services
// register what they like.
// *Threads*: any. *Bounds*: `kPeersKnownMax`.

#ifndef KVATLAS_INDEXER_CHECKPOINT_REPLICA_PEERS_H_
#define KVATLAS_INDEXER_CHECKPOINT_REPLICA_PEERS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kPeersKnownMax = 1024;

class Peers {
 public:
  explicit Peers(std::vector<std::string> urls = {});

  // RESOURCE_EXHAUSTED.
  absl::Status Add(const std::string& url);
  // NOT_FOUND: "peer not found".
  absl::Status Remove(const std::string& url);
  std::vector<std::string> List() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::string> urls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_REPLICA_PEERS_H_
