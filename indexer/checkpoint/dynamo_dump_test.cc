#include "indexer/checkpoint/dynamo_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/tier.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;
using testing::Not;

// A visitor that notes as text what a reader told.
class Recorder : public DumpVisitor {
 public:
  absl::Status OnDomain(const Domain& domain, uint32_t block_size) override {
    domains.push_back(ToString(domain) + " " + std::to_string(block_size));
    return absl::OkStatus();
  }
  absl::Status OnBlock(const Domain& domain, const std::string& instance,
                       const EngineAlias& alias) override {
    std::string text = ToString(domain) + " " + instance + "/" + std::to_string(alias.rank) + " " +
                       std::to_string(alias.hash.value);
    if (!alias.hash.bytes.empty()) text += " digest " + std::to_string(alias.hash.bytes.size());
    text += " at " + std::to_string(alias.position) + " block " + std::to_string(Raw(alias.block)) +
            " after " + std::to_string(Raw(alias.parent));
    for (int tier = 0; tier < kTiers; ++tier)
      if (const uint32_t copies = alias.copies[static_cast<size_t>(tier)]; copies > 0)
        text += " tier " + std::to_string(tier) + " x " + std::to_string(copies);
    if (!alias.lora_name.empty()) text += " lora " + std::string(alias.lora_name);
    if (!alias.cache_salt.empty()) text += " salt " + std::string(alias.cache_salt);
    if (alias.eagle) text += " eagle";
    blocks.insert(text);
    EXPECT_TRUE(alias.suspect);
    return absl::OkStatus();
  }
  std::vector<std::string> domains;
  std::multiset<std::string> blocks;
};

// Reads in pieces of any size.
absl::StatusOr<DumpReadStats> Read(std::string_view text, DumpVisitor* visitor, size_t piece = 7,
                                   DumpReadOptions options = {}) {
  return ReadDump(
      options,
      [&](char* to, size_t size) -> absl::StatusOr<size_t> {
        size = std::min({size, piece, text.size()});
        text.copy(to, size);
        text.remove_prefix(size);
        return size;
      },
      visitor);
}

std::string Event(const std::string& worker, const std::string& parent, const std::string& blocks,
                  const std::string& tier = "device") {
  return R"({"worker_id":)" + worker + R"(,"storage_tier":")" + tier +
         R"(","event":{"event_id":0,"data":{"stored":{"parent_hash":)" + parent +
         R"(,"start_position":null,"blocks":[)" + blocks + R"(]}},"dp_rank":0}})";
}
std::string BlockText(uint64_t name, uint64_t local) {
  return R"({"block_hash":)" + std::to_string(name) + R"(,"tokens_hash":)" + std::to_string(local) +
         R"(,"mm_extra_info":null})";
}
std::string DomainText(const std::string& key, const std::string& events) {
  return "\"" + key + R"(":{"block_size":4,"events":[)" + events + "]}";
}

// As the released service answered.
constexpr std::string_view kRecorded =
    R"({"m:default":{"block_size":4,"events":[{"worker_id":1,"storage_tier":"device","residency_domain":"worker",)"
    R"("event":{"event_id":0,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[)"
    R"({"block_hash":1,"tokens_hash":9143094415614847814,"mm_extra_info":null},)"
    R"({"block_hash":2,"tokens_hash":12124091508212882195,"mm_extra_info":null},)"
    R"({"block_hash":3,"tokens_hash":1088361764653601668,"mm_extra_info":null},)"
    R"({"block_hash":4,"tokens_hash":16024980976528976948,"mm_extra_info":null}]}},"dp_rank":0}},)"
    R"({"worker_id":1,"storage_tier":"host_pinned","residency_domain":"worker","event":{"event_id":0,)"
    R"("data":{"stored":{"parent_hash":4,"start_position":null,"blocks":[)"
    R"({"block_hash":5,"tokens_hash":9039991526587408791,"mm_extra_info":null}]}},"dp_rank":0}}]}})";

