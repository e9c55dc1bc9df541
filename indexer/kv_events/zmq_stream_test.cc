// Do messages of real engines' sockets reach their workers once and in order, whatever the engines
// do?

#include "indexer/base/await.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/stream_worker.h"
#include "indexer/kv_events/zmq_ingest.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/resolve_host.h"
#include "indexer/security/curve.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Layout = ZmqTestEngineOptions::Layout;
using Manner = ZmqTestEngineOptions::Manner;

// Calls that a stream's worker got, in order: payloads, "LOST", "REPAIRED", "RESTARTED".
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
      if (!changed_.WaitFor(&mutex_, std::chrono::seconds(60))) {
        ADD_FAILURE() << "never came: " << what << ", but " << ::testing::PrintToString(said_);
        break;
      }
    }
    return said_;
  }
  // While stuck, a call of `Add` does not return.
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

// A payload, or "LOST", "REPAIRED", "RESTARTED".
std::string WordOf(StreamTracker::Action::Kind kind, std::string_view payload) {
  using Kind = StreamTracker::Action::Kind;
  if (kind == Kind::kApply) return std::string(payload);
  return kind == Kind::kLost ? "LOST" : kind == Kind::kRepaired ? "REPAIRED" : "RESTARTED";
}

std::unique_ptr<StreamWorker> WorkerOf(std::shared_ptr<Record> record) {
  return std::make_unique<StreamWorker>(
      [record = std::move(record)](auto kind, std::string_view payload) {
        record->Add(WordOf(kind, payload));
      });
}

ZmqIngestOptions FastOptions() {
  ZmqIngestOptions options;
  options.decode_threads = 2;
  options.reconnect_min = std::chrono::milliseconds(10);
  options.reconnect_max = std::chrono::milliseconds(50);
  // However slow an engine is, its replay is waited for.
  options.tracker.replay_timeout = std::chrono::seconds(60);
  return options;
}

class ZmqStreamTest : public ::testing::Test {
 protected:
  struct Stream {
    ZmqStreamId id = 0;
    std::shared_ptr<Record> record;
  };

  explicit ZmqStreamTest(ZmqIngestOptions options = FastOptions()) : ingest_(options) {}

  Stream Add(const ZmqSource& source, std::optional<StreamPosition> resume = std::nullopt) {
    Stream stream{.record = std::make_shared<Record>()};
    absl::StatusOr<ZmqStreamId> id =
        ingest_.Add(source, stream.record.get(), WorkerOf(stream.record), resume);
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
    absl::StatusOr<ZmqStreamStats> stats = ingest_.Stats(stream.id);
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.ok() ? *stats : ZmqStreamStats();
  }
  void WaitUntil(const Stream& stream, const std::function<bool(const ZmqStreamStats&)>& good) {
    ASSERT_TRUE(
        Await([&] { return good(Stats(stream)) || HasFailure(); }, std::chrono::seconds(60)));
  }
  // An engine that offers a replay has answered the first one; from now on only gaps ask.
  void WaitForReplays(const Stream& stream, uint64_t complete) {
    WaitUntil(stream, [&](const ZmqStreamStats& stats) {
      return stats.tracker.replays_complete >= complete && !stats.tracker.replaying;
    });
  }

  ZmqIngest ingest_;
};

