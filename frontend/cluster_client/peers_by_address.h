// Connections to leaves and hierarchy nodes by address, the least recently used given up first.
//
// *Threads*: any.
// *Bounds*: `kPeersMax` peers; beyond, the one asked longest ago is given up.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_PEERS_BY_ADDRESS_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_PEERS_BY_ADDRESS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kPeersMax = 4096;

template <typename Peer>
class PeersByAddress {
 public:
  using Pointer = std::shared_ptr<Peer>;

  explicit PeersByAddress(std::function<Pointer(const std::string& address)> make)
      : make_(std::move(make)) {}

  // The peer given up for it comes back in `given_up`, else null does.
  Pointer Get(const std::string& address, Pointer* given_up) {
    MutexLock lock(&mutex_);
    Entry& entry = peers_[address];
    if (entry.peer == nullptr) entry.peer = make_(address);
    entry.used = ++uses_;
    Pointer peer = entry.peer;
    *given_up = peers_.size() > kPeersMax ? TakeOldest() : nullptr;
    return peer;
  }

  std::vector<Pointer> All() const {
    MutexLock lock(&mutex_);
    std::vector<Pointer> all;
    for (const auto& [address, entry] : peers_) all.push_back(entry.peer);
    return all;
  }

  std::vector<Pointer> TakeAll() {
    MutexLock lock(&mutex_);
    std::vector<Pointer> all;
    for (auto& [address, entry] : peers_) all.push_back(std::move(entry.peer));
    peers_.clear();
    return all;
  }

 private:
  struct Entry {
    Pointer peer;
    uint64_t used = 0;
  };

  Pointer TakeOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto oldest = std::min_element(
        peers_.begin(), peers_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    Pointer peer = std::move(oldest->second.peer);
    peers_.erase(oldest);
    return peer;
  }

  const std::function<Pointer(const std::string& address)> make_;
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_PEERS_BY_ADDRESS_H_
