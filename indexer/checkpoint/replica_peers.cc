// URLs of replicas as texts in the order of registration. They are not parsed: Dynamo's clients
// register what they like, and only --peers is recovered from.

#include "indexer/checkpoint/replica_peers.h"

#include <algorithm>

namespace kvatlas {

Peers::Peers(std::vector<std::string> urls) {
  for (const std::string& url : urls) (void)Add(url);
}

// A URL that is known already is OK and changes nothing. The search is linear: at most
// `kPeersKnownMax`.
absl::Status Peers::Add(const std::string& url) {
  MutexLock lock(&mutex_);
  if (std::find(urls_.begin(), urls_.end(), url) != urls_.end()) return absl::OkStatus();
  if (urls_.size() >= kPeersKnownMax)
    return absl::ResourceExhaustedError("too many peers: " + std::to_string(kPeersKnownMax));
  urls_.push_back(url);
  return absl::OkStatus();
}

absl::Status Peers::Remove(const std::string& url) {
  MutexLock lock(&mutex_);
  const auto it = std::find(urls_.begin(), urls_.end(), url);
  if (it == urls_.end()) return absl::NotFoundError("peer not found");
  urls_.erase(it);
  return absl::OkStatus();
}

std::vector<std::string> Peers::List() const {
  MutexLock lock(&mutex_);
  return urls_;
}

}  // namespace kvatlas