TEST_F(ZmqStreamTest, MessagesArriveInOrder) {
  ingest_.OpenGate();
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

TEST_F(ZmqStreamTest, EveryTransportWorks) {
  ingest_.OpenGate();
  for (const std::string& endpoint :
       {std::string("tcp://[::1]:*"), "ipc:///tmp/kvatlas-" + std::to_string(getpid())}) {
    ZmqTestEngine engine({.endpoint = endpoint});
    const Stream stream =
        Add({.worker_name = "w", .endpoint = engine.endpoint(), .from_flags = true});
    engine.WaitForSubscribers();
    engine.Publish("zero");
    EXPECT_THAT(stream.record->WaitFor("zero"), ElementsAre("zero"));
  }
}

TEST_F(ZmqStreamTest, EnginesMayDialOut) {
  ingest_.OpenGate();
  const Stream stream =
      Add({.worker_name = "w", .endpoint = "tcp://127.0.0.1:0", .bind = true, .from_flags = true});
  const absl::StatusOr<std::string> bound = ingest_.BoundEndpoint(stream.id);
  ASSERT_TRUE(bound.ok()) << bound.status();
  ZmqTestEngine engine({.endpoint = *bound, .dial = true});
  engine.WaitForSubscribers();
  engine.Publish("zero");
  EXPECT_THAT(stream.record->WaitFor("zero"), ElementsAre("zero"));
  EXPECT_TRUE(Stats(stream).connected);
}

// Live events and replays.
TEST_F(ZmqStreamTest, AnEngineWithAKeyIsHeardByWhoKnowsItAndByNobodyElse) {
  ingest_.OpenGate();
  const CurveKeys keys = *MakeCurveKeys();
  ZmqTestEngine engine({.replay = true, .curve_secret = keys.secret_key});
  engine.Drop("zero");
  const auto source = [&](const std::string& key) {
    return ZmqSource{.worker_name = "w",
                     .endpoint = engine.endpoint(),
                     .replay_endpoint = engine.replay_endpoint(),
                     .server_key = key};
  };
  const Stream right = Add(source(keys.public_key));
  const Stream other = Add(source(MakeCurveKeys()->public_key));
  const Stream plain = Add(source(""));
  engine.WaitForSubscribers();
  right.record->WaitFor("zero");  // by a replay
  engine.Publish("one");
  EXPECT_THAT(right.record->WaitFor("one"), ::testing::Contains("zero"));
  for (const Stream& wrong : {other, plain}) {
    WaitUntil(wrong, [](const ZmqStreamStats& stats) {
      return stats.connection.state == ConnectionState::kUnreachable;
    });
    EXPECT_FALSE(Stats(wrong).connected);
    EXPECT_THAT(wrong.record->said(), IsEmpty());
  }
  EXPECT_TRUE(Stats(right).connected);
}

TEST_F(ZmqStreamTest, AnEngineWithoutAKeyIsNotTakenForOneThatHasIt) {
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  const Stream stream = Add({.worker_name = "w",
                             .endpoint = engine.endpoint(),
                             .server_key = MakeCurveKeys()->public_key});
  WaitUntil(stream, [](const ZmqStreamStats& stats) {
    return stats.connection.state == ConnectionState::kUnreachable;
  });
  engine.Publish("zero");
  EXPECT_FALSE(Stats(stream).connected);
  EXPECT_THAT(stream.record->said(), IsEmpty());
}

TEST_F(ZmqStreamTest, TopicIsAPrefix) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.topic = "kv@pod@model"});
  const Stream right = Add({.worker_name = "w", .endpoint = engine.endpoint(), .topic = "kv@"});
  const Stream wrong = Add({.worker_name = "w", .endpoint = engine.endpoint(), .topic = "kw"});
  engine.WaitForSubscribers(2);
  engine.Publish("zero");
  EXPECT_THAT(right.record->WaitFor("zero"), ElementsAre("zero"));
  EXPECT_THAT(wrong.record->said(), IsEmpty());
}

TEST_F(ZmqStreamTest, AGapIsReplayedInEveryLayout) {
  ingest_.OpenGate();
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

TEST_F(ZmqStreamTest, WhatAnEnginePublishedBeforeIsReplayedThoughItIsIdleNow) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.replay = true});
  for (const char* payload : {"0", "1", "2"}) engine.Drop(payload);
  const Stream stream = AddEngine(engine, /*replay=*/true);
  EXPECT_THAT(stream.record->WaitFor("2"), ElementsAre("0", "1", "2"));
  EXPECT_THAT(engine.asked(), ElementsAre(0));
}