TEST(DynamoDumpTest, ARecordedDumpIsRead) {
  const std::vector<SequenceHash> chain = SequenceHashes(
      std::vector<LocalHash>{LocalHash{9143094415614847814u}, LocalHash{12124091508212882195u},
                             LocalHash{1088361764653601668u}, LocalHash{16024980976528976948u},
                             LocalHash{9039991526587408791u}});
  for (size_t piece : {size_t{1}, size_t{13}, size_t{1} << 20}) {
    Recorder told;
    const auto stats = Read(kRecorded, &told, piece);
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(stats->blocks, 5u);
    EXPECT_THAT(told.domains, testing::ElementsAre("m 4"));
    std::multiset<std::string> expected;
    for (uint64_t i = 0; i < 5; ++i)
      expected.insert("m 1/0 " + std::to_string(i + 1) + " at " + std::to_string(i) + " block " +
                      std::to_string(Raw(chain[i])) + " after " +
                      std::to_string(i == 0 ? 0 : Raw(chain[i - 1])) +
                      (i == 4 ? " tier 1 x 1" : " tier 0 x 1"));
    EXPECT_EQ(told.blocks, expected);
  }
}

TEST(DynamoDumpTest, EventsComeInAnyOrderAndUnknownKeysHaveNoEffect) {
  Recorder in_order, reversed;
  const std::string a = Event("1", "null", BlockText(1, 11));
  const std::string b = Event("1", "1", BlockText(2, 12) + "," + BlockText(3, 13));
  const std::string c = Event("1", "3", BlockText(4, 14), "disk");
  ASSERT_TRUE(Read("{" + DomainText("m:g", a + "," + b + "," + c) + "}", &in_order).ok());
  const std::string noise = R"("x":[1,{"events":[{"worker_id":9}]},"block_size"],"events":[)" + c +
                            "," + b + "," + a +
                            R"(],"y":{"block_size":99,"events":[7]},"block_size":4)";
  const auto stats = Read(R"({"other":7,"m:g":{)" + noise + "}}", &reversed);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(in_order.blocks, reversed.blocks);
  EXPECT_EQ(in_order.blocks.size(), 4u);
  EXPECT_THAT(reversed.domains, testing::ElementsAre("m|g 4"));
}

TEST(DynamoDumpTest, ErrorsInPlaceOfEventsAndEventsOfOtherFormsCostThemselves) {
  Recorder told;
  const std::string good = Event("1", "null", BlockText(1, 11));
  const std::string events =
      R"({"worker_id":1,"event":{"event_id":0,"data":"cleared","dp_rank":0}},)"
      R"({"worker_id":1,"event":{"data":{"removed":{"block_hashes":[1]}},"dp_rank":0}},)"
      R"({"worker_id":1.5,"event":{"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":1,"tokens_hash":1}]}}}},)" +
      Event("1", "null", BlockText(9, 19), "tape") + "," + Event("1", "77", BlockText(8, 18)) +
      "," +
      R"({"worker_id":1,"residency_domain":"cache_owner","event":{"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":6,"tokens_hash":1}]}}}},)" +
      "null,17,[]," + good;
  const auto stats =
      Read(R"({"a:default":{"error":"busy"},)" + DomainText("m:default", events) + "}", &told);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->failed_domains, 1u);
  EXPECT_EQ(stats->orphaned_blocks, 1u);
  EXPECT_EQ(stats->skipped_events, 5u);
  EXPECT_EQ(told.blocks.size(), 1u);
}

TEST(DynamoDumpTest, AModelMayHaveColons) {
  Recorder told;
  ASSERT_TRUE(Read("{" + DomainText("org:model:default", Event("1", "null", BlockText(1, 11))) +
                       "," + DomainText("nogroup", "") + "}",
                   &told)
                  .ok());
  EXPECT_THAT(told.domains, testing::ElementsAre("org:model 4", "nogroup 4"));
}

