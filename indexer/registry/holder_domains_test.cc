// The cost of domains and their holders to a registry, and how long it lasts. Their purpose is
// tested by `holder_registry_test.cc`.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/registry/domain_observer.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr char kContract[] = "xxh3-chain-1:1337";

class Ignored : public DomainObserver {
 public:
  void OnChanged(HolderIndex, const ChangeLog::Part&, const Stored*) override {}
  void OnLoad(HolderIndex, const std::optional<Load>&) override {}
};

class HolderDomainsTest : public testing::Test {
 protected:
  HolderRegistryOptions Options() {
    HolderRegistryOptions options;
    options.index_name = "reference";
    options.contract_id = kContract;
    options.clock = &clock_;
    options.observe = [this](const Domain& domain, uint32_t) {
      return (observers_[domain] = std::make_unique<Ignored>()).get();
    };
    options.forget = [this](DomainObserver* observer) {
      std::erase_if(observers_, [&](const auto& one) { return one.second.get() == observer; });
    };
    return options;
  }

  static Hello HelloOf(const std::string& worker, const std::string& model) {
    Hello hello;
    hello.holder = {worker, 0, ""};
    hello.domain = {model, ""};
    hello.block_size = 16;
    hello.contract_id = kContract;
    hello.epoch = 10;
    hello.instance_id = 99;
    hello.starting = true;
    return hello;
  }

  // A connection from `peer` that said hello; the answer is in `status_`.
  std::unique_ptr<ReceiverSession> Connect(HolderRegistry* registry, const std::string& peer,
                                           const Hello& hello) {
    std::unique_ptr<ReceiverSession> session = registry->Accept([](ReceiverMessage) {});
    session->OnPeer(peer);
    status_ = session->OnMessage(hello);
    return session;
  }

  void Pass(HolderRegistry* registry, Duration time) {
    for (Duration step{0}; step < time; step += seconds(1)) {
      clock_.Advance(seconds(1));
      registry->Tick();
    }
  }

  ManualClock clock_;
  absl::Status status_;
  std::map<Domain, std::unique_ptr<Ignored>> observers_;
};

// ---- Domains ----

TEST_F(HolderDomainsTest, ADomainWithoutHoldersIsForgottenAfterAWhile) {
  HolderRegistry registry(Options());
  Connect(&registry, "10.0.0.7", HelloOf("w0", "made-up"))->OnMessage(Goodbye{}).IgnoreError();
  const auto worker = Connect(&registry, "10.0.0.8", HelloOf("w0", "real"));
  const auto pass = [&](Duration time) {
    for (Duration step{0}; step < time; step += seconds(5)) {
      ASSERT_TRUE(worker->OnMessage(Heartbeat{}).ok());
      Pass(&registry, seconds(5));
    }
  };
  pass(minutes(9));
  EXPECT_EQ(registry.Domains().size(), 2u);
  EXPECT_EQ(observers_.size(), 2u);
  pass(minutes(2));
  ASSERT_EQ(registry.Domains().size(), 1u);
  EXPECT_EQ(registry.Domains()[0].model, "real");
  EXPECT_EQ(registry.Stats().domains_forgotten, 1u);
  EXPECT_EQ(observers_.size(), 1u) << "who looked on is told";
}

TEST_F(HolderDomainsTest, ADomainWhoseHolderIsSilentGoesAfterItsHolder) {
  HolderRegistry registry(Options());
  Connect(&registry, "10.0.0.7", HelloOf("w0", "made-up")).reset();
  Pass(&registry, minutes(14));
  EXPECT_EQ(registry.Domains().size(), 1u);
  Pass(&registry, minutes(2));
  EXPECT_TRUE(registry.Domains().empty());
}

TEST_F(HolderDomainsTest, ADomainThatComesAgainIsNew) {
  HolderRegistry registry(Options());
  Connect(&registry, "10.0.0.7", HelloOf("w0", "model"))->OnMessage(Goodbye{}).IgnoreError();
  Pass(&registry, minutes(11));
  Hello other = HelloOf("w0", "model");
  other.block_size = 32;
  const auto worker = Connect(&registry, "10.0.0.7", other);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(*registry.BlockSizeOf({"model", ""}), 32u);
}

