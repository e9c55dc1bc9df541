// One socket that many engines dial: is each one's stream what it would be at a socket of its own?

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/stream_worker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "tools/testing/servers/reserved_test_ports.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr auto kLong = std::chrono::minutes(1);

struct Said {
  Mutex mutex;
  std::vector<std::string> words ABSL_GUARDED_BY(mutex);
};

// A payload, or "LOST", "REPAIRED", "RESTARTED".
std::string WordOf(StreamTracker::Action::Kind kind, std::string_view payload) {
  using Kind = StreamTracker::Action::Kind;
  if (kind == Kind::kApply) return std::string(payload);
  return kind == Kind::kLost ? "LOST" : kind == Kind::kRepaired ? "REPAIRED" : "RESTARTED";
}

class ZmqSharedTest : public ::testing::Test {
 protected:
  struct Stream {
    ZmqStreamId id = 0;
    std::shared_ptr<Said> said = std::make_shared<Said>();

    std::vector<std::string> words() const {
      MutexLock lock(&said->mutex);
      return said->words;
    }
    bool Hears(const std::string& word) const {
      return Await([&] { return std::ranges::count(words(), word) > 0; }, kLong);
    }
  };

  ZmqSharedTest() : ingest_(Options()) { ingest_.OpenGate(); }

  ZmqIngestOptions Options() {
    ZmqIngestOptions options;
    options.decode_threads = 2;
    options.shared = {{.endpoint = endpoint_,
                       .topic = "kv@",
                       .on_topic = [this](const std::string& endpoint, const std::string& topic) {
                         EXPECT_EQ(endpoint, endpoint_);
                         MutexLock lock(&mutex_);
                         told_.push_back(topic);
                       }}};
    return options;
  }
  ZmqTestEngineOptions Dials(const std::string& topic, uint64_t first_number = 0) const {
    return {.endpoint = endpoint_, .dial = true, .topic = topic, .first_number = first_number};
  }
  Stream Add(const std::string& topic) {
    Stream stream;
    const absl::StatusOr<ZmqStreamId> id = ingest_.Add(
        {.worker_name = topic,
         .endpoint = endpoint_,
         .topic = topic,
         .bind = true,
         .from_flags = true},
        stream.said.get(),
        std::make_unique<StreamWorker>([said = stream.said](auto kind, std::string_view payload) {
          MutexLock lock(&said->mutex);
          said->words.push_back(WordOf(kind, payload));
        }));
    EXPECT_TRUE(id.ok()) << id.status();
    if (id.ok()) stream.id = *id;
    return stream;
  }
  bool IsConnected(const Stream& stream) { return ingest_.Stats(stream.id)->connected; }
  std::vector<std::string> told() {
    MutexLock lock(&mutex_);
    return told_;
  }
  bool IsTold(const std::string& topic) {
    return Await([&] { return std::ranges::count(told(), topic) > 0; }, kLong);
  }

  ReservedTestPorts ports_;
  const std::string endpoint_ = "tcp://" + ports_.HoldAny().ToString();
  Mutex mutex_;
  std::vector<std::string> told_ ABSL_GUARDED_BY(mutex_);
  ZmqIngest ingest_;
};

TEST_F(ZmqSharedTest, EachTopicIsAStreamOfItsOwn) {
  ASSERT_TRUE(ingest_.status().ok()) << ingest_.status();
  const Stream a = Add("kv@10.0.0.1:8000@m"), b = Add("kv@10.0.0.2:8000@m");
  ZmqTestEngine engine_a(Dials("kv@10.0.0.1:8000@m")), engine_b(Dials("kv@10.0.0.2:8000@m"));
  engine_a.WaitForSubscribers();
  engine_b.WaitForSubscribers();
  for (const char* word : {"a0", "a1", "a2"}) engine_a.Publish(word);
  for (const char* word : {"b0", "b1"}) engine_b.Publish(word);
  EXPECT_TRUE(a.Hears("a2") && b.Hears("b1"));
  EXPECT_THAT(a.words(), ElementsAre("a0", "a1", "a2"));
  EXPECT_THAT(b.words(), ElementsAre("b0", "b1")) << "its numbers are its own";
  EXPECT_TRUE(IsConnected(a) && IsConnected(b));
  EXPECT_EQ(ingest_.Stats(a.id)->tracker.gaps, 0u);
}

