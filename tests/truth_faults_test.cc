// Each fault planted between real processes' parts: a leaf, engines that publish over ZeroMQ as
// vLLM does, and the frontend's own questions over gRPC. It is named within 50 requests; a healthy
// fleet is accused of nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "frontend/accuracy/finding.h"
#include "frontend/accuracy/fleet_test_util.h"
#include "frontend/accuracy/grpc_leaf_prober.h"
#include "frontend/accuracy/leaf_prober.h"
#include "frontend/accuracy/truth.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/leaf/leaf.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Domain kModel{"m", ""};
constexpr uint32_t kBlockSize = 16;
constexpr size_t kRequests = 50;

bool Eventually(const std::function<bool()>& condition) {
  Mutex mutex;
  CondVar never;
  for (const Time end = Clock::Real().Now() + seconds(60); Clock::Real().Now() < end;) {
    if (condition()) return true;
    MutexLock lock(&mutex);
    never.WaitFor(&mutex, milliseconds(3));
  }
  return condition();
}

void PackText(const std::string& text, MsgpackWriter* to) {
  if (text.empty()) {
    to->Nil();
  } else {
    to->Text(text);
  }
}

// As vLLM writes it, from 0.24 on.
std::string Payload(const Announcement& said) {
  MsgpackWriter event;
  if (said.kind == Announcement::Kind::kRemoved) {
    event.Map(3).Text("type").Text("BlockRemoved").Text("block_hashes").Array(said.names.size());
    for (uint64_t name : said.names) event.Unsigned(name);
    event.Text("medium").Text("GPU");
    return BatchOf(1, event.bytes());
  }
  event.Map(9).Text("type").Text("BlockStored").Text("block_hashes").Array(said.names.size());
  for (uint64_t name : said.names) event.Unsigned(name);
  event.Text("parent_block_hash");
  said.parent == 0 ? event.Nil() : event.Unsigned(said.parent);
  event.Text("token_ids").Array(said.tokens.size());
  for (TokenId token : said.tokens) event.Unsigned(token);
  event.Text("block_size").Unsigned(said.block_size).Text("lora_id").Nil();
  event.Text("medium").Text("GPU").Text("lora_name");
  PackText(said.lora_name, &event);
  event.Text("extra_keys").Array(said.names.size());
  for (size_t i = 0; i < said.names.size(); ++i) {
    const bool salted = !said.cache_salt.empty() && said.parent == 0 && i == 0;
    const size_t keys = (said.lora_name.empty() ? 0 : 1) + (salted ? 1 : 0);
    if (keys == 0) {
      event.Nil();
      continue;
    }
    event.Array(keys);
    if (!said.lora_name.empty()) event.Text(said.lora_name);
    if (salted) event.Text(said.cache_salt);
  }
  return BatchOf(1, event.bytes());
}

class NoCells : public CellFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration, Callback callback) override {
    callback(absl::UnavailableError("none here"));
  }
};

// The real ones, counted: time passes when the test says so, answers come in their own. An answer
// that leads to another question ends after that began.
class CountedLeaf : public OverlapFinder, public LeafProber {
 public:
  CountedLeaf(OverlapFinder* finder, LeafProber* prober) : finder_(finder), prober_(prober) {}
  void FindOverlaps(const std::string& leaf, const OverlapQuestion& question, Duration deadline,
                    OverlapFinder::Callback callback) override {
    finder_->FindOverlaps(leaf, question, deadline, Counted<WorkersAnswer>(std::move(callback)));
  }
  void Probe(const std::string& leaf, const Domain& domain, Duration deadline,
             LeafProber::Callback callback) override {
    prober_->Probe(leaf, domain, deadline, Counted<LeafAnswer>(std::move(callback)));
  }
  void WaitForNone() { outstanding_->WaitForNone(); }

 private:
  template <typename Answer>
  std::function<void(absl::StatusOr<Answer>)> Counted(
      std::function<void(absl::StatusOr<Answer>)> callback) {
    outstanding_->Begin();
    return [callback = std::move(callback),
            outstanding = outstanding_](absl::StatusOr<Answer> answer) {
      callback(std::move(answer));
      outstanding->End();
    };
  }

