// Overlaps of the leaf in this process, and beside the workers that it knows every engine of which
// it heard nothing.
//
// *Truth*: the leaf's answer (`lookup_clients/in_process_lookup_clients.h`), with the load from an
// engine's metrics where its events say none; and every engine of the model that answers over HTTP
// and of which no event was heard: without a block, `kGuessed`. The blocks that it may have, by
// what was sent there (`guessed_blocks.h`), are pending blocks: they count for the choice, and
// nothing is promised. The guess ends with the first event of the engine. Further names of a model
// are asked as the model.
// *Threads*: as `OverlapFinder`; of the own leaf the callback runs before the call returns.
// *Cost*: the leaf's answer; labels are joined again when the leaf's or the engines change.

#ifndef KVATLAS_FRONTEND_SERVE_ENGINE_FINDER_H_
#define KVATLAS_FRONTEND_SERVE_ENGINE_FINDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/serve/engine_fleet.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/routed.h"
#include "indexer/registry/guessed_blocks.h"

namespace kvatlas {

struct GuessOptions {
  // Blocks that an engine without events is taken to have room for, where its metrics do not say;
  // 0: nothing is guessed.
  uint32_t pool_blocks = 16384;
  uint32_t block_size = 16;  // of prompts, where the leaf does not say
};

class EngineFinder : public OverlapFinder {
 public:
  // `own`: the address that means this process's leaf; `finder` asks it, and others. `view` may
  // return null. Everything outlives the finder.
  EngineFinder(std::string own, OverlapFinder* finder,
               std::function<std::shared_ptr<const EngineView>()> view, const GuessOptions& guess);

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;
  void Tell(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
            const Routed& routed) override;
  void End(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
           const RouteOver& over) override;

 private:
  // A request that was sent to an engine of which no event was heard.
  struct SentTo {
    HolderId worker;
    uint32_t guessed = 0;  // blocks that it had
    uint32_t block_size = 0;
  };
  // Engines of a domain of which no event was heard, as of the last answer.
  struct Silent {
    std::set<std::string> names;
    uint32_t block_size = 0;
  };
  static constexpr size_t kSentMax = 65536;

  // Returns how many they are.
  size_t NoteSilent(const Domain& domain, Silent silent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks that the engine's cache has, as its metrics say.
  size_t PoolOf(const Domain& domain, const HolderId& worker) const;

  // As the own leaf knows it.
  Domain AsAsked(const std::string& leaf_address, Domain domain) const;

  struct Joined {
    std::shared_ptr<const LabelsByWorker> of_leaf;
    std::shared_ptr<const EngineView> view;
    std::shared_ptr<const LabelsByWorker> labels;
  };

  void AddEngines(const Domain& domain, const EngineView::Engines& engines,
                  const std::shared_ptr<const EngineView>& view,
                  std::span<const SequenceHash> sequence, WorkersAnswer* answer);
  std::shared_ptr<const LabelsByWorker> Join(const Domain& domain,
                                             const EngineView::Engines& engines,
                                             const std::shared_ptr<const EngineView>& view,
                                             const std::shared_ptr<const LabelsByWorker>& of_leaf);

  const std::string own_;
  OverlapFinder* const finder_;
  const std::function<std::shared_ptr<const EngineView>()> view_;
  const GuessOptions guess_;
  std::atomic<bool> any_silent_{false};  // some engine ever was: else no question takes the lock
  Mutex mutex_;
  std::map<Domain, Joined> joined_ ABSL_GUARDED_BY(mutex_);
  std::map<Domain, Silent> silent_ ABSL_GUARDED_BY(mutex_);
  GuessedBlocks guessed_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, SentTo> sent_ ABSL_GUARDED_BY(mutex_);  // by decision
};
}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_ENGINE_FINDER_H_
