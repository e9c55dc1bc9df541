// A leaf that starts learns what engines hold from another replica, without missing or repeating
// anything that engines send meanwhile.
//
//   1. register the engines that this leaf and its peer know: sockets subscribe, messages wait
//     behind the gate
//   2. wait until they are connected, for a while
//   3. fetch the peer's snapshot, which is younger than the subscriptions: names and positions
//   4. the owner opens the gate: each stream goes on after its position
//
// A peer without a snapshot is taken for Dynamo's indexer: its /workers and /dump are read. A dump
// has no positions, so its blocks are unconfirmed.
// *Truth*: everything is of one peer, the first that tells everything; nothing is kept of a peer
// that broke off.
// *Bounds*: a peer is not trusted. What it tells has a size, a least speed, a time and a number of
// workers (`PeerRecoveryOptions`); beyond one of them it is given up as one that broke off, and a
// line of the log says which.
// *Threads*: `Run` waits; `Cancel` from any other.

#ifndef KVATLAS_INDEXER_CHECKPOINT_PEER_RECOVERY_H_
#define KVATLAS_INDEXER_CHECKPOINT_PEER_RECOVERY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/net/http_fetch.h"
#include "indexer/process/readiness.h"

namespace kvatlas {

struct PeerRecoveryOptions {
  std::vector<std::string> peers;  // in the order they are asked
  HashContract contract;
  uint32_t rounds = 2;  // through all peers
  Duration round_wait = std::chrono::milliseconds(500);
  // For engines' connections, before the peer is asked what they hold; and for subscriptions to
  // arrive.
  Duration connect_wait = std::chrono::seconds(2);
  Duration settle_wait = std::chrono::milliseconds(100);
  // For all that one peer is asked; then the next one is.
  Duration peer_timeout = std::chrono::minutes(10);
  // Workers' ranks that are taken over from a peer; one that tells of more is not recovered from.
  uint32_t workers_max = 2048;
  HttpFetchOptions fetch = {.body_bytes_max = uint64_t{32} << 30};
};

class PeerRecovery {
 public:
  // Directory and readiness outlive it. The directory is not open yet; its registrations are this
  // leaf's own.
  PeerRecovery(PeerRecoveryOptions options, EngineDirectory* directory, ReadinessGate* readiness);
  ~PeerRecovery();

  // OK: a peer told everything, an empty one too. UNAVAILABLE: none did, and nothing was learnt.
  // CANCELLED.
  absl::Status Run();

  void Cancel();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_PEER_RECOVERY_H_