  OverlapFinder* const finder_;
  LeafProber* const prober_;
  const std::shared_ptr<PendingCalls> outstanding_ = std::make_shared<PendingCalls>();
};

struct FleetOptions {
  Fault fault = Fault::kNone;
  size_t workers = 1;
  uint32_t ranks = 1;
  double namespaced = 0;
  size_t blocks_max = 4096;
  uint64_t leaf_seed = kDefaultHashSeed;
  size_t held_back = 0;  // announcements, of everybody
};

class RealFleet : public AnnouncementSink {
 public:
  explicit RealFleet(const FleetOptions& options)
      : options_(options), traffic_(TrafficOf(options)) {
    clock_.Advance(seconds(1000));
    leaf_ = StartLeaf();
    for (size_t worker = 0; worker < options.workers; ++worker)
      for (uint32_t rank = 0; rank < options.ranks; ++rank)
        AddEngine(Worker(worker, rank), worker == 0);
    for (auto& [id, engine] : engines_) engine.sockets->WaitForSubscribers();
    TruthOptions of_truth;
    of_truth.ask_deadline = seconds(60);  // which is real time, unlike the rest
    truth_ = std::make_unique<Truth>(of_truth, &counted_, &counted_, &clock_);
    FrontendOptions frontend;
    frontend.leaves = {{.cell = "c", .address = leaf_->grpc_address().ToString()}};
    frontend.observer = truth_.get();
    frontend.deadline = seconds(20);
    frontend_ = std::make_unique<Frontend>(std::move(frontend), &no_cells_, &finder_, &clock_);
  }

  // True as soon as that is found, of so many requests; what was asked about last is waited for.
  bool RunUntil(Cause cause, size_t requests) {
    for (size_t i = 0; i < requests; ++i) {
      Disturb(i);
      Request(i);
      if (testing::Test::HasFatalFailure()) return false;
      if (Names(cause)) return true;
    }
    return Eventually([&] {
      clock_.Advance(milliseconds(20));
      Tick();
      return Names(cause);
    });
  }

  // All requests, and then until everything that was to be asked about was.
  void RunAll(size_t requests) {
    for (size_t i = 0; i < requests && !testing::Test::HasFatalFailure(); ++i) {
      Request(i);
      Names(Cause::kUnexplained);
    }
    for (int i = 0; i < 30; ++i) {
      clock_.Advance(seconds(1));
      Tick();
      Names(Cause::kUnexplained);
    }
  }

  const std::set<Cause>& ever() const { return ever_; }
  Truth& truth() { return *truth_; }

  std::string Report() {
    std::string text;
    for (const KnownFinding& known : truth_->Diagnose()) {
      text += "  " + std::string(CauseName(known.finding.cause)) + " " + known.finding.worker.name +
              "\n";
      for (const std::string& evidence : known.finding.evidence) text += "    " + evidence + "\n";
    }
    const TruthStats stats = truth_->stats();
    return text + "  exact " + std::to_string(stats.exact) + " less " + std::to_string(stats.less) +
           " more " + std::to_string(stats.more) + " checks " + std::to_string(stats.checks) +
           " missed " + std::to_string(stats.checks_missed) + "\n";
  }

  void Announce(const HolderId& worker, const Announcement& announcement) override {
    underway_.push_back({clock_.Now(), worker, Payload(announcement)});
  }

 private:
  struct Engine {
    std::unique_ptr<ZmqTestEngine> sockets;
    std::unique_ptr<FaultyEngine> engine;
    uint64_t published = 0;
    std::string instance;  // that it is registered as
  };
  struct Underway {
    Time at;
    HolderId worker;
    std::string payload;
  };

