#include "frontend/serve/engine_fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "frontend/serve/engine_list.h"
#include "indexer/base/await.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/net/http_server.h"
#include "indexer/registry/holder_registry.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The part of an engine that is asked over HTTP.
class FakeEngine {
 public:
  FakeEngine() : server_({.listen = {"127.0.0.1", 0}}) {
    server_.Handle({.method = "GET", .path = "/v1/models", .handler = [this](const HttpRequest&) {
                      MutexLock lock(&mutex_);
                      ++models_asked_;
                      while (held_) free_.Wait(&mutex_);
                      return HttpResponse{.body = R"({"object":"list","data":[{"id":"m"}]})"};
                    }});
    server_.Handle({.method = "GET", .path = "/metrics", .handler = [this](const HttpRequest&) {
                      MutexLock lock(&mutex_);
                      ++asked_;
                      return metrics_.empty() ? HttpResponse{.status = 503}
                                              : HttpResponse{.body = metrics_};
                    }});
    server_.Handle(
        {.method = "GET", .path = "/kv_event_sources", .handler = [this](const HttpRequest&) {
           MutexLock lock(&mutex_);
           ++sources_asked_;
           return sources_.empty() ? HttpResponse{.status = 404} : HttpResponse{.body = sources_};
         }});
    EXPECT_TRUE(server_.Start().ok());
  }

  // 0: it does not say.
  void SetRanks(int ranks, int first = 0) {
    MutexLock lock(&mutex_);
    metrics_.clear();
    if (start_ > 0) metrics_ = "process_start_time_seconds " + std::to_string(start_) + "\n";
    for (int i = first; i < first + ranks; ++i)
      metrics_ += "vllm:num_requests_running{engine=\"" + std::to_string(i) + "\"} 0\n";
  }
  // From then on it is another process.
  void SetSources(const std::string& sources) {
    MutexLock lock(&mutex_);
    sources_ = sources;
    ++start_;
  }
  int asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }
  int sources_asked() {
    MutexLock lock(&mutex_);
    return sources_asked_;
  }
  int models_asked() {
    MutexLock lock(&mutex_);
    return models_asked_;
  }
  // Its answers wait meanwhile.
  void Hold(bool held) {
    MutexLock lock(&mutex_);
    held_ = held;
    free_.SignalAll();
  }
  EngineSpec spec() const {
    return *EngineSpec::Parse("http://" + server_.address().ToString() +
                              ";name=e;events=tcp://127.0.0.1:9");
  }
  std::string url() const { return "http://" + server_.address().ToString(); }

 private:
  Mutex mutex_;
  std::string metrics_ ABSL_GUARDED_BY(mutex_);
  std::string sources_ ABSL_GUARDED_BY(mutex_);
  int start_ ABSL_GUARDED_BY(mutex_) = 0;
  int sources_asked_ ABSL_GUARDED_BY(mutex_) = 0;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  int models_asked_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar free_;
  HttpServer server_;
};

class EngineFleetTest : public ::testing::Test {
 protected:
  EngineFleetTest()
      : registry_([] {
          HolderRegistryOptions options;
          options.contract_id = HashContract().Id();
          return options;
        }()),
        ingest_({}),
        directory_({}, &registry_, &ingest_) {
    directory_.Open();
    fleet_ = std::make_unique<EngineFleet>(
        EngineFleetOptions{
            .probe_every = milliseconds(10),
            .probe_threads = 1,
            .say = [this](bool, const std::string& line) { lines_.push_back(line); },
            .dialed =
                [this](const std::string& endpoint, const std::vector<std::string>& pods) {
                  dialed_for_ = {endpoint, pods.front()};
                  return topic_;
                }},
        &directory_);
    fleet_->SetEngines({engine_.spec()});
  }

  size_t Ranks() {
    fleet_->Tick();
    const std::vector<EngineEntry> entries = directory_.List();
    return entries.empty() ? 0 : entries[0].listeners.size();
  }
  bool AwaitRanks(size_t ranks) {
    return Await([&] { return Ranks() == ranks; }, std::chrono::seconds(60));
  }

