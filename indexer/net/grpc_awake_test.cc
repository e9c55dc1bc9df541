#include "indexer/net/grpc_awake.h"

#include <gtest/gtest.h>

#include <chrono>

#include "indexer/base/await.h"

namespace kvatlas {
namespace {

TEST(GrpcAwakeTest, SomethingHappensAgainAndAgain) {
  GrpcAwake awake;
  EXPECT_TRUE(Await([&] { return awake.beats() >= 4; }, std::chrono::minutes(1)));
}

TEST(GrpcAwakeTest, EndsWhileACallIsUnderWay) {
  for (int i = 0; i < 20; ++i) GrpcAwake awake;
}

}  // namespace
}  // namespace kvatlas