  static HolderId Worker(size_t worker, uint32_t rank) {
    return {.name = "w" + std::to_string(worker), .rank = rank, .replica = {}};
  }
  static FleetTraffic::Options TrafficOf(const FleetOptions& options) {
    const bool of_chats = options.fault == Fault::kEffort || options.fault == Fault::kReasoning;
    return {.seed = 5,
            .chats = of_chats ? 1 : 0.6,
            .salted = options.fault == Fault::kLoraUnsaid ? 0 : options.namespaced,
            .with_lora = options.fault == Fault::kSaltUnsaid ? 0 : options.namespaced};
  }

  std::unique_ptr<Leaf> StartLeaf() {
    LeafOptions options;
    options.grpc = options.http = {"127.0.0.1", 0};
    options.contract.seed = options_.leaf_seed;
    options.engines.ingest.reconnect_min = milliseconds(10);
    options.engines.ingest.reconnect_max = milliseconds(50);
    if (options_.fault == Fault::kPublisherDead)
      options.registry.receiver.lease_ttl = milliseconds(200);
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
    EXPECT_TRUE(leaf.ok()) << leaf.status();
    return *std::move(leaf);
  }

  void AddEngine(const HolderId& id, bool first) {
    const bool faulty =
        first || options_.fault == Fault::kNoBosHere || options_.fault == Fault::kBosTwiceHere;
    const Fault fault = faulty ? options_.fault : Fault::kNone;
    Engine& engine = engines_[id];
    engine.sockets = std::make_unique<ZmqTestEngine>(ZmqTestEngineOptions{});
    engine.engine = std::make_unique<FaultyEngine>(
        FaultyEngine::Options{.worker = id,
                              .fault = fault,
                              .block_size = fault == Fault::kBlockSize ? 32 : kBlockSize,
                              .blocks_max = options_.blocks_max},
        this);
    engine.instance = id.name;
    if (options_.fault == Fault::kWorkersSwapped) engine.instance = id.name == "w0" ? "w1" : "w0";
    EngineRegistration registration;
    registration.instance = engine.instance;
    registration.model = kModel.model;
    registration.rank = id.rank;
    registration.block_size = kBlockSize;
    registration.endpoint = engine.sockets->endpoint();
    const absl::Status status = leaf_->engines().Register(registration);
    EXPECT_TRUE(status.ok()) << status;
  }

  void Disturb(size_t request) {
    if (request != kRequests * 2 / 5) return;
    Engine& engine = engines_.begin()->second;
    if (options_.fault == Fault::kRestarted) engine.engine->Forget();
    if (options_.fault != Fault::kPublisherDead) return;
    engine.sockets->Stop();
    dead_ = engines_.begin()->first;
    // The frontend's next choice is not this worker: its lease is over.
    ASSERT_TRUE(Eventually([&] {
      const absl::StatusOr<DomainStats> stats = leaf_->registry().StatsOf(kModel);
      if (!stats.ok()) return false;
      for (const HolderStats& holder : stats->holders)
        if (holder.holder->id == *dead_) return holder.masked;
      return false;
    }));
  }

  void Request(size_t number) {
    const Prompt prompt = traffic_.Next();
    RouteInput input;
    input.domain = kModel;
    input.tokens = TokensOf(prompt, options_.fault, /*here=*/true);
    input.lora_name = prompt.lora_name;
    input.cache_salt = prompt.cache_salt;
    input.form = prompt.form;
    input.bos = kBos;
    // Without a load from anybody, ties go by the prompt: everybody is given work in turn.
    if (options_.workers > 1 && number % 3 == 0 && !dead_.has_value())
      input.allowed_workers = {"w" + std::to_string(number / 3 % options_.workers)};
    const absl::StatusOr<RouteResult> route = frontend_->Route(std::move(input));
    ASSERT_TRUE(route.ok()) << route.status();
    HolderId served_by = route->worker;
    if (options_.fault == Fault::kRanksSwapped)
      served_by.rank = (served_by.rank + 1) % options_.ranks;
    const Usage usage = engines_.at(served_by).engine->Serve(prompt);
    frontend_->Report(route->decision_id, {.finished = true,
                                           .cached_tokens = usage.cached_tokens,
                                           .prompt_tokens = usage.prompt_tokens});
    clock_.Advance(milliseconds(500));
    Deliver();
    Tick();
  }