TEST(DynamoDumpTest, WhatIsNoDumpIsRefused) {
  for (const char* text : {"", "[]", "7", "{", R"({"m:g":{"block_size":4,"events":[{)", "nonsense",
                           R"({"m:g":{"block_size":4,"events":[]})"}) {
    Recorder told;
    EXPECT_TRUE(absl::IsInvalidArgument(Read(text, &told).status())) << text;
  }
  Recorder told;
  DumpReadOptions few;
  few.blocks_max = 4;
  EXPECT_TRUE(absl::IsResourceExhausted(Read(kRecorded, &told, 100, few).status()));
  few = {};
  few.waiting_bytes_max = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(
      Read("{" + DomainText("m:g", Event("1", "5", BlockText(1, 1))) + "}", &told, 100, few)
          .status()));
  std::string deep = R"({"m:g":)";
  for (int i = 0; i < 10000; ++i) deep += R"({"a":)";
  EXPECT_TRUE(absl::IsInvalidArgument(Read(deep, &told).status()));
}

// Read from a source that is longer than any memory.
TEST(DynamoDumpTest, AnEndlessKeyTextOrNumberIsRefusedEarly) {
  for (const char* head : {R"({")", R"({"m:g":")", R"({"m:g":{"block_size":)", R"({"m:g":)"}) {
    uint64_t sent = 0;
    const char fill = std::string_view(head).back() == ':' ? '1' : 'a';
    const ReadChunk read = [&](char* to, size_t size) -> absl::StatusOr<size_t> {
      if (sent > (64u << 20)) return size_t{0};
      const size_t start = sent == 0 ? std::string_view(head).copy(to, size) : 0;
      std::fill(to + start, to + size, fill);
      sent += size;
      return size;
    };
    Recorder told;
    const absl::Status status = ReadDump({}, read, &told).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << head << ": " << status;
    EXPECT_LE(sent, 4u << 20) << head;
  }
}

TEST(DynamoDumpTest, ADomainsNameHasABound) {
  Recorder told;
  const std::string name(5000, 'm');
  EXPECT_TRUE(absl::IsInvalidArgument(
      Read("{" + DomainText(name + ":g", Event("1", "null", BlockText(1, 11))) + "}", &told)
          .status()));
  EXPECT_TRUE(told.domains.empty());
}

// Events of many workers, each waiting for a parent that never comes.
TEST(DynamoDumpTest, WhatWaitsForItsParentHasABoundInBytes) {
  Recorder told;
  std::string events;
  for (int worker = 0; worker < 1000; ++worker)
    events += (worker == 0 ? "" : ",") + Event(std::to_string(worker), "77", BlockText(1, 1));
  DumpReadOptions options;
  options.waiting_bytes_max = 100'000;
  EXPECT_TRUE(absl::IsResourceExhausted(
      Read("{" + DomainText("m:g", events) + "}", &told, 100, options).status()));
  // Without a block size all of them wait.
  EXPECT_TRUE(absl::IsResourceExhausted(
      Read(R"({"m:g":{"events":[)" + events + "]}}", &told, 100, options).status()));
}

// A randomly damaged dump never ends the process.
TEST(DynamoDumpTest, DamagedDumpsAreReadOrRefused) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string text(kRecorded);
    for (int damage = 1 + static_cast<int>(random() % 4); damage > 0; --damage) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, std::string(kRecorded.substr(random() % kRecorded.size(), 15)));
      }
      if (text.empty()) text = "{}";
    }
    Recorder told;
    (void)Read(text, &told, 1 + random() % 50);
  }
}

// ---- Written and read again ----

class DumpOfDirectoryTest : public testing::Test {
 protected:
  DumpOfDirectoryTest() : ingest_({}) {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    options.index.keep_local_hashes = true;
    registry_ = std::make_unique<HolderRegistry>(options);
    EngineDirectoryOptions directory;
    directory.worker.keep_local_hashes = true;
    directory_ = std::make_unique<EngineDirectory>(directory, registry_.get(), &ingest_);
  }

  EngineWorker* Worker(const std::string& instance, const std::string& model = "m",
                       const std::string& group = "default") {
    EngineRegistration registration;
    registration.instance = instance;
    registration.model = model;
    registration.group = group;
    registration.block_size = 4;
    const auto worker = directory_->Adopt(registration, true);
    EXPECT_TRUE(worker.ok()) << worker.status();
    workers_.push_back(*worker);
    return workers_.back().get();
  }

