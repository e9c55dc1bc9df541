// What does a leaf pay for knowing what an event changed? Applies events to an index as a leaf's
// holder does (`indexer/registry/holder.h`): without asking for changes, with, or with a `Coverage`
// that they go to.
//
//   none       changes are not asked for
//   digest     changes are counted, and the holder's digest is read after every event
//   coverage   changes are counted and callback to a `Coverage`; what is due is taken every `kBlocksPerTake` blocks
//
// *Truth*: all of it is done inside `Apply`, also what a leaf's reporter does on a thread of its
// own.
// *Threads*: one. *Lifetime*: index and clock outlive it.

#ifndef KVATLAS_TOOLS_BENCH_BENCH_SINK_H_
#define KVATLAS_TOOLS_BENCH_BENCH_SINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/coverage/coverage.h"
#include "indexer/index/index.h"
#include "tools/bench/bench_options.h"

namespace kvatlas {

class BenchSink {
 public:
  // What a leaf takes in between two of its reporter's ticks, of 10 to 20 ms, at 3 to 6 million
  // blocks a second.
  static constexpr uint64_t kBlocksPerTake = 1 << 16;
  // As many as a reporter takes in a tick.
  static constexpr size_t kWaypointsPerTake = 1 << 14;

  // Called with what was taken.
  using Callback = std::function<void(const std::vector<Event>& due)>;

  BenchSink(SinkKind kind, Index* index, const Clock* clock, Callback callback = nullptr);

  // As `Index::Apply`, and what the kind asks for.
  absl::Status Apply(HolderIndex holder, const Event& event);

  // Takes what is due now, as `Apply` does now and then. REQUIRES: coverage.
  void Take();
  // Null: another kind.
  const Coverage* coverage() const { return coverage_.get(); }

  // Real changes so far, and blocks held; 0 of kind none.
  uint64_t changed_blocks() const { return changed_blocks_; }
  uint64_t held_blocks() const { return held_blocks_; }
  // The one read last. Of kind digest.
  const Digest& digest() const { return digest_; }

 private:
  const SinkKind kind_;
  Index* const index_;
  const Callback callback_;
  std::unique_ptr<Coverage> coverage_;
  ChangeLog changes_;  // of the event that is being applied; keeps its memory
  Digest digest_;
  uint64_t changed_blocks_ = 0;
  uint64_t held_blocks_ = 0;
  uint64_t until_take_ = kBlocksPerTake;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_BENCH_SINK_H_