  // The diagnosis waits until what was asked is answered, as if no time passed meanwhile.
  void Tick() {
    truth_->Tick();
    counted_.WaitForNone();
  }

  // What is due is published, and the leaf has applied it.
  void Deliver() {
    while (underway_.size() > options_.held_back) {
      Underway& next = underway_.front();
      const bool late = options_.fault == Fault::kLateEvents && next.worker.name == "w0";
      if (late && next.at + seconds(9) > clock_.Now()) break;
      Engine& engine = engines_.at(next.worker);
      if (next.worker != dead_) {
        engine.sockets->Publish(next.payload);
        ++engine.published;
      }
      underway_.pop_front();
    }
    ASSERT_TRUE(Eventually([&] {
      std::map<std::string, uint64_t> published, heard;
      for (const auto& [id, engine] : engines_) published[engine.instance] += engine.published;
      for (const EngineEntry& entry : leaf_->engines().List())
        heard[entry.instance] = entry.worker.batches;
      return published == heard;
    }));
  }

  bool Names(Cause cause) {
    bool named = false;
    for (const KnownFinding& known : truth_->Diagnose()) {
      ever_.insert(known.finding.cause);
      named |= known.finding.cause == cause && !known.finding.evidence.empty();
    }
    return named;
  }

  const FleetOptions options_;
  ManualClock clock_;
  std::unique_ptr<Leaf> leaf_;
  FleetTraffic traffic_;
  std::map<HolderId, Engine> engines_;
  std::deque<Underway> underway_;
  NoCells no_cells_;
  GrpcOverlapFinder finder_;
  GrpcLeafProber prober_;
  CountedLeaf counted_{&finder_, &prober_};
  std::unique_ptr<Truth> truth_;
  std::unique_ptr<Frontend> frontend_;
  std::optional<HolderId> dead_;
  std::set<Cause> ever_;
};

FleetOptions OptionsFor(Fault fault) {
  FleetOptions options{.fault = fault};
  switch (fault) {
    case Fault::kSeed:
      options.leaf_seed = 42;
      break;
    case Fault::kSaltUnsaid:
    case Fault::kLoraUnsaid:
      options.namespaced = 0.5;
      break;
    case Fault::kRanksSwapped:
      options.ranks = 2;
      break;
    case Fault::kPublisherDead:
    case Fault::kWorkersSwapped:
    case Fault::kTokenizer:
      options.workers = 2;
      break;
    case Fault::kLostRemovals:
      options.blocks_max = 60;
      break;
    default:
      break;
  }
  return options;
}

class TruthFaultsTest : public testing::TestWithParam<Fault> {};

TEST_P(TruthFaultsTest, IsNamedWithinFiftyRequests) {
  const Fault fault = GetParam();
  RealFleet fleet(OptionsFor(fault));
  EXPECT_TRUE(fleet.RunUntil(CauseOf(fault), kRequests)) << fleet.Report();
  std::set<Cause> may = AlsoFits(fault);
  may.insert(CauseOf(fault));
  for (Cause cause : fleet.ever())
    EXPECT_TRUE(may.contains(cause)) << CauseName(cause) << "\n" << fleet.Report();
}

INSTANTIATE_TEST_SUITE_P(Every, TruthFaultsTest, testing::ValuesIn(AllFaults()),
                         [](const testing::TestParamInfo<Fault>& info) {
                           return ToString(info.param);
                         });

TEST(TruthFaultsTest, AHealthyFleetIsNotAccused) {
  RealFleet fleet({.workers = 3, .namespaced = 0.2, .blocks_max = 200, .held_back = 1});
  fleet.RunAll(500);
  EXPECT_THAT(fleet.ever(), testing::IsEmpty()) << fleet.Report();
  const TruthStats stats = fleet.truth().stats();
  EXPECT_EQ(stats.exact + stats.less + stats.more, 500u);
  EXPECT_GT(stats.served_tokens, 0u);
}

}  // namespace
}  // namespace kvatlas