TEST_F(ZmqSharedTest, ATopicWithoutAStreamIsToldAndWhatItSaidWaits) {
  ZmqTestEngine engine(Dials("kv@pod@m")), other(Dials("x@pod@m"));
  engine.WaitForSubscribers();
  engine.Publish("zero");
  engine.Publish("one");
  ASSERT_TRUE(IsTold("kv@pod@m"));
  EXPECT_THAT(told(), ElementsAre("kv@pod@m")) << "once, and no topic of another prefix";
  const Stream stream = Add("kv@pod@m");
  EXPECT_TRUE(stream.Hears("one"));
  engine.Publish("two");
  EXPECT_TRUE(stream.Hears("two"));
  EXPECT_THAT(stream.words(), ElementsAre("zero", "one", "two"));
  EXPECT_TRUE(IsConnected(stream));
}

TEST_F(ZmqSharedTest, WhatIsMissingIsAGapOfThatEngineAlone) {
  const Stream a = Add("kv@a@m"), b = Add("kv@b@m");
  ZmqTestEngine engine_a(Dials("kv@a@m")), engine_b(Dials("kv@b@m"));
  engine_a.WaitForSubscribers();
  engine_b.WaitForSubscribers();
  engine_a.Publish("a0");
  engine_b.Publish("b0");
  engine_a.Drop("a1");
  engine_a.Publish("a2");
  engine_b.Publish("b1");
  EXPECT_TRUE(a.Hears("a2") && b.Hears("b1"));
  EXPECT_THAT(a.words(), ElementsAre("a0", "LOST", "a2"));
  EXPECT_THAT(b.words(), ElementsAre("b0", "b1"));
}

TEST_F(ZmqSharedTest, AnEngineThatStartsAgainIsNewAndTheOthersStay) {
  const Stream a = Add("kv@a@m"), b = Add("kv@b@m");
  auto engine_a = std::make_unique<ZmqTestEngine>(Dials("kv@a@m"));
  ZmqTestEngine engine_b(Dials("kv@b@m"));
  engine_a->WaitForSubscribers();
  engine_b.WaitForSubscribers();
  for (const char* word : {"a0", "a1", "a2"}) engine_a->Publish(word);
  engine_b.Publish("b0");
  EXPECT_TRUE(a.Hears("a2") && b.Hears("b0"));
  engine_a.reset();
  EXPECT_TRUE(Await([&] { return !IsConnected(a); }, kLong)) << "its connection has ended";
  EXPECT_TRUE(IsConnected(b));
  engine_a = std::make_unique<ZmqTestEngine>(Dials("kv@a@m"));
  engine_a->WaitForSubscribers();
  engine_a->Publish("new");
  EXPECT_TRUE(a.Hears("new"));
  EXPECT_THAT(a.words(), Contains("RESTARTED"));
  EXPECT_TRUE(IsConnected(a));
  EXPECT_THAT(b.words(), ElementsAre("b0"));
}

// A connection that broke: what is held is not sure, as there is no replay that could say so.
TEST_F(ZmqSharedTest, AConnectionThatComesAgainLeavesADoubt) {
  const Stream stream = Add("kv@a@m");
  ZmqTestEngine engine(Dials("kv@a@m"));
  engine.WaitForSubscribers();
  engine.Publish("zero");
  EXPECT_TRUE(stream.Hears("zero"));
  engine.Stop();
  EXPECT_TRUE(Await([&] { return !IsConnected(stream); }, kLong));
  engine.Start();
  engine.WaitForSubscribers();
  engine.Publish("one");
  EXPECT_TRUE(stream.Hears("one"));
  EXPECT_THAT(stream.words(), AllOf(Contains("LOST"), Not(Contains("RESTARTED"))));
}

TEST_F(ZmqSharedTest, AStreamThatIsRemovedIsFedNoMore) {
  const Stream stream = Add("kv@a@m");
  ZmqTestEngine engine(Dials("kv@a@m"));
  engine.WaitForSubscribers();
  engine.Publish("zero");
  EXPECT_TRUE(stream.Hears("zero"));
  ingest_.Remove(stream.id);
  engine.Publish("one");
  ASSERT_TRUE(IsTold("kv@a@m"));
  const Stream again = Add("kv@a@m");
  EXPECT_TRUE(again.Hears("one"));
  EXPECT_THAT(stream.words(), ElementsAre("zero"));
}

TEST_F(ZmqSharedTest, APortThatIsTakenIsSaid) {
  const ZmqIngest second(Options());
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
}

}  // namespace
}  // namespace kvatlas
