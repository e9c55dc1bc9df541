#include "tools/serve/engine_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(EngineListTest, AnEngineIsItsUrlAndTheUsualPorts) {
  const auto spec = EngineSpec::Parse("http://10.0.0.1:8000/");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->url, "http://10.0.0.1:8000");
  EXPECT_EQ(spec->name, "10.0.0.1:8000");
  EXPECT_EQ(spec->EventsOf(0), "tcp://10.0.0.1:5557");
  EXPECT_EQ(spec->ReplayOf(0), "tcp://10.0.0.1:5657");
}

TEST(EngineListTest, PortsGoUpByTheRank) {
  const auto spec = EngineSpec::Parse(
      "http://h:8000;events=tcp://h:6000;replay=tcp://h:7000;ranks=4;name=a;topic=kv");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->EventsOf(3), "tcp://h:6003");
  EXPECT_EQ(spec->ReplayOf(3), "tcp://h:7003");
  EXPECT_EQ(spec->name, "a");
  EXPECT_EQ(spec->topic, "kv");
  EXPECT_EQ(spec->ranks, 4u);
}

TEST(EngineListTest, WhatNoEventSaysIsSaidHere) {
  const auto spec = EngineSpec::Parse(
      "http://h:8000;hybrid=true;window_tokens=4096;chunk_tokens=8192;eagle_drop=1,2");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->hybrid);
  EXPECT_EQ(spec->window_tokens, 4096u);
  EXPECT_EQ(spec->chunk_tokens, 8192u);
  EXPECT_EQ(spec->eagle_drop, "1,2");
  EXPECT_FALSE(EngineSpec::Parse("http://h:8000;hybrid=false")->hybrid);
}

TEST(EngineListTest, EventsOfAnotherPortHaveNoReplayUnlessSaid) {
  const auto spec = EngineSpec::Parse("http://h:8000;events=tcp://h:6000");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->ReplayOf(0), "");
  const auto none = EngineSpec::Parse("h:8000;events=none");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->EventsOf(0), "");
  EXPECT_EQ(none->url, "http://h:8000");
}

TEST(EngineListTest, MistakesSayWhatWasExpected) {
  for (const auto& [text, what] : std::vector<std::pair<std::string, std::string>>{
           {"https://h:1", "https"},
           {"http://h:1;evens=tcp://h:2", "unknown key 'evens'"},
           {"http://h:1;ranks=0", "ranks=0"},
           {"http://h:1;ranks=x", "ranks=x"},
           {"http://h:1;name=", "'name='"},
           {"http://h:1;hybrid=1", "hybrid=1"},
           {"http://h:1;window_tokens=0", "window_tokens=0"},
           {"http://h:1;chunk_tokens=x", "chunk_tokens=x"},
           {"http://h:1;eagle_drop=some", "eagle_drop"},
           {"http://h:1;events=h:5557", "'h:5557' is not an endpoint"},
           {"", "engine ''"}}) {
    const auto spec = EngineSpec::Parse(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(what));
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr("expected URL[;events="));
  }
}

TEST(EngineListTest, TwoEnginesOfOneNameOrUrlAreRefused) {
  EXPECT_FALSE(EngineList::Make({"http://h:1", "http://h:1/"}, "").ok());
  EXPECT_FALSE(EngineList::Make({"http://h:1;name=a", "http://h:2;name=a"}, "").ok());
  EXPECT_TRUE(EngineList::Make({"http://h:1", "http://h:2"}, "").ok());
}

TEST(EngineListTest, AKeyMayHaveTheSignOfACommentInIt) {
  const std::string key = "rq#rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  const std::string path = ::testing::TempDir() + "/engines_with_keys";
  std::ofstream(path) << "http://10.0.0.1:1;key=" << key << " # its key\n";
  const auto specs = ReadEnginesFile(path);
  ASSERT_TRUE(specs.ok()) << specs.status();
  ASSERT_THAT(*specs, SizeIs(1));
  EXPECT_EQ(specs->front().server_key, key);
}

TEST(EngineListTest, AFileIsReadAgainWhenItChangesAndABadOneKeepsTheOld) {
  const std::string path = ::testing::TempDir() + "/engines";
  std::ofstream(path) << "# ours\nhttp://10.0.0.1:1\n\nhttp://10.0.0.2:1 # second\n";
  auto list = EngineList::Make({"http://10.0.0.9:1"}, path);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->engines(), SizeIs(3));
  std::ofstream(path) << "http://10.0.0.1:1\nnonsense://\n";
  const auto bad = list->Refresh(Time(std::chrono::seconds(100)));
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("engines:2: "));
  EXPECT_THAT(list->engines(), SizeIs(3));
  // Said once.
  EXPECT_TRUE(list->Refresh(Time(std::chrono::seconds(101))).ok());
  std::ofstream(path) << "http://10.0.0.1:1\n";
  const auto good = list->Refresh(Time(std::chrono::seconds(102)));
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_TRUE(*good);
  EXPECT_THAT(list->engines(), SizeIs(2));
  // Written in place, as it is for an instant.
  std::ofstream(path, std::ios::trunc).close();
  const auto empty = list->Refresh(Time(std::chrono::seconds(103)));
  ASSERT_FALSE(empty.ok());
  EXPECT_THAT(std::string(empty.status().message()), HasSubstr("names no engine"));
  EXPECT_THAT(list->engines(), SizeIs(2));
}

}  // namespace
}  // namespace kvatlas
