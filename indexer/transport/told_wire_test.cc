#include "indexer/transport/told_wire.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/registry/holder_handle.h"

namespace kvatlas {
namespace {

const Domain kLlama{"llama-70b", ""};

class ToldStreamsTest : public testing::Test {
 protected:
  static HolderRegistryOptions Options(const Clock* clock) {
    HolderRegistryOptions options;
    options.contract_id = "xxh3-chain-1:1337";
    options.clock = clock;
    return options;
  }

  static v1::Told Of(uint64_t frontend, uint64_t decision) {
    v1::Told told;
    told.mutable_domain()->set_model(kLlama.model);
    told.set_frontend(frontend);
    v1::Routed* const routed = told.add_routed();
    routed->set_decision(decision);
    routed->mutable_worker()->set_name("w");
    routed->add_blocks(decision);
    return told;
  }

  uint64_t pending() const { return registry_.StatsOf(kLlama)->pending.requests; }

  ManualClock clock_;
  HolderRegistry registry_{Options(&clock_)};
  std::unique_ptr<HolderHandle> worker_ =
      *registry_.AddLocal(kLlama, 16, {.id = {"w", 0, ""}, .address = "", .labels = {}});
  ToldStreams streams_{Security::OfProcess().get(), &registry_};
  const std::shared_ptr<const Identity> teller_ = std::make_shared<const Identity>();
};

TEST_F(ToldStreamsTest, WhatAFrontendSentIsNotWaitedForAfterItsLastStream) {
  std::optional<ToldStreams::Stream> one(std::in_place, &streams_, teller_, "127.0.0.1");
  std::optional<ToldStreams::Stream> two(std::in_place, &streams_, teller_, "127.0.0.1");
  std::optional<ToldStreams::Stream> other(std::in_place, &streams_, teller_, "127.0.0.1");
  EXPECT_EQ(one->Hear(Of(5, 1)), 0);
  EXPECT_EQ(two->Hear(Of(5, 2)), 0);
  EXPECT_EQ(other->Hear(Of(6, 1)), 0);
  EXPECT_EQ(pending(), 3u);
  one.reset();
  EXPECT_EQ(pending(), 3u) << "its other stream is open";
  two.reset();
  EXPECT_EQ(pending(), 1u);
  other.reset();
  EXPECT_EQ(pending(), 0u);
}

TEST_F(ToldStreamsTest, AStreamTellsOfAFewFrontends) {
  ToldStreams::Stream stream(&streams_, teller_, "127.0.0.1");
  for (uint64_t frontend = 1; frontend <= ToldStreams::kFrontendsMax; ++frontend)
    EXPECT_EQ(stream.Hear(Of(frontend, 1)), 0);
  EXPECT_EQ(stream.Hear(Of(1000, 1)), 1) << "of one more nothing is taken";
  EXPECT_EQ(stream.Hear(Of(1, 2)), 0);
}

}  // namespace
}  // namespace kvatlas
