// A worker that tells Redis, and a leaf that hears it there: both ends of the log, small enough for
// tests.
//
// *Truth*: a worker's resident set is what every leaf has to arrive at.

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LOG_HARNESS_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LOG_HARNESS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_url.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_link.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "indexer/transport/redis/redis_reader.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {

inline const Domain kTestDomain{"llama-70b", ""};
inline constexpr char kTestContract[] = "xxh3-chain-1:1337";

// Fails the test when it does not come true.
template <typename Condition>
void AwaitTrue(Condition condition) {
  EXPECT_TRUE(Await(condition, std::chrono::seconds(60)));
}

// Times of seconds become some of 100 ms, so that tests are quick.
inline RedisLogOptions TestLogOptions(const std::string& url) {
  RedisLogOptions options;
  options.redis = *ParseRedisUrl(url);
  options.redis.connect_timeout = options.redis.command_timeout = std::chrono::seconds(30);
  options.look_every = std::chrono::milliseconds(300);
  options.find_every = std::chrono::milliseconds(300);
  options.hello_retry = std::chrono::milliseconds(200);
  return options;
}

inline Event RunOf(uint64_t first, size_t blocks, Tier tier = Tier::kDevice) {
  Stored stored{.tier = tier, .position = 0, .parent = kNoParent, .blocks = {}};
  for (size_t i = 0; i < blocks; ++i) stored.blocks.push_back(SequenceHash{first + i});
  return stored;
}

inline Event RemovalOf(uint64_t first, size_t blocks, Tier tier = Tier::kDevice) {
  Removed removed{.tier = tier, .blocks = {}};
  for (size_t i = 0; i < blocks; ++i) removed.blocks.push_back(SequenceHash{first + i});
  return removed;
}

class RedisWorker {
 public:
  struct Options {
    std::string name = "worker-0";
    Epoch epoch = 1000;
    uint64_t instance_id = 7;
    Duration digest_every = std::chrono::milliseconds(200);
    Duration heartbeat_every = std::chrono::milliseconds(300);
    uint64_t window_batches = 1024;
  };

  RedisWorker(const RedisLogOptions& log, const Options& options) : holder_{options.name, 0, ""} {
    auto link = std::make_unique<RedisLink>(log);
    link_ = link.get();
    const SenderOptions sender{.window_batches = options.window_batches,
                               .digest_every = options.digest_every,
                               .heartbeat_every = options.heartbeat_every,
                               .hello_timeout = std::chrono::milliseconds(500),
                               .replaced_retry = std::chrono::milliseconds(100),
                               .replaced_retry_max = std::chrono::milliseconds(200)};
    SenderIdentity identity;
    identity.holder = holder_;
    identity.domain = kTestDomain;
    identity.block_size = 16;
    identity.contract_id = kTestContract;
    identity.epoch = options.epoch;
    identity.instance_id = options.instance_id;
    pump_ = std::make_unique<SenderPump>(sender, identity, &resident_, &mutex_, std::move(link),
                                         &Clock::Real());
    pump_->Start();
    ticker_ = std::thread([this] {
      while (!stopping_) {
        pump_->Tick();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
  }

  ~RedisWorker() { Stop(false); }

  void Stop(bool goodbye) {
    if (stopping_.exchange(true)) return;
    ticker_.join();
    pump_->Stop(goodbye, std::chrono::seconds(5));
  }

  void Apply(const Event& event) {
    {
      MutexLock lock(&mutex_);
      pump_->Append(resident_.Apply(event), std::nullopt);
    }
    pump_->Flush();
  }
  void SetLoad(const Load& load) {
    {
      MutexLock lock(&mutex_);
      pump_->Append({}, load);
    }
    pump_->Flush();
  }

  void AwaitAtRest() {
    while (!pump_->WaitAtRest(std::chrono::seconds(1))) {
    }
  }

  Digest digest() {
    MutexLock lock(&mutex_);
    return resident_.digest();
  }
  const HolderId& holder() const { return holder_; }
  SenderPump& pump() { return *pump_; }
  RedisLink& link() { return *link_; }

 private:
  const HolderId holder_;
  Mutex mutex_;
  ResidentSet resident_ ABSL_GUARDED_BY(mutex_);
  RedisLink* link_ = nullptr;
  std::unique_ptr<SenderPump> pump_;
  std::atomic<bool> stopping_{false};
  std::thread ticker_;
};

class RedisLeaf {
 public:
  explicit RedisLeaf(const RedisLogOptions& log, std::string name = "leaf",
                     const Clock* clock = &Clock::Real(), Duration lease = std::chrono::seconds(10))
      : log_(log), name_(std::move(name)), registry_(RegistryOptions(clock, lease)) {
    StartReader();
    ticker_ = std::thread([this] {
      while (!stopping_) {
        registry_.Tick();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
  }

  ~RedisLeaf() {
    stopping_ = true;
    ticker_.join();
    StopReader();
  }

  // The registry stays as it is: what a checkpoint would bring back.
  void StopReader() { reader_.reset(); }
  void StartReader() { reader_ = std::make_unique<RedisReader>(log_, name_, &registry_); }

  std::optional<HolderStats> StatsOf(const HolderId& holder) const {
    const auto stats = registry_.StatsOf(kTestDomain);
    if (!stats.ok()) return std::nullopt;
    for (const HolderStats& one : stats->holders) {
      if (one.holder->id == holder) return one;
    }
    return std::nullopt;
  }

  // The digest of what the leaf holds of this worker; nothing: it does not know it.
  std::optional<Digest> DigestOf(const HolderId& holder) const {
    const absl::StatusOr<HolderDump> dump = registry_.Dump(kTestDomain, holder);
    if (!dump.ok()) return std::nullopt;
    Digest digest;
    for (const Stored& run : dump->runs) {
      for (const SequenceHash block : run.blocks) digest.Add(run.tier, block);
    }
    return digest;
  }

  bool Has(RedisWorker& worker) const {
    const auto stats = StatsOf(worker.holder());
    return stats.has_value() && stats->trust == Trust::kExact && !stats->masked &&
           DigestOf(worker.holder()) == worker.digest();
  }
  void AwaitExact(RedisWorker& worker) const {
    AwaitTrue([&] { return Has(worker); });
  }

  HolderRegistry& registry() { return registry_; }
  RedisReaderStats reader_stats() const { return reader_->Stats(); }

 private:
  static HolderRegistryOptions RegistryOptions(const Clock* clock, Duration lease) {
    HolderRegistryOptions options;
    options.contract_id = kTestContract;
    options.clock = clock;
    options.receiver.retry_after = std::chrono::milliseconds(100);
    options.receiver.lease_ttl = lease;
    return options;
  }

  const RedisLogOptions log_;
  const std::string name_;
  HolderRegistry registry_;
  std::unique_ptr<RedisReader> reader_;
  std::atomic<bool> stopping_{false};
  std::thread ticker_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_LOG_HARNESS_H_