TEST_F(ZmqStreamTest, AWindowThatRolledOverIsALoss) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.replay = true, .ring = 2});
  const Stream stream = AddEngine(engine, /*replay=*/true);
  engine.WaitForSubscribers();
  WaitForReplays(stream, 1);
  engine.Publish("0");
  for (const char* payload : {"1", "2", "3"}) engine.Drop(payload);
  engine.Publish("4");
  EXPECT_THAT(stream.record->WaitFor("4"), ElementsAre("0", "LOST", "LOST", "3", "4"));
  EXPECT_EQ(Stats(stream).tracker.messages_lost, 2u);
  EXPECT_EQ(Stats(stream).tracker.replays_incomplete, 1u);
}

TEST_F(ZmqStreamTest, ARestartedEngineIsForgottenAndReadAnew) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.replay = true});
  const Stream stream = AddEngine(engine, /*replay=*/true);
  engine.WaitForSubscribers();
  WaitForReplays(stream, 1);
  for (const char* payload : {"a0", "a1", "a2"}) engine.Publish(payload);
  stream.record->WaitFor("a2");
  // Further than before, and silent since: only the reconnection shows it.
  engine.Restart({"b0", "b1", "b2", "b3"});
  EXPECT_THAT(stream.record->WaitFor("REPAIRED"),
              ElementsAre("a0", "a1", "a2", "LOST", "RESTARTED", "LOST", "b0", "b1", "b2", "b3",
                          "REPAIRED"));
  engine.WaitForSubscribers();
  engine.Publish("b4");
  EXPECT_EQ(stream.record->WaitFor("b4").back(), "b4");
  EXPECT_EQ(Stats(stream).tracker.restarts, 1u);
}

TEST_F(ZmqStreamTest, AnEngineThatComesBackAsItWasGoesOn) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.replay = true});
  const Stream stream = AddEngine(engine, /*replay=*/true);
  engine.WaitForSubscribers();
  WaitForReplays(stream, 1);
  engine.Publish("0");
  engine.Publish("1");
  stream.record->WaitFor("1");
  engine.Stop();
  engine.Drop("2");
  engine.Start();
  stream.record->WaitFor("REPAIRED");
  engine.WaitForSubscribers();
  engine.Publish("3");
  EXPECT_THAT(stream.record->WaitFor("3"), ElementsAre("0", "1", "LOST", "2", "REPAIRED", "3"));
  EXPECT_EQ(Stats(stream).tracker.restarts, 0u);
}

TEST_F(ZmqStreamTest, WithoutReplayAReconnectionIsALossAndALowerNumberARestart) {
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  const Stream stream = AddEngine(engine);
  engine.WaitForSubscribers();
  engine.Publish("a0");
  engine.Publish("a1");
  stream.record->WaitFor("a1");
  engine.Restart();
  engine.WaitForSubscribers();
  engine.Publish("b0");
  EXPECT_THAT(stream.record->WaitFor("b0"), ElementsAre("a0", "a1", "LOST", "RESTARTED", "b0"));
}

TEST_F(ZmqStreamTest, AReplayServerThatMisbehavesDelaysNobodyElse) {
  ingest_.OpenGate();
  ZmqTestEngine good({.replay = true});
  std::vector<std::unique_ptr<ZmqTestEngine>> engines;
  std::vector<Stream> streams;
  for (const Manner manner : {Manner::kSilent, Manner::kGarbage, Manner::kFlood, Manner::kNoEnd}) {
    engines.push_back(
        std::make_unique<ZmqTestEngine>(ZmqTestEngineOptions{.replay = true, .manner = manner}));
    streams.push_back(AddEngine(*engines.back(), /*replay=*/true));
    engines.back()->WaitForSubscribers();
  }
  // Both lanes have all of them at work by now.
  const Stream first = AddEngine(good, /*replay=*/true);
  const Stream second = AddEngine(good, /*replay=*/true);
  good.WaitForSubscribers(2);
  WaitForReplays(first, 1);
  WaitForReplays(second, 1);
  for (const std::unique_ptr<ZmqTestEngine>& engine : engines) engine->Publish("x");
  good.Publish("0");
  good.Drop("1");
  good.Publish("2");
  for (const Stream& stream : {first, second}) {
    EXPECT_THAT(stream.record->WaitFor("2"), ElementsAre("0", "LOST", "1", "REPAIRED", "2"));
  }
  // The first message of an engine needs no replay, whatever its server does.
  for (const Stream& stream : streams) stream.record->WaitFor("x");
}