  // A block with this name behind `parent`, of which it tells what the reader will.
  static EngineAlias Alias(uint64_t name, uint64_t local, const EngineAlias* parent = nullptr,
                           uint32_t rank = 0) {
    EngineAlias alias;
    alias.rank = rank;
    alias.hash.value = name;
    alias.local = LocalHash{local};
    alias.position = parent == nullptr ? 0 : parent->position + 1;
    alias.parent = parent == nullptr ? kNoParent : parent->block;
    alias.block =
        parent == nullptr ? SequenceHash{local} : NextSequenceHash(parent->block, LocalHash{local});
    alias.copies = {1};
    return alias;
  }

  void Put(EngineWorker* worker, const Domain& domain, const std::string& instance,
           EngineAlias alias) {
    const absl::Status status = worker->Restore(alias);
    EXPECT_TRUE(status.ok()) << status;
    alias.suspect = true;
    // The reader gives each tier by itself.
    for (size_t tier = 0; tier < kTiers; ++tier) {
      EngineAlias one = alias;
      one.copies = {};
      one.copies[tier] = alias.copies[tier];
      if (one.copies[tier] > 0) (void)expected_.OnBlock(domain, instance, one);
    }
  }

  std::string Dump() {
    std::string text;
    const TextSource source = DumpSource(directory_.get());
    while (source(&text)) {
    }
    return text;
  }

  ZmqIngest ingest_;
  std::unique_ptr<HolderRegistry> registry_;
  std::unique_ptr<EngineDirectory> directory_;
  std::vector<std::shared_ptr<EngineWorker>> workers_;
  Recorder expected_;
};

TEST_F(DumpOfDirectoryTest, NothingIsAnEmptyObject) { EXPECT_EQ(Dump(), "{}"); }

TEST_F(DumpOfDirectoryTest, WhatIsWrittenIsReadAgain) {
  const Domain m{"m", ""}, odd{"org:model \"x\"", "a:b"};
  EngineWorker* const one = Worker("1");
  const EngineAlias a = Alias(101, 11), b = Alias(102, 12, &a), c = Alias(103, 13, &b);
  const EngineAlias side = Alias(104, 14, &a);
  Put(one, m, "1", a);
  Put(one, m, "1", side);
  EngineAlias tiers = b;
  tiers.copies = {2, 1, 0, 1};
  Put(one, m, "1", tiers);
  Put(one, m, "1", c);
  // Behind a hole; of another rank; with a digest; salted.
  const EngineAlias missing = Alias(105, 15, &c);
  Put(one, m, "1", Alias(106, 16, &missing));
  Put(one, m, "1", Alias(201, 11, nullptr, 3));
  EngineAlias digest = Alias(0x3132333435363738, 21);
  digest.hash.bytes = "abcdefghijklmnopqrstuvwx12345678";
  Put(one, m, "1", digest);
  EngineAlias salted = Alias(107, 31);
  salted.lora_name = "my-lora";
  salted.cache_salt = "tenant \"7\"\n";
  Put(one, m, "1", salted);
  // A lower tier alone, and a device block behind it, which Dynamo could not take.
  EngineAlias host = Alias(108, 41);
  host.copies = {0, 1};
  const EngineAlias behind = Alias(109, 42, &host);
  Put(one, m, "1", host);
  Put(one, m, "1", behind);
  Put(Worker("pod-7"), m, "pod-7", a);
  Put(Worker("2", odd.model, odd.tenant), odd, "2", a);

  const std::string text = Dump();
  Recorder told;
  const auto stats = Read(text, &told, 100);
  ASSERT_TRUE(stats.ok()) << stats.status() << text;
  EXPECT_EQ(told.blocks, expected_.blocks) << text;
  EXPECT_EQ(stats->skipped_events, 0u);
  EXPECT_EQ(stats->orphaned_blocks, 0u);
  EXPECT_THAT(told.domains, testing::UnorderedElementsAre("m 4", ToString(odd) + " 4"));
}