TEST_F(HolderDomainsTest, WhereThereAreTooManyTheOneThatIsEmptyForLongestGoes) {
  HolderRegistryOptions options = Options();
  options.domains_max = 3;
  HolderRegistry registry(options);
  Connect(&registry, "10.0.0.7", HelloOf("w0", "first"))->OnMessage(Goodbye{}).IgnoreError();
  Pass(&registry, seconds(5));
  Connect(&registry, "10.0.0.7", HelloOf("w0", "second"))->OnMessage(Goodbye{}).IgnoreError();
  Pass(&registry, seconds(5));
  const auto third = Connect(&registry, "10.0.0.7", HelloOf("w0", "third"));
  const auto fourth = Connect(&registry, "10.0.0.8", HelloOf("w0", "fourth"));
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_TRUE(absl::IsNotFound(registry.BlockSizeOf({"first", ""}).status()));
  EXPECT_TRUE(registry.BlockSizeOf({"second", ""}).ok());
  const auto fifth = Connect(&registry, "10.0.0.8", HelloOf("w0", "fifth"));
  EXPECT_TRUE(status_.ok()) << status_;
  const auto sixth = Connect(&registry, "10.0.0.8", HelloOf("w0", "sixth"));
  EXPECT_TRUE(absl::IsResourceExhausted(status_)) << "all have holders";
  EXPECT_EQ(registry.Domains().size(), 3u);
}

// In a process with little address space; it was an abort.
TEST_F(HolderDomainsTest, ADomainWhoseIndexCannotBeMadeIsRefused) {
  HolderRegistryOptions options = Options();
  options.index_name = "no such index";
  HolderRegistry registry(options);
  Connect(&registry, "10.0.0.7", HelloOf("w0", "model"));
  EXPECT_TRUE(absl::IsResourceExhausted(status_)) << status_;
  EXPECT_NE(status_.message().find("model"), std::string::npos) << status_;
  EXPECT_TRUE(registry.Domains().empty());
  EXPECT_EQ(registry.Refused().size(), 1u);
}

// In a process of its own: 0 when domains were taken, and then refused.
int DomainsUnderALimit(HolderRegistryOptions options) {
  options.index_name = "atlas";
  rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = AddressSpaceBytes() + (uint64_t{1} << 30);
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
  HolderRegistry registry(std::move(options));
  Hello hello;
  hello.holder = {"w0", 0, ""};
  hello.block_size = 16;
  hello.contract_id = kContract;
  hello.epoch = 10;
  std::vector<std::unique_ptr<ReceiverSession>> sessions;
  for (int i = 0; i < 1000; ++i) {
    hello.domain.model = "m" + std::to_string(i);
    sessions.push_back(registry.Accept([](ReceiverMessage) {}));
    const absl::Status status = sessions.back()->OnMessage(hello);
    if (!status.ok()) return absl::IsResourceExhausted(status) && i > 0 ? 0 : 3;
  }
  return 4;
}

TEST_F(HolderDomainsTest, WhereAddressSpaceIsLimitedDomainsAreRefused) {
  if (AddressSpaceBytes() > uint64_t{1} << 40) GTEST_SKIP() << "a sanitizer needs it all";
  EXPECT_EXIT(std::exit(DomainsUnderALimit(Options())), testing::ExitedWithCode(0), "");
}