  FakeEngine engine_;
  HolderRegistry registry_;
  ZmqIngest ingest_;
  EngineDirectory directory_;
  std::vector<std::string> lines_;
  std::optional<std::string> topic_;  // of an engine that dials in
  std::vector<std::string> dialed_for_;
  std::unique_ptr<EngineFleet> fleet_;
};

TEST_F(EngineFleetTest, RanksComeAndGo) {
  engine_.SetRanks(2);
  EXPECT_TRUE(AwaitRanks(2));
  engine_.SetRanks(4);
  EXPECT_TRUE(AwaitRanks(4));
  EXPECT_THAT(lines_, Contains(HasSubstr("has 4 ranks now, no longer 2")));
  engine_.SetRanks(1);
  EXPECT_TRUE(AwaitRanks(1));
  EXPECT_THAT(lines_, Contains(HasSubstr("has 1 rank now, no longer 4")));
}

// vLLM's hybrid and external load balancing: a server has some of a deployment's ranks, by the
// deployment's numbers, and counts ports by these.
TEST_F(EngineFleetTest, OnlyRanksThatAreThereAreListenedTo) {
  engine_.SetRanks(2, /*first=*/2);
  EXPECT_TRUE(AwaitRanks(2));
  const EngineEntry entry = directory_.List()[0];
  EXPECT_EQ(entry.first_rank, 2u);
  EXPECT_EQ(entry.listeners[0].rank, 2u);
  EXPECT_EQ(entry.listeners[0].endpoint, "tcp://127.0.0.1:11");
  EXPECT_EQ(entry.listeners[1].rank, 3u);
  engine_.SetRanks(1, /*first=*/3);
  EXPECT_TRUE(AwaitRanks(1));
  EXPECT_EQ(directory_.List()[0].first_rank, 3u);
}

TEST_F(EngineFleetTest, AnEngineThatDialsInIsListenedToOnceItsTopicIsKnown) {
  ReservedTestPorts ports;
  EngineSpec spec = engine_.spec();
  spec.events = "kv@tcp://" + ports.HoldAny().ToString();
  spec.has_events = true;
  spec.replay = "none";
  fleet_->SetEngines({spec});
  EXPECT_TRUE(
      Await([&] { return Ranks() == 0 && !dialed_for_.empty(); }, std::chrono::seconds(60)));
  EXPECT_THAT(dialed_for_, ElementsAre(spec.EventsOf(0), spec.url.substr(7)));
  topic_ = "kv@" + dialed_for_[1] + "@m";
  EXPECT_TRUE(AwaitRanks(1));
  const EngineListener listener = directory_.List()[0].listeners[0];
  EXPECT_EQ(listener.endpoint, spec.EventsOf(0));
  EXPECT_EQ(listener.topic, *topic_);
  EXPECT_TRUE(listener.bind);
  EXPECT_THAT(lines_, Contains(HasSubstr("has dialed in at " + spec.EventsOf(0))));
}

TEST_F(EngineFleetTest, TheListMaySayRanksThatTheEngineDoesNot) {
  engine_.SetRanks(2);
  EngineSpec spec = engine_.spec();
  spec.ranks = 2;
  spec.first_rank = 4;
  fleet_->SetEngines({spec});
  EXPECT_TRUE(AwaitRanks(2));
  const EngineEntry entry = directory_.List()[0];
  EXPECT_EQ(entry.first_rank, 4u);
  EXPECT_EQ(entry.listeners[0].rank, 4u);
  EXPECT_EQ(entry.listeners[1].rank, 5u);
  // Its metrics count from 0.
  fleet_->Tick();
  const std::shared_ptr<const EngineView> view = fleet_->View();
  ASSERT_EQ(view->engines.size(), 1u);
  const auto& loads = view->engines.begin()->second.begin()->second.loads;
  ASSERT_FALSE(loads.empty());
  EXPECT_EQ(loads.begin()->first, 4u);
}

