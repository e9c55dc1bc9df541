#include "tools/bench/service_bench_redis.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/net/redis_url.h"
#include "indexer/stream/link.h"
#include "indexer/transport/redis/redis_link.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "tools/bench/service_bench_query.h"

namespace kvatlas {
namespace {

// Between two looks whether the leaf has it all.
constexpr std::chrono::microseconds kLook(500);

// Writes one stream while there is credit.
class Writer : public SenderLinkObserver {
 public:
  Writer(const RedisLogOptions& options, const RedisHoldings& holdings)
      : holdings_(holdings), link_(options) {}
  ~Writer() override { link_.Stop(Duration(0)); }

  void Start() { link_.Start(this); }

  bool Done() const { return link_.Confirmed(holdings_.batches.size()); }
  absl::Status status() {
    MutexLock lock(&mutex_);
    return status_;
  }
  uint64_t bytes() const { return link_.Stats().bytes_written; }

 private:
  void OnConnected() override { link_.Write(holdings_.hello); }
  void OnDisconnected(const absl::Status& why) override {
    MutexLock lock(&mutex_);
    status_ = why;
  }
  void OnWritable() override { WriteSome(); }
  void OnMessage(ReceiverMessage message) override {
    {
      MutexLock lock(&mutex_);
      if (const Welcome* welcome = std::get_if<Welcome>(&message)) {
        credit_ = welcome->credit;
      } else if (const Ack* ack = std::get_if<Ack>(&message)) {
        acknowledged_ = std::max(acknowledged_, ack->applied);
      } else {
        status_ = absl::InternalError("the leaf wants what this client does not have");
      }
    }
    WriteSome();
  }

  void WriteSome() {
    MutexLock lock(&mutex_);
    while (status_.ok() && written_ < holdings_.batches.size() &&
           written_ - acknowledged_ < credit_ && link_.Write(holdings_.batches[written_])) {
      ++written_;
    }
  }

  const RedisHoldings& holdings_;
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  uint64_t credit_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  RedisLink link_;
};

std::vector<SequenceHash> BlocksOf(std::span<const uint64_t> raw) {
  std::vector<SequenceHash> blocks;
  blocks.reserve(raw.size());
  for (const uint64_t block : raw) blocks.push_back(SequenceHash{block});
  return blocks;
}

}  // namespace

RedisHoldingsBuilder::RedisHoldingsBuilder(const std::string& worker, uint32_t block_size) {
  Hello& hello = holdings_.hello;
  hello.holder = {worker, 0, ""};
  hello.domain.model = kBenchModel;
  hello.block_size = block_size;
  hello.contract_id = HashContract().Id();
  hello.epoch = WallTimeNs();
  hello.instance_id = RandomInstanceId();
  hello.starting = true;
}

void RedisHoldingsBuilder::Add(const BenchStep& step) {
  Batch batch{.number = holdings_.batches.size() + 1, .events = {}, .load = {}, .digest = {}};
  if (!step.removed.empty()) {
    batch.events.push_back(Removed{.tier = Tier::kDevice, .blocks = BlocksOf(step.removed)});
  }
  if (!step.stored.empty()) {
    batch.events.push_back(
        Stored{.tier = Tier::kDevice,
               .position = step.position,
               .parent = step.parent.has_value() ? SequenceHash{*step.parent} : kNoParent,
               .blocks = BlocksOf(step.stored)});
  }
  holdings_.batches.push_back(std::move(batch));
  holdings_.hello.last_sent = holdings_.batches.size();
}

absl::StatusOr<RedisWritten> WriteHoldingsToRedis(const std::string& url, const std::string& cell,
                                                  std::span<const RedisHoldings> streams,
                                                  Duration timeout) {
  const absl::StatusOr<RedisOptions> redis = ParseRedisUrl(url);
  if (!redis.ok()) return redis.status();
  RedisLogOptions options;
  options.redis = *redis;
  options.cell = cell;
  std::vector<std::unique_ptr<Writer>> writers;
  for (const RedisHoldings& stream : streams) {
    writers.push_back(std::make_unique<Writer>(options, stream));
  }
  const Time begin = Clock::Real().Now();
  for (auto& writer : writers) writer->Start();
  for (auto& writer : writers) {
    while (!writer->Done()) {
      if (absl::Status status = writer->status(); !status.ok()) return status;
      if (Clock::Real().Now() - begin > timeout) {
        return absl::DeadlineExceededError("not applied in time");
      }
      std::this_thread::sleep_for(kLook);
    }
  }
  RedisWritten written;
  written.seconds = std::chrono::duration<double>(Clock::Real().Now() - begin).count();
  for (auto& writer : writers) written.bytes += writer->bytes();
  return written;
}

}  // namespace kvatlas