// The part before "kvatlas" is what Dynamo's indexer takes: device chains from the root, parents
// first.
TEST_F(DumpOfDirectoryTest, WhatDynamoCannotTakeIsKeptFromIt) {
  EngineWorker* const one = Worker("1");
  const EngineAlias a = Alias(101, 11), b = Alias(102, 12, &a), c = Alias(103, 13, &b);
  EngineAlias host = Alias(108, 41);
  host.copies = {0, 1};
  for (const EngineAlias& alias : {a, c, host, Alias(109, 42, &host)})
    ASSERT_TRUE(one->Restore(alias).ok());
  ASSERT_TRUE(Worker("pod-7")->Restore(a).ok());
  const std::string text = Dump();
  const size_t ours = text.find("\"kvatlas\"");
  ASSERT_NE(ours, std::string::npos);
  const std::string theirs = text.substr(0, ours);
  EXPECT_THAT(theirs, HasSubstr("\"block_hash\":101"));
  EXPECT_THAT(theirs, Not(HasSubstr("\"block_hash\":103"))) << "behind a hole";
  EXPECT_THAT(theirs, HasSubstr("\"block_hash\":108"));
  EXPECT_THAT(theirs, Not(HasSubstr("\"block_hash\":109"))) << "its parent is in no device";
  EXPECT_THAT(theirs, Not(HasSubstr("pod-7")));
  EXPECT_THAT(text.substr(ours), HasSubstr("\"worker_id\":\"pod-7\""));
  EXPECT_EQ(theirs.find("{\"m:default\":{\"block_size\":4,\"events\":[{\"worker_id\":1,"
                        "\"storage_tier\":\"device\",\"residency_domain\":\"worker\",\"event\":"
                        "{\"event_id\":0,\"data\":{\"stored\":{\"parent_hash\":null,"
                        "\"start_position\":null,\"blocks\":[{\"block_hash\":101,"
                        "\"tokens_hash\":11,\"mm_extra_info\":null}]}},\"dp_rank\":0}}"),
            0u)
      << theirs;
}

// The format has no word for side blocks: a reader of the dump knows the main class alone,
// unconfirmed.
TEST_F(DumpOfDirectoryTest, SideBlocksAreLeftOut) {
  EngineWorker* const one = Worker("1");
  EngineRankMark mark;
  mark.required[0] = {0};
  const CacheClass window = {.kind = CacheKind::kWindow, .block_size = 4, .window_tokens = 8};
  mark.sides = {{1, window}};
  ASSERT_TRUE(one->RestoreRank(mark).ok());
  const EngineAlias a = Alias(101, 11), b = Alias(102, 12, &a);
  ASSERT_TRUE(one->Restore(a).ok());
  ASSERT_TRUE(one->Restore(b).ok());
  const std::string without = Dump();
  EngineAlias side;
  side.group = 1;
  side.side = true;
  side.hash.value = 102;
  side.block = SideName(SideTag(window), b.block);
  side.position = 1;
  side.copies = {1};
  ASSERT_TRUE(one->Restore(side).ok());
  side.hash.value = 999;  // without a main block
  side.block = SequenceHash{0};
  side.position = 0;
  ASSERT_TRUE(one->Restore(side).ok());
  ASSERT_EQ(one->Stats().ranks[0].side_names, 2u);
  EXPECT_EQ(Dump(), without);
  Recorder told;
  ASSERT_TRUE(Read(without, &told).ok());
  EXPECT_EQ(told.blocks.size(), 2u);
}

TEST_F(DumpOfDirectoryTest, RandomTreesOfNamesAreReadAgain) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const std::string instance = std::to_string(seed);
    EngineWorker* const worker = Worker(instance);
    std::vector<EngineAlias> made;
    for (uint64_t i = 0; i < 200; ++i) {
      const EngineAlias* const parent =
          made.empty() || random() % 6 == 0 ? nullptr : &made[random() % made.size()];
      EngineAlias alias = Alias(i + 1, random() | 1, parent);
      alias.copies = {random() % 3 != 0, random() % 2 == 0, random() % 5 == 0, 0};
      made.push_back(alias);
      // A block that is not put is a hole.
      if (alias.copies != std::array<uint32_t, kTiers>{} && random() % 5 != 0)
        Put(worker, {"m", ""}, instance, alias);
    }
  }
  Recorder told;
  const auto stats = Read(Dump(), &told, 4000);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(told.blocks, expected_.blocks);
}

}  // namespace
}  // namespace kvatlas