// On the host of its url, whatever address it says.
TEST_F(EngineFleetTest, EventsAreWhereTheEngineSaysUnlessTheListDoes) {
  engine_.SetSources(
      R"({"0":{"endpoint":"tcp://*:21","replay_endpoint":"tcp://*:31","topic":"kv"}})");
  engine_.SetRanks(1);
  fleet_->SetEngines({*EngineSpec::Parse(engine_.url() + ";name=e")});
  EXPECT_TRUE(AwaitRanks(1));
  EngineListener listener = directory_.List()[0].listeners[0];
  EXPECT_EQ(listener.endpoint, "tcp://127.0.0.1:21");
  EXPECT_EQ(listener.replay_endpoint, "tcp://127.0.0.1:31");
  EXPECT_EQ(listener.topic, "kv");
  // Questions that were under way are over, and it knows this start.
  const int before = engine_.asked();
  EXPECT_TRUE(Await([&] { return engine_.asked() > before + 3; }, std::chrono::seconds(60)));
  const int sources_asked = engine_.sources_asked();
  EXPECT_TRUE(Await([&] { return engine_.asked() > before + 6; }, std::chrono::seconds(60)));
  EXPECT_EQ(engine_.sources_asked(), sources_asked) << "once for each start";
  // Started again with other ports.
  engine_.SetSources(R"({"0":{"endpoint":"tcp://*:22","replay_endpoint":null,"topic":""}})");
  engine_.SetRanks(1);
  EXPECT_TRUE(Await(
      [&] {
        fleet_->Tick();
        return directory_.List()[0].listeners[0].endpoint == "tcp://127.0.0.1:22";
      },
      std::chrono::seconds(60)));
  EXPECT_EQ(directory_.List()[0].listeners[0].replay_endpoint, "");
  fleet_->SetEngines({engine_.spec()});
  EXPECT_TRUE(Await(
      [&] {
        return Ranks() == 1 && directory_.List()[0].listeners[0].endpoint == "tcp://127.0.0.1:9";
      },
      std::chrono::seconds(60)));
}

// Its registrations, and with them all that is known of its cache, stay.
TEST_F(EngineFleetTest, AnEngineThatDoesNotSayItsRanksKeepsThem) {
  engine_.SetRanks(2);
  EXPECT_TRUE(AwaitRanks(2));
  engine_.SetRanks(0);
  const int before = engine_.asked();
  EXPECT_TRUE(Await(
      [&] {
        fleet_->Tick();
        return engine_.asked() > before + 3;
      },
      std::chrono::seconds(60)));
  EXPECT_EQ(Ranks(), 2u);
  EXPECT_THAT(lines_, Not(Contains(HasSubstr("no longer"))));
}

// A first answer may take long; only then does anything show whether requests can be taken.
TEST_F(EngineFleetTest, BeforeTheFirstAnswerItIsNeitherReadyNorNot) {
  FakeEngine slow;
  slow.Hold(true);
  fleet_ =
      std::make_unique<EngineFleet>(EngineFleetOptions{.probe_every = milliseconds(10),
                                                       .probe_timeout = std::chrono::seconds(60),
                                                       .probe_threads = 2,
                                                       .say = [](bool, const std::string&) {}},
                                    &directory_);
  EngineSpec dead = slow.spec();
  dead.name = "dead";
  dead.url = "http://127.0.0.1:1";
  fleet_->SetEngines({slow.spec(), dead});
  EXPECT_TRUE(Await([&] { return slow.models_asked() == 1 && fleet_->Unreachable().size() == 1; },
                    std::chrono::seconds(60)));
  EXPECT_EQ(fleet_->ready(), std::nullopt);
  slow.Hold(false);
  EXPECT_TRUE(Await([&] { return fleet_->ready().has_value(); }, std::chrono::seconds(60)));
  EXPECT_EQ(fleet_->ready(), true);
  const std::vector<UnreachableEngine> unreachable = fleet_->Unreachable();
  ASSERT_EQ(unreachable.size(), 1u);
  EXPECT_EQ(unreachable[0].name, "dead");
  EXPECT_EQ(unreachable[0].model, "");
  EXPECT_THAT(unreachable[0].why, HasSubstr("127.0.0.1:1"));
  fleet_->SetEngines({dead});
  EXPECT_TRUE(Await([&] { return fleet_->ready() == false; }, std::chrono::seconds(60)));
}

// A checkpoint brings back what was registered when it was written.
TEST_F(EngineFleetTest, OfEnginesOfACheckpointThoseOfTheListComeBackAndWhereItSays) {
  const NamedByFlags named = NamedBy({engine_.spec()});
  EngineEntry entry;
  entry.instance = "e";
  EngineListener listener;
  listener.endpoint = "tcp://127.0.0.1:9";
  listener.replay_endpoint = engine_.spec().ReplayOf(0);
  EXPECT_TRUE(named(entry, listener));
  EngineListener elsewhere = listener;
  elsewhere.endpoint = "tcp://127.0.0.1:8";
  EXPECT_FALSE(named(entry, elsewhere));
  entry.window_tokens = 4096;
  EXPECT_FALSE(named(entry, listener)) << "the list says another window now";
  entry.window_tokens = 0;
  entry.instance = "gone";
  EXPECT_FALSE(named(entry, listener));
}

TEST_F(EngineFleetTest, AnEngineThatACheckpointBroughtBackIsNotRegisteredAgain) {
  EngineRegistration registration;
  registration.instance = "e";
  registration.model = "m";
  registration.block_size = 16;
  registration.endpoint = "tcp://127.0.0.1:9";
  registration.replay_endpoint = engine_.spec().ReplayOf(0);
  ASSERT_TRUE(directory_.Register(registration).ok());
  EXPECT_TRUE(Await(
      [&] {
        fleet_->Tick();
        return fleet_->answering() == 1 && !lines_.empty();
      },
      std::chrono::seconds(60)));
  ASSERT_EQ(directory_.List().size(), 1u);
  EXPECT_EQ(directory_.List()[0].block_size, 16u) << "it is the restored one";
  EXPECT_THAT(lines_, Not(Contains(HasSubstr("cannot be read"))));
}

// The list changed between the restore and the engine's first answer.
TEST_F(EngineFleetTest, AnEngineThatACheckpointBroughtBackElsewhereIsRegisteredWhereTheListSays) {
  EngineRegistration registration;
  registration.instance = "e";
  registration.model = "m";
  registration.block_size = 16;
  registration.endpoint = "tcp://127.0.0.1:8";
  ASSERT_TRUE(directory_.Register(registration).ok());
  EXPECT_TRUE(Await(
      [&] {
        fleet_->Tick();
        return fleet_->answering() == 1 && !lines_.empty();
      },
      std::chrono::seconds(60)));
  const std::optional<EngineEntry> entry = directory_.Find("e");
  ASSERT_TRUE(entry.has_value());
  ASSERT_EQ(entry->listeners.size(), 1u);
  EXPECT_EQ(entry->listeners[0].endpoint, "tcp://127.0.0.1:9");
}

TEST_F(EngineFleetTest, AnEngineThatNeverAnsweredIsForgottenWithItsPlaceInTheList) {
  EngineSpec silent = engine_.spec();
  silent.name = "silent";
  silent.url = "http://127.0.0.1:1";
  fleet_->SetEngines({silent});
  EngineRegistration registration;
  registration.instance = "silent";
  registration.model = "m";
  registration.block_size = 16;
  registration.endpoint = "tcp://127.0.0.1:8";
  ASSERT_TRUE(directory_.Register(registration).ok());
  fleet_->SetEngines({});
  EXPECT_FALSE(directory_.Find("silent").has_value());
}

}  // namespace
}  // namespace kvatlas