TEST_F(ZmqStreamTest, AReplayThatEndsEarlyIsALoss) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.replay = true});
  const Stream stream = AddEngine(engine, /*replay=*/true);
  engine.WaitForSubscribers();
  WaitForReplays(stream, 1);
  engine.SetManner(Manner::kEarlyEnd);
  engine.Publish("0");
  for (const char* payload : {"1", "2", "3"}) engine.Drop(payload);
  engine.Publish("4");
  EXPECT_THAT(stream.record->WaitFor("4"), ElementsAre("0", "LOST", "1", "2", "LOST", "4"));
}

TEST_F(ZmqStreamTest, FramesOfAnotherShapeAreCountedAndTheStreamLives) {
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  const Stream stream = AddEngine(engine);
  engine.WaitForSubscribers();
  const std::string number(8, '\0');
  engine.SendRaw({"", "payload"});
  engine.SendRaw({"", number.substr(1), "seven bytes"});
  engine.SendRaw({"", "", number, "four frames"});
  engine.SendRaw({"one frame"});
  engine.SendRaw({"", std::string(8, '\xff'), "the end marker, live"});
  engine.Publish("0");
  EXPECT_THAT(stream.record->WaitFor("0"), ElementsAre("0"));
  EXPECT_EQ(Stats(stream).bad_frames, 5u);
  EXPECT_EQ(Stats(stream).status, ListenerStatus::kActive);
}

