#include "indexer/net/http_pool.h"
#include "indexer/base/await.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace kvatlas {
namespace {

TEST(HttpPoolTest, WhatWaitsWhenThePoolStopsIsToldAndNeverRun) {
  HttpPool pool(8);
  pool.Start(1);
  std::atomic<bool> begun = false;
  std::atomic<int> ran = 0, dropped = 0;
  ASSERT_TRUE(pool.Submit([&] {
    begun = true;
    EXPECT_TRUE(Await([&] { return pool.stopping(); }, std::chrono::seconds(60)));
    ++ran;
  }));
  EXPECT_TRUE(Await([&] { return begun.load(); }, std::chrono::seconds(60)));
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(pool.Submit([&] { ++ran; }, /*continued=*/false, [&] { ++dropped; }));
  ASSERT_TRUE(pool.Submit([&] { ++ran; })) << "without a drop callback";
  pool.Stop();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(dropped, 3);
  pool.Stop();
  EXPECT_EQ(dropped, 3) << "once";
  EXPECT_FALSE(pool.Submit([&] { ++ran; }, /*continued=*/false, [&] { ++dropped; }));
  EXPECT_EQ(dropped, 3) << "what was not taken was refused at once";
}

}  // namespace
}  // namespace kvatlas
