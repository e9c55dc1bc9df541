// A leaf as a publisher sees it, for tests and benchmarks: a real receiver over real gRPC, with a
// plain set behind it.
//
// *Threads*: any.
//
// Example:
//   FakeLeaf leaf;
//   TestServer server(&leaf);
//   … Publisher::Create({.leaves = {server.target()}, …});

#ifndef KVATLAS_PUBLISHER_FAKE_LEAF_H_
#define KVATLAS_PUBLISHER_FAKE_LEAF_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "indexer/net/grpc_server.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"
#include "indexer/stream/resident_set.h"
#include "indexer/transport/grpc_acceptor.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {

// (tier, block)
using Holdings = std::set<std::pair<int, uint64_t>>;

inline Holdings HoldingsOf(const std::vector<Stored>& runs) {
  Holdings holdings;
  for (const Stored& run : runs) {
    for (SequenceHash block : run.blocks) holdings.insert({static_cast<int>(run.tier), Raw(block)});
  }
  return holdings;
}

// One worker as a leaf knows it: a set, and the receiver in front of it.
class FakeLeaf : public StreamAcceptor, private HoldingsSink {
 public:
  FakeLeaf() : receiver_(ReceiverOptions(), this) {}

  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    return std::make_unique<Session>(this, std::move(reply));
  }

  Holdings holdings() {
    MutexLock lock(&mutex_);
    return HoldingsOf(set_.AsRuns());
  }
  CacheLayout layout() {
    MutexLock lock(&mutex_);
    return set_.layout();
  }
  // The blocks of one class that it holds.
  Holdings holdings_of(SideClass side) {
    MutexLock lock(&mutex_);
    std::vector<Stored> runs = set_.AsRuns();
    std::erase_if(runs, [&](const Stored& run) { return run.side != side; });
    return HoldingsOf(runs);
  }
  Load load() {
    MutexLock lock(&mutex_);
    return load_;
  }
  ReceiverStats stats() {
    MutexLock lock(&mutex_);
    return receiver_.stats();
  }
  bool gone() {
    MutexLock lock(&mutex_);
    return receiver_.gone();
  }
  bool seen_hello() {
    MutexLock lock(&mutex_);
    return receiver_.epoch() != 0;
  }

 private:
  class Session : public ReceiverSession {
   public:
    Session(FakeLeaf* leaf, ReplyFn reply) : leaf_(leaf), reply_(std::move(reply)) {}
    ~Session() override {
      MutexLock lock(&leaf_->mutex_);
      if (leaf_->session_ == this) leaf_->receiver_.OnDisconnected(Clock::Real().Now());
    }
    absl::Status OnMessage(SenderMessage message) override {
      std::vector<ReceiverMessage> replies;
      absl::Status status;
      {
        MutexLock lock(&leaf_->mutex_);
        if (std::holds_alternative<Hello>(message)) leaf_->session_ = this;
        if (leaf_->session_ != this) return absl::FailedPreconditionError("replaced");
        status = leaf_->receiver_.OnMessage(message, Clock::Real().Now(), &replies);
      }
      for (ReceiverMessage& reply : replies) reply_(std::move(reply));
      return status;
    }

   private:
    FakeLeaf* const leaf_;
    const ReplyFn reply_;
  };

  // Called with the mutex held, by the receiver.
  absl::Status Apply(const Event& event) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    set_.Apply(event);
    return absl::OkStatus();
  }
  void SetLayout(const CacheLayout& layout) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    set_.SetLayout(layout);
  }
  void SetLoad(const Load& load) override ABSL_NO_THREAD_SAFETY_ANALYSIS { load_ = load; }
  void ForEachHeld(const std::function<void(SequenceHash, TierMask, SideClass)>& visit) override
      ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::map<uint64_t, TierMask> held;
    for (const auto& [tier, block] : HoldingsOf(set_.AsRuns())) {
      held[block] = held[block] | static_cast<Tier>(tier);
    }
    for (const auto& [block, tiers] : held) visit(SequenceHash{block}, tiers, 0);
  }
  Digest CurrentDigest() override ABSL_NO_THREAD_SAFETY_ANALYSIS { return set_.digest(); }

  Mutex mutex_;
  ResidentSet set_ ABSL_GUARDED_BY(mutex_);
  Load load_ ABSL_GUARDED_BY(mutex_);
  const void* session_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the latest that said hello
  StreamReceiver receiver_ ABSL_GUARDED_BY(mutex_);
};

class TestServer {
 public:
  explicit TestServer(StreamAcceptor* acceptor, uint16_t port = 0)
      : streams_(acceptor), server_({.listen = {"127.0.0.1", port}}) {
    server_.Register(streams_.service(), "kvatlas.v1.Holdings");
    status_ = server_.Start();
  }
  ~TestServer() {
    server_.Stop(Duration(0));
    // For one that comes back.
    static ReservedTestPorts& held = *new ReservedTestPorts;
    (void)held.Hold(server_.address());
  }
  std::string target() const { return server_.address().ToString(); }
  uint16_t port() const { return server_.address().port; }
  const absl::Status& status() const { return status_; }

 private:
  GrpcAcceptor streams_;
  GrpcServer server_;
  absl::Status status_;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_FAKE_LEAF_H_