TEST_F(ZmqStreamTest, NothingIsAppliedBeforeTheGateOpens) {
  ZmqTestEngine engine({});
  const Stream stream = AddEngine(engine);
  EXPECT_EQ(Stats(stream).status, ListenerStatus::kPending);
  engine.WaitForSubscribers();
  engine.Publish("0");
  engine.Publish("1");
  WaitUntil(stream, [](const ZmqStreamStats& stats) { return stats.connected; });
  EXPECT_THAT(stream.record->said(), IsEmpty());
  EXPECT_EQ(ingest_.Pause(stream.id).message(), "cannot be paused from status pending");
  ingest_.OpenGate();
  EXPECT_THAT(stream.record->WaitFor("1"), ElementsAre("0", "1"));
  EXPECT_EQ(ingest_.ResumeFrom(stream.id, {}, /*earlier=*/false).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ZmqStreamTest, MessagesWaitWhileAStreamIsPaused) {
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  const Stream stream = AddEngine(engine);
  engine.WaitForSubscribers();
  engine.Publish("0");
  stream.record->WaitFor("0");
  ASSERT_TRUE(ingest_.Pause(stream.id).ok());
  EXPECT_EQ(Stats(stream).status, ListenerStatus::kPaused);
  EXPECT_EQ(ingest_.Pause(stream.id).message(), "cannot be paused from status paused");
  engine.Publish("1");
  EXPECT_THAT(stream.record->said(), ElementsAre("0"));
  ASSERT_TRUE(ingest_.Resume(stream.id).ok());
  EXPECT_THAT(stream.record->WaitFor("1"), ElementsAre("0", "1"));
  EXPECT_EQ(ingest_.Resume(stream.id).message(), "cannot be resumed from status active");
  EXPECT_EQ(ingest_.Pause(stream.id + 1).code(), absl::StatusCode::kNotFound);
}

TEST_F(ZmqStreamTest, AStreamGoesOnFromAnothersPosition) {
  ZmqTestEngine engine({.replay = true});
  for (const char* payload : {"0", "1", "2", "3"}) engine.Drop(payload);
  // The position of a stream that read everything.
  ingest_.OpenGate();
  const Stream other = AddEngine(engine, /*replay=*/true);
  std::optional<StreamPosition> position;
  other.record->WaitFor("3");
  ASSERT_TRUE(ingest_.WithPosition(other.id, [&](auto at) { position = at; }).ok());
  ASSERT_TRUE(position.has_value());
  EXPECT_EQ(position->last, 3u);
  engine.Drop("4");
  const Stream stream = Add({.worker_name = "w",
                             .endpoint = engine.endpoint(),
                             .replay_endpoint = engine.replay_endpoint()},
                            position);
  EXPECT_THAT(stream.record->WaitFor("4"), ElementsAre("4"));
  // With another engine's bytes under the same number everything is read anew.
  position->fingerprint += 1;
  const Stream wrong = Add({.worker_name = "w",
                            .endpoint = engine.endpoint(),
                            .replay_endpoint = engine.replay_endpoint()},
                           position);
  EXPECT_THAT(wrong.record->WaitFor("REPAIRED"),
              ElementsAre("RESTARTED", "LOST", "0", "1", "2", "3", "4", "REPAIRED"));
}

TEST_F(ZmqStreamTest, HundredsOfStreamsInOneProcess) {
  constexpr int kStreams = 500;
  constexpr int kEngines = 20;
  constexpr int kMessages = 20;
  ingest_.OpenGate();
  std::vector<std::unique_ptr<ZmqTestEngine>> engines;
  std::vector<Stream> streams;
  for (int i = 0; i < kEngines; ++i) {
    engines.push_back(std::make_unique<ZmqTestEngine>(ZmqTestEngineOptions{}));
  }
  for (int i = 0; i < kStreams; ++i) streams.push_back(AddEngine(*engines[i % kEngines]));
  for (const auto& engine : engines) engine->WaitForSubscribers(kStreams / kEngines);
  std::vector<std::string> expected;
  for (int message = 0; message < kMessages; ++message) {
    expected.push_back(std::to_string(message));
    for (const auto& engine : engines) engine->Publish(expected.back());
  }
  for (const Stream& stream : streams) {
    EXPECT_EQ(stream.record->WaitFor(expected.back()), expected);
  }
  for (const Stream& stream : streams) ingest_.Remove(stream.id);
}

TEST_F(ZmqStreamTest, NothingIsAppliedAfterRemoveThoughTheEngineFloods) {
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  const Stream stream = AddEngine(engine);
  engine.WaitForSubscribers();
  std::atomic<bool> stop{false};
  std::thread flood([&] {
    while (!stop.load()) engine.Publish("x");
  });
  stream.record->WaitFor("x", 1000);
  ingest_.Remove(stream.id);
  const size_t said = stream.record->said().size();
  EXPECT_EQ(ingest_.Stats(stream.id).status().code(), absl::StatusCode::kNotFound);
  const Stream again = AddEngine(engine);
  again.record->WaitFor("x", 1000);
  EXPECT_EQ(stream.record->said().size(), said);
  stop.store(true);
  flood.join();
}

// A socket that closes tells its monitor; when that had no reader, libzmq's I/O thread stood still
// for all.
TEST_F(ZmqStreamTest, StreamsThatGoWithTheirEnginesHoldUpNobody) {
  ingest_.OpenGate();
  for (int i = 0; i < 500; ++i) {
    auto engine = std::make_unique<ZmqTestEngine>(ZmqTestEngineOptions{});
    const Stream stream = AddEngine(*engine);
    engine->WaitForSubscribers();
    std::thread goes([&] { engine.reset(); });
    ingest_.Remove(stream.id);
    goes.join();
  }
}

TEST_F(ZmqStreamTest, AWorkerThatIsStuckHoldsUpItsLaneAlone) {
  ingest_.OpenGate();
  ZmqTestEngine stuck_engine({});
  const Stream stuck = AddEngine(stuck_engine);
  ZmqTestEngine engine({});
  const Stream stream = AddEngine(engine);
  stuck_engine.WaitForSubscribers();
  engine.WaitForSubscribers();
  stuck.record->SetStuck(true);
  stuck_engine.Publish("0");
  stuck_engine.Publish("1");
  stuck.record->WaitFor("0");
  engine.Publish("0");
  EXPECT_THAT(stream.record->WaitFor("0"), ElementsAre("0"));
  EXPECT_THAT(stuck.record->said(), ElementsAre("0"));
  stuck.record->SetStuck(false);
  EXPECT_THAT(stuck.record->WaitFor("1"), ElementsAre("0", "1"));
}

TEST_F(ZmqStreamTest, AnAddressThatIsTakenIsUnavailable) {
  const Stream stream =
      Add({.worker_name = "w", .endpoint = "tcp://127.0.0.1:0", .bind = true, .from_flags = true});
  const ZmqSource taken = {.worker_name = "w",
                           .endpoint = *ingest_.BoundEndpoint(stream.id),
                           .bind = true,
                           .from_flags = true};
  EXPECT_EQ(ingest_.Add(taken, nullptr, WorkerOf(stream.record)).status().code(),
            absl::StatusCode::kUnavailable);
  ingest_.Stop();
  EXPECT_EQ(ingest_.Add(taken, nullptr, WorkerOf(stream.record)).status().code(),
            absl::StatusCode::kUnavailable);
}

// ---- Names ----

// A resolver's present answer, and how often it was asked.
class TestResolver {
 public:
  void Set(std::vector<std::string> addresses) {
    MutexLock lock(&mutex_);
    addresses_ = std::move(addresses);
  }
  void WaitForQuestions(size_t more) {
    MutexLock lock(&mutex_);
    const size_t until = asked_ + more;
    while (asked_ < until) changed_.Wait(&mutex_);
  }
  absl::StatusOr<std::vector<std::string>> Resolve(const std::string& name) {
    MutexLock lock(&mutex_);
    ++asked_;
    changed_.SignalAll();
    if (name != "engine" || addresses_.empty()) return absl::UnavailableError(name + ": unknown");
    return addresses_;
  }
  HostResolver AsFunction() {
    return [this](const std::string& name) { return Resolve(name); };
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  size_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
};

class ZmqNamesTest : public ZmqStreamTest {
 protected:
  ZmqNamesTest() : ZmqStreamTest(Options(&resolver_)) { ingest_.OpenGate(); }

  // It is found by its name alone.
  Stream AddByName(const ZmqTestEngine& engine, bool replay = false) {
    const auto named = [](const std::string& endpoint) {
      return "tcp://engine" + endpoint.substr(endpoint.rfind(':'));
    };
    return Add({.worker_name = "w",
                .endpoint = named(engine.endpoint()),
                .replay_endpoint = replay ? named(engine.replay_endpoint()) : ""});
  }
  static ZmqTestEngineOptions At(const std::string& host, const ZmqTestEngine& port_of) {
    const std::string& endpoint = port_of.endpoint();
    return {.endpoint = "tcp://" + host + endpoint.substr(endpoint.rfind(':'))};
  }

  static inline TestResolver resolver_;

 private:
  static ZmqIngestOptions Options(TestResolver* resolver) {
    resolver->Set({});
    ZmqIngestOptions options = FastOptions();
    options.addresses = *EngineAddresses::Parse({"127.0.0.0/30"});  // up to 127.0.0.3
    options.resolve = resolver->AsFunction();
    return options;
  }
};

TEST_F(ZmqNamesTest, OfItsAddressesThoseWithinAreTriedInTurn) {
  ZmqTestEngine engine({.replay = true});
  resolver_.Set({"8.8.8.8", "::ffff:169.254.169.254", "127.0.0.2", "127.0.0.1"});
  const Stream stream = AddByName(engine, /*replay=*/true);
  engine.WaitForSubscribers();
  WaitForReplays(stream, 1);
  engine.Publish("zero");
  engine.Drop("one");
  engine.Publish("two");
  EXPECT_THAT(stream.record->WaitFor("two"), ElementsAre("zero", "LOST", "one", "REPAIRED", "two"));
  EXPECT_EQ(Stats(stream).last_error, "");
}

TEST_F(ZmqNamesTest, AnEngineThatMovesIsFollowed) {
  ZmqTestEngine engine({});
  resolver_.Set({"127.0.0.1"});
  const Stream stream = AddByName(engine);
  engine.WaitForSubscribers();
  engine.Publish("here");
  stream.record->WaitFor("here");
  // A name that leads elsewhere changes nothing while the engine is connected.
  resolver_.Set({"127.0.0.2"});
  engine.Publish("still here");
  stream.record->WaitFor("still here");
  ZmqTestEngine there(At("127.0.0.2", engine));
  engine.Stop();
  there.WaitForSubscribers();
  there.Publish("there");
  stream.record->WaitFor("there");
}

TEST_F(ZmqNamesTest, ANameThatComesToLeadOutsideIsNotFollowed) {
  ZmqTestEngine engine({});
  ZmqTestEngine outside(At("127.0.0.4", engine));
  resolver_.Set({"127.0.0.1"});
  const Stream stream = AddByName(engine);
  engine.WaitForSubscribers();
  engine.Publish("here");
  stream.record->WaitFor("here");
  resolver_.Set({"127.0.0.4"});
  engine.Stop();
  WaitUntil(stream, [](const ZmqStreamStats& stats) { return !stats.last_error.empty(); });
  EXPECT_EQ(Stats(stream).last_error,
            "engine: 127.0.0.4 is outside --engine_addresses (127.0.0.0/30)");
  EXPECT_FALSE(Stats(stream).connected);
  // The address it had is as good as it was.
  engine.Start();
  engine.WaitForSubscribers();
  engine.Publish("again");
  stream.record->WaitFor("again");
  outside.Publish("outside");
  engine.Publish("and again");
  EXPECT_THAT(stream.record->WaitFor("and again"), ::testing::Not(::testing::Contains("outside")));
}

TEST_F(ZmqNamesTest, AnUnknownNameIsAskedForAgain) {
  ZmqTestEngine engine({});
  const Stream stream = AddByName(engine);
  resolver_.WaitForQuestions(2);
  EXPECT_EQ(Stats(stream).last_error, "engine: unknown");
  resolver_.Set({"127.0.0.1"});
  engine.WaitForSubscribers();
  engine.Publish("zero");
  stream.record->WaitFor("zero");
  EXPECT_EQ(Stats(stream).last_error, "");
  ingest_.Remove(stream.id);
}

// A resolver that does not come back holds up neither other engines nor the end.
TEST(ZmqNamesEndTest, AStuckResolverHoldsUpNobody) {
  struct Stuck {
    Mutex mutex;
    CondVar changed;
    bool free ABSL_GUARDED_BY(mutex) = false;
    int inside ABSL_GUARDED_BY(mutex) = 0;
  };
  const auto stuck = std::make_shared<Stuck>();
  ZmqIngestOptions options = FastOptions();
  options.resolve = [stuck](const std::string&) -> absl::StatusOr<std::vector<std::string>> {
    MutexLock lock(&stuck->mutex);
    ++stuck->inside;
    while (!stuck->free) stuck->changed.Wait(&stuck->mutex);
    --stuck->inside;
    stuck->changed.SignalAll();
    return absl::UnavailableError("late");
  };
  ZmqTestEngine engine({});
  {
    ZmqIngest ingest(options);
    ingest.OpenGate();
    const auto record = std::make_shared<Record>();
    const auto add = [&](const ZmqSource& source) {
      return ingest.Add(source, nullptr, WorkerOf(record));
    };
    std::vector<ZmqStreamId> named;
    for (int i = 0; i < 10; ++i) {
      const auto id =
          add({.worker_name = "n", .endpoint = "tcp://name" + std::to_string(i) + ":1"});
      ASSERT_TRUE(id.ok()) << id.status();
      named.push_back(*id);
    }
    ASSERT_TRUE(add({.worker_name = "w", .endpoint = engine.endpoint()}).ok());
    engine.WaitForSubscribers();
    engine.Publish("zero");
    record->WaitFor("zero");
    for (const ZmqStreamId id : named) ingest.Remove(id);
  }
  MutexLock lock(&stuck->mutex);
  stuck->free = true;
  stuck->changed.SignalAll();
  while (stuck->inside > 0) stuck->changed.Wait(&stuck->mutex);
}

TEST(ZmqSourceTest, OnlyFlagsNameFilesPortsAndAddressesOutside) {
  const EngineAddresses addresses;
  for (const char* endpoint :
       {"tcp://127.0.0.1:5557", "tcp://10.0.0.1:5557", "tcp://[fd00::1]:5557", "tcp://engine:5557",
        "tcp://[::ffff:10.0.0.1]:5557"}) {
    const absl::Status checked = CheckZmqSource({.endpoint = endpoint}, addresses);
    EXPECT_TRUE(checked.ok()) << checked;
  }
  for (const char* endpoint :
       {"ipc:///tmp/x", "ipc://@abstract", "inproc://x", "tcp://*:5557", "tcp://8.8.8.8:5557",
        "tcp://169.254.169.254:80", "tcp://[::ffff:8.8.8.8]:5557", "tcp://0.0.0.0:5557",
        "tcp://lo;127.0.0.1:5557", "tcp://[::1]:0;8.8.8.8:80", "tcp://a b:1", "tcp://a/b:1"}) {
    for (const ZmqSource& source :
         {ZmqSource{.endpoint = endpoint},
          ZmqSource{.endpoint = "tcp://127.0.0.1:1", .replay_endpoint = endpoint}}) {
      EXPECT_TRUE(absl::IsInvalidArgument(CheckZmqSource(source, addresses))) << endpoint;
      ZmqSource trusted = source;
      trusted.from_flags = true;
      EXPECT_TRUE(CheckZmqSource(trusted, addresses).ok()) << endpoint;
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      CheckZmqSource({.endpoint = "tcp://127.0.0.1:0", .bind = true}, addresses)));
}

TEST(ZmqSourceTest, EndpointsAreRefusedInTheWordsThatClientsRead) {
  const auto fault = [](std::string_view endpoint) {
    return std::string(CheckZmqEndpoint(endpoint).message());
  };
  for (const char* good : {"tcp://127.0.0.1:5557", "tcp://*:5557", "tcp://[::1]:0", "tcp://h:0",
                           "ipc:///tmp/x", "ipc://@abstract", "inproc://x"}) {
    EXPECT_EQ(fault(good), "");
  }
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"127.0.0.1:5901", "missing scheme"},
      {"", "missing scheme"},
      {"tcp://127.0.0.1", "missing TCP port"},
      {"tcp://[::1]", "missing TCP port"},
      {"tcp://:5901", "missing TCP host"},
      {"udp://127.0.0.1:5901", "unsupported scheme `udp`"},
      {"tcp://127.0.0.1:99999", "invalid TCP port: number too large to fit in target type"},
      {"tcp://127.0.0.1:abc", "invalid TCP port: invalid digit found in string"},
      {"ipc://", "missing address"},
      {"tcp://::1:5557", "IPv6 address without brackets"},
  };
  for (const auto& [endpoint, reason] : bad) {
    EXPECT_EQ(fault(endpoint), "invalid ZMQ endpoint `" + std::string(endpoint) + "`: " + reason);
  }
}

}  // namespace
}  // namespace kvatlas
