#include "frontend/serve/engine_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "indexer/base/await.h"
#include "tools/testing/servers/k8s_test_server.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
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

TEST(EngineListTest, AnEngineMayHaveLaterRanksThanTheFirst) {
  EXPECT_EQ(EngineSpec::Parse("http://h:1;first_rank=2")->first_rank, 2u);
  EXPECT_EQ(EngineSpec::Parse("http://h:1;first_rank=0")->first_rank, 0u);
  EXPECT_FALSE(EngineSpec::Parse("http://h:1")->first_rank.has_value());
  EXPECT_FALSE(EngineSpec::Parse("http://h:1;first_rank=many").ok());
  const std::string events = ";events=tcp://h:6000";
  const auto list = [&](const std::string& second) {
    return EngineList::Make({"http://h:1;first_rank=0" + events, "http://h:2" + events + second},
                            "")
        .ok();
  };
  EXPECT_TRUE(list(";first_rank=1"));
  EXPECT_FALSE(list("")) << "both would publish at one endpoint";
}

TEST(EngineListTest, StoresAndWhatTiersKeepAreSaidHere) {
  const auto spec = EngineSpec::Parse(
      "http://h:8000;store=files;store_tiers=disk;silent_blocks=1000;silent_seconds=60;"
      "count_copies=false");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->store, "files");
  EXPECT_EQ(spec->store_tiers, "disk");
  EXPECT_EQ(spec->silent_blocks, 1000u);
  EXPECT_EQ(spec->silent_seconds, 60u);
  EXPECT_FALSE(spec->counts_copies);
  for (const char* bad : {"store_tiers=disk", "store=s;store_tiers=gpu", "silent_blocks=0",
                          "silent_seconds=x", "count_copies=1"})
    EXPECT_FALSE(EngineSpec::Parse(std::string("http://h:1;") + bad).ok()) << bad;
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
  EXPECT_EQ(made("name=a", "name=b"), "") << "each may say where its events are";
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

std::vector<std::string> TextsOf(const std::vector<EngineSpec>& specs) {
  std::vector<std::string> texts;
  for (const EngineSpec& spec : specs) {
    const uint32_t first = spec.first_rank.value_or(0);
    texts.push_back(spec.name + " " + spec.url + " " + spec.EventsOf(first) + "/" +
                    std::to_string(first));
  }
  return texts;
}

TEST(EngineListTest, APodIsAsManyEnginesAsItHasPorts) {
  const auto of = [](const std::string& entry, const std::string& address = "10.0.0.7") {
    ServiceRecord pod;
    pod.name = "pod";
    pod.grpc = address;
    return SpecsOf(*EnginePods::Parse(entry), pod);
  };
  EXPECT_THAT(TextsOf(of("k8s:llm/app=vllm")),
              ElementsAre("pod http://10.0.0.7:8000 tcp://10.0.0.7:5557/0"));
  EXPECT_FALSE(of("k8s:llm/app=vllm")[0].has_events) << "it may say where they are";
  EXPECT_THAT(TextsOf(of("k8s:llm;http=8000|8001;events=6000")),
              ElementsAre("pod:8000 http://10.0.0.7:8000 tcp://10.0.0.7:6000/0",
                          "pod:8001 http://10.0.0.7:8001 tcp://10.0.0.7:6001/1"));
  EXPECT_THAT(TextsOf(of("k8s:llm;http=9000;hybrid=true", "fd00::1")),
              ElementsAre("pod http://[fd00::1]:9000 tcp://[fd00::1]:5557/0"));
  EXPECT_TRUE(of("k8s:llm;hybrid=true")[0].hybrid);
  EXPECT_EQ(of("k8s:llm;ranks=4")[0].ranks, 4u);
  const auto why = [](const std::string& entry) {
    return std::string(EngineList::Make({entry}, "").status().message());
  };
  EXPECT_THAT(why("k8s:llm;model=m"), HasSubstr("unknown key 'model'"));
  EXPECT_THAT(why("k8s:llm;name=x"), HasSubstr("by the pods themselves"));
  EXPECT_THAT(why("k8s:LLM"), HasSubstr("NAMESPACE"));
  EXPECT_EQ(why("k8s:llm"), "");
}

TEST(EngineListTest, AnEngineMayDialASocketOfThisProcess) {
  const auto spec =
      EngineSpec::Parse("http://10.0.0.7:8000;name=pod:8000;events=kv@tcp://0.0.0.0:5557");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->dials_in());
  EXPECT_EQ(spec->EventsOf(1), "tcp://0.0.0.0:5558");
  EXPECT_EQ(spec->ReplayOf(0), "");
  EXPECT_THAT(spec->pods(), ElementsAre("10.0.0.7:8000", "10.0.0.7", "pod:8000", "pod"));
  EXPECT_FALSE(EngineSpec::Parse("http://h;events=kv@ipc:///tmp/x").ok());
  EXPECT_FALSE(EngineSpec::Parse("http://h;events=kv@tcp://*:1;replay=tcp://h:2").ok());
  const auto list = EngineList::Make({"http://h:1", "http://h:2;events=kv@tcp://*:1;ranks=2",
                                      "k8s:llm;http=1|2;events=kv@tcp://*:7"},
                                     "");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->dialed(), ElementsAre("tcp://*:1", "tcp://*:2", "tcp://*:7", "tcp://*:8"));
}

TEST(EngineListTest, PodsThatBecomeReadyAreEnginesAndThoseThatGoAreNot) {
  K8sTestServer server;
  server.PutPod("vllm", "a", "127.0.0.1", true);
  server.PutPod("vllm", "far", "8.8.8.8", true);
  auto list = EngineList::Make({"http://127.0.0.9:8000;name=b", "k8s:llm/app=vllm"}, "");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->finds(), "pods of llm/app=vllm");
  ASSERT_TRUE(list->Watch(EngineAddresses(), nullptr, server.options()).ok());
  const auto becomes = [&](EngineList* which, const std::vector<std::string>& wanted) {
    return Await(
        [&] {
          (void)which->Refresh(Time(0));
          std::vector<std::string> names;
          for (const EngineSpec& spec : which->engines()) names.push_back(spec.name);
          return names == wanted;
        },
        std::chrono::minutes(1));
  };
  EXPECT_TRUE(becomes(&*list, {"b", "a"})) << "far is outside of --engine_addresses";
  server.PutPod("vllm", "b", "127.0.0.2", true);
  server.PutPod("vllm", "c", "127.0.0.3", true);
  EXPECT_TRUE(becomes(&*list, {"b", "a", "c"})) << "the name is taken by a given engine";
  server.PutPod("vllm", "a", "127.0.0.1", false);
  EXPECT_TRUE(becomes(&*list, {"b", "c"}));
  // Flags that are read again: what was watched is known at once, also while the API server is
  // away.
  server.AnswerAll(500, "down");
  server.EndWatches();
  auto again = EngineList::Make({"k8s:llm/app=vllm"}, "");
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE(again->Watch(EngineAddresses(), &*list, server.options()).ok());
  EXPECT_THAT(TextsOf(again->engines()),
              ElementsAre("b http://127.0.0.2:8000 tcp://127.0.0.2:5557/0",
                          "c http://127.0.0.3:8000 tcp://127.0.0.3:5557/0"));
}

}  // namespace
}  // namespace kvatlas
