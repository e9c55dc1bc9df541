// A leaf's registry and the publishers that feed it, in memory and in manual time, for tests that
// kill the leaf and look at how the publishers go on.

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_TEST_UTIL_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_TEST_UTIL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/checkpoint/file_layer.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

inline constexpr char kTestCell[] = "cell-a";

// A holder's blocks: tier, block, position, parent; side blocks at `kSidePosition`.
using Contents = std::set<std::tuple<int, uint64_t, Position, uint64_t>>;
using AllContents = std::map<std::pair<Domain, HolderId>, Contents>;

inline constexpr Position kSidePosition = UINT32_MAX;

// The classes of a hybrid publisher.
CacheLayout TestLayout();

Contents ContentsOf(const std::vector<Stored>& runs);

// One publisher: what it holds, and its stream.
class TestPublisher {
 public:
  TestPublisher(Domain domain, const std::string& name, Epoch epoch, const SenderOptions& options,
                const Clock* clock);

  void Change(const Event& event);
  // From now on it has the classes of `TestLayout`.
  void BecomeHybrid();
  // One random change.
  void ChangeSomething(std::mt19937_64* random);
  void Connect(HolderRegistry* registry);
  void Disconnect();
  bool connected() const { return session_ != nullptr; }
  // Exchanges at most that many messages; false: neither side had more to send.
  bool Exchange(int messages);
  // No message is on its way any more.
  bool AtRest() const;

  const Domain& domain() const { return identity_.domain; }
  const HolderId& holder() const { return identity_.holder; }
  const StreamSender& sender() const { return *sender_; }
  const CacheLayout& layout() const { return resident_.layout(); }
  Contents contents() const { return ContentsOf(resident_.AsRuns()); }

 private:
  const Clock* const clock_;
  const SenderIdentity identity_;
  ResidentSet resident_;
  std::unique_ptr<StreamSender> sender_;
  std::deque<ReceiverMessage> replies_;
  std::unique_ptr<ReceiverSession> session_;  // ends first
};

// A registry with its checkpointer. To kill it is to destroy it.
class CheckpointedLeaf {
 public:
  CheckpointedLeaf(const Clock* clock, FileLayer* files, const std::string& directory,
                   uint32_t keep = 3, IndexOptions index = {});

  HolderRegistry& registry() { return *registry_; }
  Checkpointer& checkpointer() { return *checkpointer_; }
  Metrics& metrics() { return metrics_; }
  AllContents Contents() const;
  CacheLayout LayoutOf(const Domain& domain, const HolderId& holder) const;
  // The holder in an answer; nothing: it is in none.
  std::optional<HolderOverlap> AnswerOf(const Domain& domain, const HolderId& holder,
                                        std::vector<SequenceHash> prompt = {}) const;

 private:
  Metrics metrics_;
  std::unique_ptr<HolderRegistry> registry_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_TEST_UTIL_H_
