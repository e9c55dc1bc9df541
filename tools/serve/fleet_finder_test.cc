// The finder without sockets answers what a leaf answers over gRPC, and names engines of which nothing was heard.

#include "tools/serve/fleet_finder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "frontend/peers/grpc_finders.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/holders/holder_registry.h"
#include "indexer/holders/local_holder.h"
#include "indexer/leaf/leaf_service.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/metrics.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(30);
const Domain kDomain{.model = "m", .tenant = ""};

class FleetFinderTest : public ::testing::Test {
 protected:
  FleetFinderTest()
      : service_({.cell = "cell", .replica = "", .contract = {}}, &registry_, nullptr, &metrics_),
        server_({.listen = {"127.0.0.1", 0}}) {
    server_.Register(&service_, "kvatlas.v1.Leaf");
    EXPECT_TRUE(server_.Start().ok());
    address_ = server_.address().ToString();
  }
  ~FleetFinderTest() override {
    service_.Stop();
    server_.Stop(Duration(0));
  }

  LocalHolder* Add(const std::string& name, uint32_t rank, std::optional<Load> load) {
    HolderInfo info;
    info.id = {.name = name, .rank = rank, .replica = ""};
    if (rank == 0) info.labels = {{"url", "http://" + name}, {"role", "both"}};
    auto added = registry_.AddLocal(kDomain, 16, info);
    EXPECT_TRUE(added.ok()) << added.status();
    if (load.has_value()) (*added)->SetLoad(*load);
    holders_.push_back(*std::move(added));
    return holders_.back().get();
  }

  absl::StatusOr<WorkersAnswer> Ask(OverlapFinder* finder, const std::string& address,
                                    const std::vector<SequenceHash>& prompt,
                                    const Domain& domain = kDomain) {
    Mutex mutex;
    CondVar done;
    std::optional<absl::StatusOr<WorkersAnswer>> answer;
    finder->FindOverlaps(address, {.domain = &domain, .sequence = prompt}, kLong,
                         [&](absl::StatusOr<WorkersAnswer> found) {
                           MutexLock lock(&mutex);
                           answer = std::move(found);
                           done.Signal();
                         });
    MutexLock lock(&mutex);
    while (!answer.has_value()) done.Wait(&mutex);
    return *std::move(answer);
  }

  std::shared_ptr<const FleetView> view_ = std::make_shared<FleetView>();
  Metrics metrics_;
  HolderRegistry registry_{[] {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    return options;
  }()};
  std::vector<std::unique_ptr<LocalHolder>> holders_;
  LeafService service_;
  GrpcServer server_;
  std::string address_;
  GrpcOverlapFinder remote_{/*streams=*/true};
  FleetFinder local_{"own", &registry_, [this] { return view_; }, &remote_};
};

void ExpectSame(const WorkersAnswer& got, const WorkersAnswer& wanted) {
  EXPECT_EQ(got.block_size, wanted.block_size);
  ASSERT_EQ(got.workers.size(), wanted.workers.size());
  for (size_t i = 0; i < got.workers.size(); ++i) {
    const WorkerFound& a = got.workers[i];
    const WorkerFound& b = wanted.workers[i];
    EXPECT_EQ(a.worker, b.worker) << i;
    EXPECT_EQ(a.blocks, b.blocks) << i;
    EXPECT_EQ(a.held, b.held) << i;
    EXPECT_EQ(a.trust, b.trust) << i;
    EXPECT_EQ(a.load, b.load) << i;
    EXPECT_EQ(a.fetched, b.fetched) << i;
    const Labels* labels = got.LabelsOf(a.worker);
    const Labels* expected = wanted.LabelsOf(b.worker);
    ASSERT_EQ(labels == nullptr, expected == nullptr) << i;
    if (labels != nullptr) EXPECT_EQ(*labels, *expected) << i;
  }
}

TEST_F(FleetFinderTest, AnswersAsTheLeafDoesOverGrpc) {
  const uint32_t seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<LocalHolder*> holders;
  for (uint32_t h = 0; h < 12; ++h) {
    std::optional<Load> load;
    if (random() % 2 == 0) load = Load{.running_requests = h, .waiting_requests = 1};
    holders.push_back(Add("w" + std::to_string(h / 2), h % 2, load));
  }
  const auto chain = [](uint64_t root, size_t length) {
    std::vector<SequenceHash> blocks;
    for (size_t i = 0; i < length; ++i) blocks.push_back(SequenceHash{root * 1000 + i});
    return blocks;
  };
  for (int round = 0; round < 50; ++round) {
    LocalHolder* holder = holders[random() % holders.size()];
    const uint64_t root = 1 + random() % 4;
    const Tier tier = random() % 3 == 0 ? Tier::kHost : Tier::kDevice;
    const std::vector<SequenceHash> blocks = chain(root, 1 + random() % 20);
    if (random() % 4 == 0) {
      EXPECT_TRUE(holder->Apply(Removed{.tier = tier, .blocks = {blocks.back()}}).ok());
    } else {
      EXPECT_TRUE(
          holder->Apply(Stored{.tier = tier, .position = 0, .parent = kNoParent, .blocks = blocks})
              .ok());
    }
    const std::vector<SequenceHash> prompt = chain(1 + random() % 5, random() % 25);
    const auto wanted = Ask(&remote_, address_, prompt);
    const auto got = Ask(&local_, "own", prompt);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSame(*got, *wanted);
    if (HasFailure()) return;
  }
}

TEST_F(FleetFinderTest, AnotherLeafIsAskedThroughTheOtherFinder) {
  Add("w", 0, std::nullopt);
  const auto answer = Ask(&local_, address_, {});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->workers.size(), 1u);
}

TEST_F(FleetFinderTest, EnginesWithoutEventsAreNamedWithTheirLoadAndNeverExact) {
  Add("heard", 0, std::nullopt);
  auto view = std::make_shared<FleetView>();
  FleetView::Engines& engines = view->engines["m"];
  engines["heard"] = {
      .index = 0, .url = "http://heard", .loads = {{0, Load{.running_requests = 7}}}};
  engines["silent"] = {
      .index = 1, .url = "http://silent", .loads = {{0, Load{.running_requests = 3}}}};
  view->aliases["nickname"] = "m";
  view_ = view;
  for (const char* model : {"m", "nickname"}) {
    const auto answer = Ask(&local_, "own", {}, {.model = model, .tenant = ""});
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->workers.size(), 2u);
    EXPECT_EQ(answer->workers[0].worker.name, "heard");
    EXPECT_EQ(answer->workers[0].load->running_requests, 7u);
    EXPECT_EQ(answer->workers[1].worker.name, "silent");
    EXPECT_EQ(answer->workers[1].trust, Trust::kStale);
    EXPECT_EQ(answer->workers[1].blocks, 0u);
    EXPECT_EQ(answer->LabelsOf(answer->workers[1].worker)->at("url"), "http://silent");
  }
  EXPECT_FALSE(Ask(&local_, "own", {}, {.model = "other", .tenant = ""}).ok());
}

}  // namespace
}  // namespace kvatlas
