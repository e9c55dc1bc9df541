// The fleet as this frontend sees it. Nodes and leaves are asked about themselves while a browser
// looks at the page, and not at all otherwise.
//
//   Get ─▶ what is known ─▶ page
//     ╰▶ wanted ─▶ round: nodes, top down ─▶ the cells that they name ─▶ leaves, those asked longest ago first
//
// *Truth*: a peer that did not answer keeps what it said last, with its age. A node or leaf that
// refuses connections, or is late twice, is unreachable; one late answer is only late. A cell that
// every node has stopped to name is forgotten, unless `leaves` has it.
// *Place*: never on a route's path: a thread of its own, and answers on gRPC's threads that fill a
// slot.
// *Threads*: any. *Cost* of a round: a call per node, and at most `leaves_per_round`; some 1 MB of
// answers at 4,096 cells. Rounds are `every` apart, one at a time, each at most (levels + 1) ×
// `deadline` long.
// *Bounds*: `FleetWatchOptions`.
// *Lifetime*: asker and sources outlive it.

#ifndef KVATLAS_FRONTEND_UI_FLEET_WATCH_H_
#define KVATLAS_FRONTEND_UI_FLEET_WATCH_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "frontend/ui/peer_asker.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/ui/fleet.h"

namespace kvatlas {

struct FleetWatchOptions {
  Duration every = std::chrono::seconds(2);
  Duration deadline = std::chrono::milliseconds(200);
  Duration wanted_for = std::chrono::seconds(10);  // after the last look
  size_t nodes_max = 256;                          // asked in a round
  size_t cells_max = 16384;
  size_t leaves_per_round = 64;
  size_t workers_max = 65536;  // kept one by one; of further cells sums alone
};

struct FleetSources {
  std::function<std::vector<std::string>()> nodes;  // addresses of the top level
  std::function<std::vector<std::pair<std::string, std::string>>()>
      leaves;  // own cells: name, address
};

class FleetWatch {
 public:
  FleetWatch(FleetWatchOptions options, FleetSources sources, PeerAsker* asker, const Clock* clock);
  ~FleetWatch();  // waits for the round under way

  FleetWatch(const FleetWatch&) = delete;
  FleetWatch& operator=(const FleetWatch&) = delete;

  // Cells, streams and peers as known; `fresh` unless nothing was asked lately. Rounds are made
  // from now on, for a while. `cell`, if it is named, is among those asked first. Never waits for a
  // peer.
  FleetPage Get(const std::string& cell = "");

  // Known cells with their leaves' addresses, but for those that are unreachable.
  std::vector<std::pair<std::string, std::string>> Leaves();

  // A round by itself, on the caller's thread. REQUIRES: `Start` was not called.
  void Round();
  // Rounds as wanted, on a thread of its own.
  void Start();

 private:
  using Answer = absl::StatusOr<v1::StatsResponse>;
  struct Question {
    StatsOf what;
    std::string address;
  };
  // How the asking of one address went.
  struct Peer {
    std::string kind, name, version, error;
    std::optional<Time> answered;
    uint32_t failed = 0;  // times in a row
    bool gone = false;    // connections are refused
    bool refused = false;
    std::string state() const;
  };
  struct Cell {
    FleetCell reported;  // by nodes; or empty, of an own cell
    bool is_reported = false;
    std::string address;
    std::optional<FleetCell> told;  // by its leaf
    std::vector<FleetStream> streams;
    uint64_t streams_total = 0;
    std::optional<Time> asked, answered;
    uint64_t seen = 0;  // the last round that named it
  };
  struct Node {
    std::vector<FleetStream> streams;
    uint64_t streams_total = 0;
  };
  struct Named {
    std::string address, region;
  };

  std::vector<Answer> AskAll(const std::vector<Question>& questions);
  void AskNodes(uint64_t round);
  void AskLeaves(uint64_t round);
  void TakeNode(const Named& node, const Answer& answer, uint64_t round, std::vector<Named>* lower)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeLeaf(const std::string& name, Answer answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Peer& Note(const std::string& kind, const std::string& address, const Answer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(uint64_t round, bool all_answered) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::string> NextLeaves() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FleetCell Shown(const std::string& name, const Cell& cell, int64_t now_ms) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  const FleetWatchOptions options_;
  const FleetSources sources_;
  PeerAsker* const asker_;
  const Clock* const clock_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Time> wanted_ ABSL_GUARDED_BY(mutex_);
  std::string wanted_cell_ ABSL_GUARDED_BY(mutex_);
  std::optional<Time> ended_ ABSL_GUARDED_BY(mutex_);  // the last round
  uint64_t rounds_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Cell> cells_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Node> nodes_ ABSL_GUARDED_BY(mutex_);  // by address
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);  // by address
  std::set<std::string> models_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_FLEET_WATCH_H_
