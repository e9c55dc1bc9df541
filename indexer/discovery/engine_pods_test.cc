#include "indexer/discovery/engine_pods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EnginePodsTest, AnEntryNamesPodsAndTheirPorts) {
  const auto pods = EnginePods::Parse(
      "k8s:llm/app=vllm&tier=chat;http=8000|8001;events=6000;replay=7000;block_size=auto;x=y");
  ASSERT_TRUE(pods.ok()) << pods.status();
  EXPECT_EQ(pods->place, "k8s-pods:llm/app=vllm&tier=chat");
  EXPECT_THAT(pods->http, ElementsAre(8000, 8001));
  EXPECT_EQ(pods->events, 6000);
  EXPECT_EQ(pods->replay, 7000);
  EXPECT_EQ(pods->ranks, 2u);
  EXPECT_THAT(pods->options, ElementsAre("block_size=auto", "x=y"));
}

TEST(EnginePodsTest, WhatIsNotSaidIsTheUsual) {
  const auto pods = EnginePods::Parse("k8s:llm");
  ASSERT_TRUE(pods.ok()) << pods.status();
  EXPECT_THAT(pods->http, ElementsAre(8000));
  EXPECT_EQ(pods->events, 0);
  EXPECT_EQ(pods->ranks, 0u);
}

TEST(EnginePodsTest, WhatIsWrongIsNamed) {
  for (const char* bad : {"http=8000|", "http=-1", "http=65536", "replay=0", "ranks=1025"})
    EXPECT_THAT(EnginePods::Parse(std::string("k8s:llm;") + bad).status().message(),
                HasSubstr(bad));
  EXPECT_THAT(EnginePods::Parse("k8s:llm/app").status().message(), HasSubstr("NAMESPACE"));
}

}  // namespace
}  // namespace kvatlas