// The observer is asked while the domain is made: no query may wait for that.
TEST_F(HolderDomainsTest, QueriesAreAnsweredWhileADomainIsMade) {
  HolderRegistry* made_by = nullptr;
  int answered = 0;
  HolderRegistryOptions options = Options();
  options.observe = [&](const Domain& domain, uint32_t) {
    if (domain.model == "second" &&
        made_by->FindOverlaps({"first", ""}, {.blocks = std::vector<SequenceHash>(1)}).ok())
      ++answered;
    return nullptr;
  };
  HolderRegistry registry(options);
  made_by = &registry;
  const auto first = Connect(&registry, "10.0.0.7", HelloOf("w0", "first"));
  const auto second = Connect(&registry, "10.0.0.7", HelloOf("w0", "second"));
  EXPECT_EQ(answered, 1);
}

// ---- What one address may announce ----

TEST_F(HolderDomainsTest, AnAddressMayAnnounceSoManyDomains) {
  HolderRegistryOptions options = Options();
  options.peer.domains.max = 2;
  HolderRegistry registry(options);
  std::vector<std::unique_ptr<ReceiverSession>> sessions;
  for (int i = 0; i < 4; ++i)
    sessions.push_back(Connect(&registry, "10.0.0.7", HelloOf("w0", "m" + std::to_string(i))));
  EXPECT_TRUE(absl::IsResourceExhausted(status_));
  EXPECT_NE(status_.message().find("domains_per_peer"), std::string::npos) << status_;
  EXPECT_EQ(registry.Domains().size(), 2u);
  sessions.push_back(Connect(&registry, "10.0.0.8", HelloOf("w0", "m3")));
  EXPECT_TRUE(status_.ok()) << "another one has its own";
  sessions.push_back(Connect(&registry, "10.0.0.7", HelloOf("w1", "m3")));
  EXPECT_TRUE(status_.ok()) << "and what is there may be joined";
}

TEST_F(HolderDomainsTest, AnAddressMayKeepSoManyHolders) {
  HolderRegistryOptions options = Options();
  options.peer.holders.max = 2;
  HolderRegistry registry(options);
  auto w0 = Connect(&registry, "10.0.0.7", HelloOf("w0", "model"));
  const auto w1 = Connect(&registry, "10.0.0.7", HelloOf("w1", "model"));
  ASSERT_TRUE(status_.ok());
  const auto w2 = Connect(&registry, "10.0.0.7", HelloOf("w2", "other"));
  EXPECT_TRUE(absl::IsResourceExhausted(status_));
  EXPECT_NE(status_.message().find("holders_per_peer"), std::string::npos) << status_;
  EXPECT_EQ(registry.Domains().size(), 1u) << "nothing is left of it";
  const auto again = Connect(&registry, "10.0.0.7", HelloOf("w0", "model"));
  EXPECT_TRUE(status_.ok()) << "who comes again counts once: " << status_;
  const auto elsewhere = Connect(&registry, "10.0.0.8", HelloOf("w3", "model"));
  EXPECT_TRUE(status_.ok());
  ASSERT_TRUE(w1->OnMessage(Goodbye{}).ok());
  const auto w4 = Connect(&registry, "10.0.0.7", HelloOf("w4", "model"));
  EXPECT_TRUE(status_.ok()) << "who is gone does not count";
}

TEST_F(HolderDomainsTest, AnAddressMaySaySoMuchOfItsHolders) {
  HolderRegistryOptions options = Options();
  options.peer.label_bytes.max = 10'000;
  HolderRegistry registry(options);
  Hello wordy = HelloOf("w0", "model");
  for (int i = 0; i < 32; ++i) wordy.labels.emplace_back(std::to_string(i), std::string(200, 'x'));
  const auto w0 = Connect(&registry, "10.0.0.7", wordy);
  EXPECT_TRUE(status_.ok()) << status_;
  wordy.holder.name = "w1";
  const auto w1 = Connect(&registry, "10.0.0.7", wordy);
  EXPECT_TRUE(absl::IsResourceExhausted(status_));
  EXPECT_NE(status_.message().find("label_bytes_per_peer"), std::string::npos) << status_;
  const auto terse = Connect(&registry, "10.0.0.7", HelloOf("w2", "model"));
  EXPECT_TRUE(status_.ok()) << status_;
}

}  // namespace
}  // namespace kvatlas
