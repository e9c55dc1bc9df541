#include "indexer/kv_events/worker_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

std::string Shown(const std::vector<std::string>& workers) {
  EngineRegistration of_all;
  of_all.model = "m";
  of_all.group = "g";
  of_all.block_size = 16;
  const auto parsed = ParseWorkers(workers, of_all);
  if (!parsed.ok()) return std::string(parsed.status().message());
  std::string text;
  for (const EngineRegistration& worker : *parsed) {
    EXPECT_EQ(worker.model, "m");
    EXPECT_EQ(worker.group, "g");
    text += worker.instance + " " + std::to_string(worker.rank) + " " + worker.endpoint + " " +
            std::to_string(worker.block_size);
    if (!worker.replay_endpoint.empty()) text += " replay " + worker.replay_endpoint;
    if (!worker.topic.empty()) text += " topic " + worker.topic;
    if (!worker.server_key.empty()) text += " key " + worker.server_key;
    if (worker.bind) text += " bind";
    if (!worker.lora_name.empty()) text += " lora " + worker.lora_name;
    if (!worker.additional_salt.empty()) text += " salt " + worker.additional_salt;
    if (!worker.counts_copies) text += " once";
    if (worker.image_token) text += " image " + std::to_string(*worker.image_token);
    if (!worker.engine_type.empty()) text += " type " + worker.engine_type;
    if (!worker.url.empty()) text += " url " + worker.url;
    if (worker.hybrid) text += " hybrid";
    if (worker.offload_chunk_tokens != 0)
      text += " offload " + std::to_string(worker.offload_chunk_tokens);
    if (!worker.silent_tiers.empty()) text += " silent " + worker.silent_tiers;
    if (worker.first_rank != 0) text += " from " + std::to_string(worker.first_rank);
    text += "\n";
  }
  return text;
}

TEST(WorkerFlagsTest, InstancesHaveRanksOrNone) {
  EXPECT_EQ(Shown({"1=tcp://h:5557", "18446744073709551615:3=tcp://[::1]:5560"}),
            "1 0 tcp://h:5557 16\n18446744073709551615 3 tcp://[::1]:5560 16\n");
  EXPECT_EQ(Shown({"pod:a=ipc:///tmp/x"}), "pod:a 0 ipc:///tmp/x 16\n");
  EXPECT_EQ(Shown({}), "");
}

TEST(WorkerFlagsTest, OptionsFollowSemicolons) {
  EXPECT_EQ(
      Shown({"1=tcp://h:1;replay=tcp://h:2;topic=kv@x=y;bind;lora=a;salt=s;type=SGLang;"
             "block_size=4;count_copies=false;image_token=151655"}),
      "1 0 tcp://h:1 4 replay tcp://h:2 topic kv@x=y bind lora a salt s once image 151655 type "
      "SGLang\n");
}

TEST(WorkerFlagsTest, TiersBesideTheDeviceHaveChunksAndMayBeSilent) {
  EXPECT_EQ(Shown({"1=tcp://h:1;offload_chunk_tokens=64;silent_tiers=host,disk"}),
            "1 0 tcp://h:1 16 offload 64 silent host,disk\n");
  EXPECT_THAT(Shown({"1=tcp://h:1;offload_chunk_tokens=0"}), testing::HasSubstr("=0"));
  EXPECT_THAT(Shown({"1=tcp://h:1;silent_tiers=gpu"}), testing::HasSubstr("=gpu"));
}

TEST(WorkerFlagsTest, AStoreMayBeShared) {
  EngineRegistration of_all;
  of_all.model = "m";
  of_all.block_size = 16;
  const auto bad = [&](const std::string& options) {
    return !ParseWorkers({"1=tcp://h:1;" + options}, of_all).ok();
  };
  const auto parsed =
      ParseWorkers({"1=tcp://h:1;store=files;silent_blocks=1000;silent_seconds=60"}, of_all);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const EngineRegistration& worker = parsed->front();
  EXPECT_EQ(worker.silent_blocks, 1000u);
  EXPECT_EQ(worker.silent_seconds, 60u);
  EXPECT_EQ(StoreTiersOf(worker), TierMask(Tier::kDisk) | TierMask(Tier::kExternal));
  EXPECT_EQ(LabelsOf(worker).at(0), (std::pair<std::string, std::string>("store", "files")));
  EngineRegistration own = worker;
  own.store_tiers = "all";
  EXPECT_TRUE(StoreTiersOf(own).empty()) << "it is the store itself";
  EXPECT_EQ(LabelsOf(own).at(0), (std::pair<std::string, std::string>("holds_store", "files")));
  EXPECT_TRUE(bad("store_tiers=disk")) << "of no store";
  EXPECT_TRUE(bad("store=s;store_tiers=gpu"));
  EXPECT_TRUE(bad("silent_blocks=0"));
}

