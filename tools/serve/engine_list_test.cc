#include "tools/serve/engine_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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
      "http://h:8000;hybrid=true;window_tokens=4096;chunk_tokens=8192;offload_chunk_tokens=64;"
      "silent_tiers=host;eagle_drop=1,2");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->hybrid);
  EXPECT_EQ(spec->window_tokens, 4096u);
  EXPECT_EQ(spec->chunk_tokens, 8192u);
  EXPECT_EQ(spec->offload_chunk_tokens, 64u);
  EXPECT_EQ(spec->silent_tiers, "host");
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
           {"http://h:1;offload_chunk_tokens=0", "offload_chunk_tokens=0"},
           {"http://h:1;silent_tiers=device", "device"},
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
  EXPECT_TRUE(EngineList::Make({"http://h:1", "http://g:1"}, "").ok());
}

TEST(EngineListTest, TwoEnginesOfOneEndpointOfEventsAreRefused) {
  const auto made = [](const std::string& a, const std::string& b) {
    const auto list = EngineList::Make({"http://h:1;" + a, "http://h:2;" + b}, "");
    return list.ok() ? "" : std::string(list.status().message());
  };
  EXPECT_THAT(made("events=tcp://h:6000", "events=tcp://h:6000"),
              HasSubstr("http://h:1 and http://h:2 have the same events, tcp://h:6000"));
  EXPECT_THAT(made("events=tcp://127.0.0.1:6000", "events=tcp://localhost:6000"),
              HasSubstr("the same events"));
  EXPECT_THAT(made("events=tcp://h:6000;ranks=4", "events=tcp://h:6003"),
              HasSubstr("tcp://h:6003"));
  EXPECT_THAT(made("name=a", "name=b"), HasSubstr("tcp://h:5557"));
  EXPECT_THAT(made("topic=a", "name=b"), HasSubstr("tcp://h:5557"));
  EXPECT_EQ(made("events=tcp://h:6000;ranks=3", "events=tcp://h:6003"), "");
  EXPECT_EQ(made("events=none", "events=none"), "");
  EXPECT_EQ(made("topic=a", "topic=b"), "");
}

TEST(EngineListTest, WhatIsNoFileOfTextIsRefused) {
  const std::string path = ::testing::TempDir() + "/engines_fifo";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const std::string& bad : {path, ::testing::TempDir(), std::string("/dev/null")}) {
    const auto list = EngineList::Make({}, bad);
    ASSERT_FALSE(list.ok()) << bad;
    EXPECT_THAT(std::string(list.status().message()), HasSubstr("is no regular file"));
  }
  const std::string nul = ::testing::TempDir() + "/engines_nul";
  std::ofstream(nul) << "http://10.0.0.1:1\nhttp://10.0.0.2:1" << '\0' << ";name=a\n";
  EXPECT_THAT(std::string(ReadEnginesFile(nul).status().message()),
              HasSubstr(":2: has a NUL byte"));
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
