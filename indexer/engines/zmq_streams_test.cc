// Do messages of real engines' sockets reach their sinks once and in order, whatever the engines do?

#include "indexer/engines/zmq_streams.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/engines/zmq_test_engine.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Layout = ZmqTestEngineOptions::Layout;
using Manner = ZmqTestEngineOptions::Manner;

// What a stream's sink was told, in order: payloads, "LOST", "REPAIRED", "RESTARTED".
class Record {
 public:
  void Add(std::string what) {
    MutexLock lock(&mutex_);
    said_.push_back(std::move(what));
    changed_.SignalAll();
    while (stuck_) changed_.Wait(&mutex_);
  }
  std::vector<std::string> said() const {
    MutexLock lock(&mutex_);
    return said_;
  }
  // Waits for the payload or word to come (again, `times` in all), and tells everything so far.
  std::vector<std::string> WaitFor(const std::string& what, size_t times = 1) {
    MutexLock lock(&mutex_);
    while (static_cast<size_t>(std::count(said_.begin(), said_.end(), what)) < times) {
      if (!changed_.WaitFor(&mutex_, std::chrono::seconds(30))) {
        ADD_FAILURE() << "never came: " << what << ", but " << ::testing::PrintToString(said_);
        break;
      }
    }
    return said_;
  }
  // While stuck, whoever calls `Add` does not return.
  void SetStuck(bool stuck) {
    MutexLock lock(&mutex_);
    stuck_ = stuck;
    changed_.SignalAll();
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> said_ ABSL_GUARDED_BY(mutex_);
  bool stuck_ ABSL_GUARDED_BY(mutex_) = false;
};

class RecordSink : public StreamSink {
 public:
  explicit RecordSink(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  void Apply(std::string_view payload, Time) override { record_->Add(std::string(payload)); }
  void Lost(Time) override { record_->Add("LOST"); }
  void Repaired() override { record_->Add("REPAIRED"); }
  void Restarted(Time) override { record_->Add("RESTARTED"); }

 private:
  const std::shared_ptr<Record> record_;
};

ZmqIngestOptions FastOptions() {
  ZmqIngestOptions options;
  options.decode_threads = 2;
  options.reconnect_min = std::chrono::milliseconds(10);
  options.reconnect_max = std::chrono::milliseconds(50);
  return options;
}

class ZmqStreamsTest : public ::testing::Test {
 protected:
  struct Stream {
    ZmqStreamId id = 0;
    std::shared_ptr<Record> record;
  };

  explicit ZmqStreamsTest(ZmqIngestOptions options = FastOptions()) : streams_(options) {}

  Stream Add(const ZmqSource& source, std::optional<StreamPosition> resume = std::nullopt) {
    Stream stream{.record = std::make_shared<Record>()};
    const auto make_sink = [&](size_t) { return std::make_unique<RecordSink>(stream.record); };
    absl::StatusOr<ZmqStreamId> id = streams_.Add(source, stream.record.get(), make_sink, resume);
    EXPECT_TRUE(id.ok()) << id.status();
    if (id.ok()) stream.id = *id;
    return stream;
  }
  Stream AddEngine(const ZmqTestEngine& engine, bool replay = false) {
    return Add({.worker_name = "w",
                .endpoint = engine.endpoint(),
                .replay_endpoint = replay ? engine.replay_endpoint() : ""});
  }
  ZmqStreamStats Stats(const Stream& stream) {
    absl::StatusOr<ZmqStreamStats> stats = streams_.Stats(stream.id);
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.ok() ? *stats : ZmqStreamStats();
  }
  void WaitUntil(const Stream& stream, const std::function<bool(const ZmqStreamStats&)>& good) {
    while (!good(Stats(stream)) && !HasFailure()) std::this_thread::yield();
  }
  // An engine that offers a replay has answered the first one; from now on only gaps ask.
  void WaitForReplays(const Stream& stream, uint64_t complete) {
    WaitUntil(stream, [&](const ZmqStreamStats& stats) {
      return stats.tracker.replays_complete >= complete && !stats.tracker.replaying;
    });
  }