TEST(WorkerFlagsTest, RanksBehindAUrlMayBeginLater) {
  EXPECT_EQ(Shown({"1:3=tcp://h:1;first_rank=2", "2:0=tcp://h:2;first_rank=0"}),
            "1 3 tcp://h:1 16 from 2\n2 0 tcp://h:2 16\n");
  EXPECT_THAT(Shown({"1:1=tcp://h:1;first_rank=2"}), testing::HasSubstr("first_rank"));
  EXPECT_THAT(Shown({"1:1=tcp://h:1;first_rank=x"}), testing::HasSubstr("first_rank=x"));
}

TEST(WorkerFlagsTest, AHybridIsSaidToBeOne) {
  EXPECT_EQ(Shown({"1=tcp://h:1;hybrid=true", "2=tcp://h:2;hybrid=false"}),
            "1 0 tcp://h:1 16 hybrid\n2 0 tcp://h:2 16\n");
  EXPECT_THAT(Shown({"1=tcp://h:1;hybrid=1"}), testing::HasSubstr("hybrid=1"));
}

TEST(WorkerFlagsTest, AnEnginesKeyHasEveryCharacterOfZ85) {
  const std::string key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
  EXPECT_EQ(Shown({"1=tcp://h:1;server_key=" + key}), "1 0 tcp://h:1 16 key " + key + "\n");
  EXPECT_NE(Shown({"1=tcp://h:1;server_key=short"}).find("40 characters of Z85"),
            std::string::npos);
  EXPECT_NE(Shown({"1=tcp://h:1;bind;server_key=" + key}).find("dials out"), std::string::npos);
}

TEST(WorkerFlagsTest, ABlockSizeMayBeLearned) {
  EngineRegistration of_all;
  const auto parsed = ParseWorkers({"1=tcp://h:1;block_size=auto"}, of_all);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ((*parsed)[0].block_size, kBlockSizeAuto);
  EXPECT_TRUE((*parsed)[0].from_flags);
}

TEST(WorkerFlagsTest, AUrlIsTakenAsItIs) {
  EXPECT_EQ(Shown({"1=tcp://h:1;url=http://h:30000/v1?a=b"}),
            "1 0 tcp://h:1 16 url http://h:30000/v1?a=b\n");
}

TEST(WorkerFlagsTest, WhatIsNotOfTheFormIsNamed) {
  EXPECT_THAT(Shown({"1"}), testing::HasSubstr("worker \"1\": not NAME[:RANK]=ENDPOINT"));
  EXPECT_THAT(Shown({"=tcp://h:1"}), testing::HasSubstr("no name"));
  EXPECT_THAT(Shown({"1=tcp://h:1;color=red"}), testing::HasSubstr("\"color=red\""));
  EXPECT_THAT(Shown({"1=tcp://h:1;count_copies=0"}), testing::HasSubstr("count_copies=0"));
  EXPECT_THAT(Shown({"1=tcp://h:1;image_token=-1"}), testing::HasSubstr("image_token=-1"));
  EXPECT_THAT(Shown({"1=tcp://h:1;replay"}), testing::HasSubstr("\"replay\""));
  EXPECT_THAT(Shown({"1=tcp://h:1;block_size=x"}), testing::HasSubstr("\"block_size=x\""));
  EXPECT_THAT(Shown({"1=127.0.0.1:5557"}), testing::HasSubstr("worker \"1=127.0.0.1:5557\": "));
  EXPECT_THAT(Shown({"1=tcp://h:1", "2=tcp://h:1", "1=tcp://h:2"}),
              testing::HasSubstr("worker \"1=tcp://h:2\": instance 1 dp_rank 0 is there twice"));
  EXPECT_THAT(std::string(ParseWorkers({"1=tcp://h:1"}, {}).status().message()),
              testing::HasSubstr("--block_size"));
}

TEST(WorkerFlagsTest, AChangedWorkerGoesAndComes) {
  EngineRegistration of_all;
  of_all.block_size = 16;
  const auto before = *ParseWorkers({"1=tcp://h:1", "2=tcp://h:2", "3=tcp://h:3"}, of_all);
  const auto after = *ParseWorkers({"4=tcp://h:4", "3=tcp://h:3;topic=t", "1=tcp://h:1"}, of_all);
  const WorkerChanges changes = ChangesOf(before, after);
  EXPECT_EQ(changes.gone, (std::vector<EngineRegistration>{before[1], before[2]}));
  EXPECT_EQ(changes.come, (std::vector<EngineRegistration>{after[0], after[1]}));
  EXPECT_TRUE(ChangesOf(after, after).come.empty());
}

}  // namespace
}  // namespace kvatlas
