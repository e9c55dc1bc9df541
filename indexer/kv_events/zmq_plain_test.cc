// Where may an engine's events come in clear?

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/stream_worker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/kv_events/zmq_source.h"
#include "indexer/security/curve.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

std::unique_ptr<StreamWorker> NoWorker() {
  return std::make_unique<StreamWorker>([](StreamTracker::Action::Kind, std::string_view) {});
}

// A process with an access policy, for as long as it lives.
class UnderPolicy {
 public:
  UnderPolicy() {
    const absl::StatusOr<Pki> pki =
        Pki::Create(testing::TempDir() + "/zmq_ingest_" + std::to_string(getpid()), "t.example");
    EXPECT_TRUE(pki.ok() && pki->WriteExamplePolicy().ok()) << pki.status();
    SecurityOptions options;
    options.tls = *pki->Issue({.identity = "leaf/a/-"});
    options.policy = pki->policy_path();
    const absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(options);
    EXPECT_TRUE(security.ok()) << security.status();
    Security::SetOfProcess(*security);
  }
  ~UnderPolicy() { Security::SetOfProcess(Security::Open()); }
};

TEST(ZmqPlainTest, UnderAPolicyEventsInClearStayOnThisMachine) {
  const UnderPolicy policy;
  const auto add = [](const ZmqSource& source, bool plain_engines = false) {
    ZmqIngestOptions options;
    options.plain_engines = plain_engines;
    ZmqIngest ingest(options);
    return ingest.Add(source, nullptr, NoWorker()).status();
  };
  const ZmqSource here = {.worker_name = "w", .endpoint = "tcp://127.0.0.1:1"};
  const ZmqSource there = {.worker_name = "w", .endpoint = "tcp://10.255.255.1:1"};
  ZmqSource named = {.worker_name = "w", .endpoint = "tcp://engine.invalid:1"};
  ZmqSource replay = here;
  replay.replay_endpoint = "tcp://10.255.255.1:2";
  EXPECT_TRUE(add(here).ok()) << add(here);
  for (const ZmqSource& clear : {there, named, replay}) {
    const absl::Status refused = add(clear);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_NE(refused.message().find("--plain_engines"), std::string::npos) << refused;
    EXPECT_TRUE(add(clear, /*plain_engines=*/true).ok());
    ZmqSource with_key = clear;
    with_key.server_key = MakeCurveKeys()->public_key;
    EXPECT_TRUE(add(with_key).ok()) << add(with_key);
  }
  ZmqSource flags = {.worker_name = "w", .endpoint = "tcp://*:0", .bind = true, .from_flags = true};
  EXPECT_FALSE(add(flags).ok()) << "it would listen beyond loopback";
}

TEST(ZmqPlainTest, WithoutAPolicyTheyAreTaken) {
  ZmqIngest ingest({});
  EXPECT_TRUE(
      ingest.Add({.worker_name = "w", .endpoint = "tcp://10.255.255.1:1"}, nullptr, NoWorker())
          .ok());
}

TEST(ZmqPlainTest, KeysAreCheckedWhereAnEngineIsRegistered) {
  EXPECT_FALSE(CheckZmqSource({.endpoint = "tcp://127.0.0.1:1", .server_key = "short"}, {}).ok());
  EXPECT_FALSE(CheckZmqSource({.endpoint = "tcp://127.0.0.1:1",
                               .server_key = MakeCurveKeys()->public_key,
                               .bind = true,
                               .from_flags = true},
                              {})
                   .ok());
}

}  // namespace
}  // namespace kvatlas