  ZmqStreams streams_;
};

TEST_F(ZmqStreamsTest, MessagesArriveInOrder) {
  streams_.OpenGate();
  ZmqTestEngine engine({});
  const Stream stream = AddEngine(engine);
  engine.WaitForSubscribers();
  std::vector<std::string> expected;
  for (int i = 0; i < 1000; ++i) {
    expected.push_back(std::to_string(i));
    engine.Publish(expected.back());
  }
  EXPECT_EQ(stream.record->WaitFor("999"), expected);
  const ZmqStreamStats stats = Stats(stream);
  EXPECT_EQ(stats.status, ListenerStatus::kActive);
  EXPECT_TRUE(stats.connected);
  EXPECT_EQ(stats.tracker.last, 999u);
  EXPECT_EQ(stats.tracker.gaps, 0u);
  EXPECT_GT(stats.bytes, 1000u);
}

TEST_F(ZmqStreamsTest, EveryTransportWorks) {
  streams_.OpenGate();
  for (const std::string& endpoint :
       {std::string("tcp://[::1]:*"), "ipc:///tmp/kvatlas-" + std::to_string(getpid())}) {
    ZmqTestEngine engine({.endpoint = endpoint});
    const Stream stream = AddEngine(engine);
    engine.WaitForSubscribers();
    engine.Publish("zero");
    EXPECT_THAT(stream.record->WaitFor("zero"), ElementsAre("zero"));
  }
}

TEST_F(ZmqStreamsTest, EnginesMayDialOut) {
  streams_.OpenGate();
  const Stream stream = Add({.worker_name = "w", .endpoint = "tcp://127.0.0.1:0", .bind = true});
  const absl::StatusOr<std::string> bound = streams_.BoundEndpoint(stream.id);
  ASSERT_TRUE(bound.ok()) << bound.status();
  ZmqTestEngine engine({.endpoint = *bound, .dial = true});
  engine.WaitForSubscribers();
  engine.Publish("zero");
  EXPECT_THAT(stream.record->WaitFor("zero"), ElementsAre("zero"));
  EXPECT_TRUE(Stats(stream).connected);
}

TEST_F(ZmqStreamsTest, TopicIsAPrefix) {
  streams_.OpenGate();
  ZmqTestEngine engine({.topic = "kv@pod@model"});
  const Stream right = Add({.worker_name = "w", .endpoint = engine.endpoint(), .topic = "kv@"});
  const Stream wrong = Add({.worker_name = "w", .endpoint = engine.endpoint(), .topic = "kw"});
  engine.WaitForSubscribers(2);
  engine.Publish("zero");
  EXPECT_THAT(right.record->WaitFor("zero"), ElementsAre("zero"));
  EXPECT_THAT(wrong.record->said(), IsEmpty());
}

TEST_F(ZmqStreamsTest, AGapIsReplayedInEveryLayout) {
  streams_.OpenGate();
  for (const Layout layout : {Layout::kPlain, Layout::kTopic, Layout::kNoDelimiter}) {
    ZmqTestEngine engine({.topic = "t", .replay = true, .layout = layout});
    const Stream stream = AddEngine(engine, /*replay=*/true);
    engine.WaitForSubscribers();
    WaitForReplays(stream, 1);
    engine.Publish("0");
    engine.Drop("1");
    engine.Drop("2");
    engine.Publish("3");
    EXPECT_THAT(stream.record->WaitFor("3"), ElementsAre("0", "LOST", "1", "2", "REPAIRED", "3"));
    EXPECT_THAT(engine.asked(), ElementsAre(0, 1));
    EXPECT_EQ(Stats(stream).tracker.gaps, 1u);
    EXPECT_EQ(Stats(stream).tracker.messages_lost, 0u);
  }
}
}  // namespace
}  // namespace kvatlas
