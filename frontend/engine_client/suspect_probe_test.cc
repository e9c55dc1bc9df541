#include "frontend/engine_client/suspect_probe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "frontend/router/route_choice_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kAwait = seconds(60);

class SuspectProbeTest : public RouteChoiceTest {
 protected:
  // The frontend of a fleet whose only engine is to be at `url`, and a probe of its suspects.
  void Start(const std::string& url) {
    options_.engines = {{"w0", url}};
    fleet_.Add("a", "w0");
    frontend();
    probe_ = std::make_unique<SuspectProbe>(
        SuspectProbeOptions{.every = milliseconds(2), .timeout = kAwait}, &frontend());
  }
  // Something that began after this call has ended when it returns.
  void AwaitProbes() {
    const uint64_t before = probe_->probes();
    ASSERT_TRUE(Await([&] { return probe_->probes() >= before + 2; }, kAwait));
  }
  bool IsSuspect() { return !frontend().SuspectEngines().empty(); }

  std::unique_ptr<SuspectProbe> probe_;
};

TEST_F(SuspectProbeTest, WhoTakesNoConnectionStaysAvoidedUntilItDoes) {
  ReservedTestPorts held;
  const Address address = held.HoldAny();
  Start("http://" + address.ToString());
  frontend().Avoid("", {"w0", 0, ""});
  // A suspicion lasts two seconds by itself.
  for (int i = 0; i < 60; ++i) {
    AwaitProbes();
    clock_.Advance(milliseconds(1500));
    ASSERT_TRUE(IsSuspect()) << i;
  }
  HttpServer engine({.listen = address});
  ASSERT_TRUE(engine.Start().ok());
  AwaitProbes();
  clock_.Advance(seconds(3));
  EXPECT_TRUE(Await([&] { return !IsSuspect(); }, kAwait));
}

TEST_F(SuspectProbeTest, WhoAnswersAnythingIsAvoidedForItsTimeAlone) {
  HttpServer engine({.listen = {"127.0.0.1", 0}});  // 404
  ASSERT_TRUE(engine.Start().ok());
  Start("http://" + engine.address().ToString());
  frontend().Avoid("", {"w0", 0, ""});
  AwaitProbes();
  EXPECT_TRUE(IsSuspect());
  clock_.Advance(seconds(2));
  EXPECT_FALSE(IsSuspect());
}

}  // namespace
}  // namespace kvatlas
