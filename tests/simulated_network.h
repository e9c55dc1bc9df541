// What happens when, in a world of its own? Simulated time, and links that delay, lose and are cut.
//
//   StreamSender ─▶ SimulatedLink ──── delay, loss, partitions ───▶ StreamAcceptor
//                         ▲ ─────────────── the same ──────────────────── │ replies
//
// *Truth*: what is due at the same moment happens in the order it was asked for, so a run depends
// on nothing but its seeds. Messages arrive in order. A lost one, or one during a partition, is
// gone; the connection stays.
// *Threads*: one. *Bounds*: none of its own; streams have windows.

#ifndef KVATLAS_TESTS_SIMULATED_NETWORK_H_
#define KVATLAS_TESTS_SIMULATED_NETWORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

class Simulation {
 public:
  // Time begins at one second.
  Simulation();

  const Clock& clock() const { return clock_; }
  Time now() const { return clock_.Now(); }

  // A moment that is past means now.
  void At(Time when, std::function<void()> what);
  void After(Duration wait, std::function<void()> what) { At(now() + wait, std::move(what)); }

  // Everything due up to and with `end` happens; then it is `end`.
  void RunUntil(Time end);

  // From now on no link loses anything or is cut.
  void CalmDown() { calm_ = true; }
  bool calm() const { return calm_; }

 private:
  struct Due {
    Time when;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Due& other) const {
      return std::pair(when, order) > std::pair(other.when, other.order);
    }
  };

  ManualClock clock_;
  uint64_t order_ = 0;
  bool calm_ = false;
  std::priority_queue<Due> due_;
};

struct NetworkOptions {
  Duration delay{0};            // one way
  double loss = 0;              // of every message, both ways
  Duration partition_every{0};  // the mean time from the end of one to the next; 0: never
  Duration partition_for{0};
};

class SimulatedLink : public SenderLink {
 public:
  // `simulation`, `acceptor` and `lost` outlive it. `lost` counts messages, those of partitions
  // too; may be null.
  SimulatedLink(Simulation* simulation, StreamAcceptor* acceptor, const NetworkOptions& options,
                uint64_t seed, uint64_t* lost = nullptr);
  ~SimulatedLink() override;

  void Start(SenderLinkObserver* observer) override;
  bool Write(const SenderMessage& message) override;
  void Reset() override;
  void Stop(std::chrono::nanoseconds flush_for) override;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_SIMULATED_NETWORK_H_
