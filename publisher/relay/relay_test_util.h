// A leaf as a relay sees it: real receivers, one for each holder, each with a plain set behind it.
//
// *Threads*: any. *Lifetime*: outlives its sessions.
//
// Example:
//   TestLeaf leaf(&clock);
//   InProcessLink link(&leaf);   // or behind a `GrpcAcceptor`

#ifndef KVATLAS_PUBLISHER_RELAY_RELAY_TEST_UTIL_H_
#define KVATLAS_PUBLISHER_RELAY_RELAY_TEST_UTIL_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"
#include "indexer/stream/resident_set.h"

namespace kvatlas {

// (tier, block)
using HeldBlocks = std::set<std::pair<int, uint64_t>>;

class TestLeaf : public StreamAcceptor {
 public:
  explicit TestLeaf(const Clock* clock) : clock_(clock) {}

  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    return std::make_unique<Session>(this, std::move(reply));
  }

  // The blocks of "worker" or "worker/rank". Nothing: never announced.
  std::optional<Trust> TrustOf(const std::string& holder) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(holder);
    if (it == holders_.end()) return std::nullopt;
    return it->second->receiver.trust(clock_->Now());
  }
  HeldBlocks HeldBy(const std::string& holder) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(holder);
    return it == holders_.end() ? HeldBlocks() : it->second->sink.Held();
  }
  CacheLayout LayoutOf(const std::string& holder) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(holder);
    return it == holders_.end() ? CacheLayout() : it->second->sink.layout();
  }
  // From its latest hello; empty: no such label.
  std::string LabelOf(const std::string& holder, const std::string& name) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(holder);
    if (it == holders_.end()) return "";
    for (const auto& [label, value] : it->second->labels)
      if (label == name) return value;
    return "";
  }
  Epoch EpochOf(const std::string& holder) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(holder);
    return it == holders_.end() ? 0 : it->second->receiver.epoch();
  }
  ReceiverStats StatsOf(const std::string& holder) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(holder);
    return it == holders_.end() ? ReceiverStats() : it->second->receiver.stats();
  }
  bool SaidGoodbye(const std::string& holder) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(holder);
    return it != holders_.end() && it->second->receiver.gone();
  }

 private:
  class Sink : public HoldingsSink {
   public:
    absl::Status Apply(const Event& event) override {
      set_.Apply(event);
      return absl::OkStatus();
    }
    void SetLoad(const Load&) override {}
    void SetLayout(const CacheLayout& layout) override { set_.SetLayout(layout); }
    const CacheLayout& layout() const { return set_.layout(); }
    void ForEachHeld(const std::function<void(SequenceHash, TierMask, SideClass)>& visit) override {
      std::map<uint64_t, TierMask> held;
      for (const auto& [tier, block] : Held()) held[block] = held[block] | static_cast<Tier>(tier);
      for (const auto& [block, tiers] : held) visit(SequenceHash{block}, tiers, 0);
    }
    Digest CurrentDigest() override { return set_.digest(); }
    HeldBlocks Held() const {
      HeldBlocks held;
      for (const Stored& run : set_.AsRuns())
        for (const SequenceHash block : run.blocks)
          held.insert({static_cast<int>(run.tier), Raw(block)});
      return held;
    }

   private:
    ResidentSet set_;
  };

  struct Holder {
    Sink sink;
    StreamReceiver receiver{ReceiverOptions(), &sink};
    const void* session = nullptr;
    std::vector<std::pair<std::string, std::string>> labels;
  };

  class Session : public ReceiverSession {
   public:
    Session(TestLeaf* leaf, ReplyFn reply) : leaf_(leaf), reply_(std::move(reply)) {}
    ~Session() override {
      MutexLock lock(&leaf_->mutex_);
      if (holder_ == nullptr || holder_->session != this) return;
      holder_->session = nullptr;
      holder_->receiver.OnDisconnected(leaf_->clock_->Now());
    }
    absl::Status OnMessage(SenderMessage message) override {
      std::vector<ReceiverMessage> replies;
      absl::Status status;
      {
        MutexLock lock(&leaf_->mutex_);
        if (const Hello* hello = std::get_if<Hello>(&message)) holder_ = leaf_->Find(*hello);
        if (holder_ == nullptr) return absl::InvalidArgumentError("no hello");
        if (std::holds_alternative<Hello>(message)) holder_->session = this;
        if (holder_->session != this) return absl::FailedPreconditionError("replaced");
        status = holder_->receiver.OnMessage(message, leaf_->clock_->Now(), &replies);
      }
      for (ReceiverMessage& reply : replies) reply_(std::move(reply));
      return status;
    }

   private:
    TestLeaf* const leaf_;
    const ReplyFn reply_;
    Holder* holder_ = nullptr;
  };

  Holder* Find(const Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string name = hello.holder.name;
    if (hello.holder.rank != 0) name += "/" + std::to_string(hello.holder.rank);
    std::unique_ptr<Holder>& holder = holders_[name];
    if (holder == nullptr) holder = std::make_unique<Holder>();
    holder->labels = hello.labels;
    return holder.get();
  }

  const Clock* const clock_;
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<Holder>> holders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_RELAY_RELAY_TEST_UTIL_H_
