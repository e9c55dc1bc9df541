#include "indexer/checkpoint/replica_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/engine_restore.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/registry/holder_registry.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

// A visitor that notes as text what a reader told.
class Recorder : public SnapshotVisitor {
 public:
  absl::Status OnInstance(const EngineEntry& entry) override {
    std::string text = ToString(entry.domain) + " " + entry.instance + " " +
                       std::to_string(entry.block_size) + " " + entry.engine_type + " " +
                       entry.lora_name + (entry.counts_copies ? "" : " once");
    if (entry.image_token) text += " image " + std::to_string(*entry.image_token);
    if (!entry.url.empty()) text += " url " + entry.url;
    if (!entry.eagle_drop.empty()) text += " drops " + entry.eagle_drop;
    if (entry.chunk_tokens != 0) text += " chunk " + std::to_string(entry.chunk_tokens);
    if (entry.window_tokens != 0) text += " window " + std::to_string(entry.window_tokens);
    if (entry.hybrid) text += " hybrid";
    if (entry.offload_chunk_tokens != 0)
      text += " offload " + std::to_string(entry.offload_chunk_tokens);
    if (!entry.silent_tiers.empty()) text += " silent " + entry.silent_tiers;
    if (!entry.store.empty()) text += " store " + entry.store + " " + entry.store_tiers;
    if (entry.silent_blocks + entry.silent_seconds != 0)
      text += " keeps " + std::to_string(entry.silent_blocks) + " for " +
              std::to_string(entry.silent_seconds);
    if (entry.first_rank != 0) text += " from " + std::to_string(entry.first_rank);
    for (const EngineListener& listener : entry.listeners)
      text += " [" + std::to_string(listener.rank) + " " + listener.endpoint + " " +
              listener.replay_endpoint + " " + listener.topic +
              (listener.server_key.empty() ? "" : " key " + listener.server_key) +
              (listener.url.empty() || listener.url == entry.url ? "" : " url " + listener.url) +
              (listener.told_from_flags.value_or(false) ? " of flags" : "") + "]";
    told = told && std::all_of(entry.listeners.begin(), entry.listeners.end(), [](const auto& one) {
             return one.told_from_flags.has_value() && !one.from_flags;
           });
    instances.push_back(text);
    return absl::OkStatus();
  }
  absl::Status OnName(const EngineEntry& entry, const EngineAlias& alias) override {
    names.insert(NameText(entry.instance, alias));
    return absl::OkStatus();
  }
  absl::Status OnPosition(const EngineEntry& entry, uint32_t rank,
                          const std::optional<StreamPosition>& position) override {
    positions.push_back(entry.instance + "/" + std::to_string(rank) + " " +
                        (position.has_value() ? std::to_string(position->last) : "none"));
    return absl::OkStatus();
  }
  absl::Status OnRank(const EngineEntry& entry, const EngineRankMark& mark) override {
    ranks.push_back(entry.instance + "/" + std::to_string(mark.rank) + " of " +
                    std::to_string(mark.stream_rank.value_or(99)) +
                    (mark.extras_seen ? " extras" : "") + (mark.zero_named ? " zero" : "") +
                    (mark.given_up ? " given up" : "") + " " +
                    std::to_string(mark.required[0].size()) + " groups" + SidesText(mark));
    return absl::OkStatus();
  }
  static std::string SidesText(const EngineRankMark& mark) {
    std::string text;
    for (const auto& [group, side] : mark.sides)
      text += ", side " + std::to_string(group) + " kind " +
              std::to_string(static_cast<int>(side.kind)) + " of " +
              std::to_string(side.block_size) + " window " + std::to_string(side.window_tokens);
    if (!mark.side_links.empty()) text += ", links " + std::to_string(mark.side_links.size());
    if (!mark.shared_sides.empty()) text += ", shared " + std::to_string(mark.shared_sides.size());
    return text + (mark.has_main ? "" : ", no main") + (mark.side_unknown ? ", unknown" : "");
  }
  static std::string NameText(const std::string& instance, const EngineAlias& alias) {
    std::string text = instance + "/" + std::to_string(alias.rank) + " " +
                       std::to_string(alias.hash.value) + " " + std::string(alias.hash.bytes) +
                       " " + std::to_string(Raw(alias.block)) + " " +
                       std::to_string(Raw(alias.parent)) + " " + std::to_string(alias.position) +
                       " " + std::to_string(Raw(alias.local)) + " " + std::to_string(alias.group);
    for (uint32_t copies : alias.copies) text += " " + std::to_string(copies);
    return text + " " + std::string(alias.lora_name) + " " + std::string(alias.cache_salt) +
           (alias.suspect ? " suspect" : "") + (alias.eagle ? " eagle" : "") +
           (alias.side ? " side" : "");
  }
  bool told = true;  // every instance said whether flags named it
  std::vector<std::string> instances, positions, ranks;
  std::multiset<std::string> names;
};

HolderRegistryOptions RegistryOptions() {
  HolderRegistryOptions options;
  options.contract_id = HashContract().Id();
  options.index.keep_local_hashes = true;
  return options;
}

EngineDirectoryOptions DirectoryOptions() {
  EngineDirectoryOptions options;
  options.worker.keep_local_hashes = true;
  return options;
}

class ReplicaSnapshotTest : public testing::Test {
 protected:
  struct Replica {
    explicit Replica(ZmqIngest* ingest) : directory(DirectoryOptions(), &registry, ingest) {}
    HolderRegistry registry{RegistryOptions()};
    EngineDirectory directory;
  };

  ReplicaSnapshotTest()
      : ingest_({}),
        engine_({.seed = 31, .replay = true}),
        digests_({.seed = 32, .rank = 2, .digests = true}) {
    registry_ = std::make_unique<HolderRegistry>(RegistryOptions());
    directory_ = std::make_unique<EngineDirectory>(DirectoryOptions(), registry_.get(), &ingest_);
    directory_->Open();
    EngineRegistration one = engine_.Registration("1");
    one.engine_type = "vLLM";
    one.counts_copies = false;
    one.image_token = 151655;
    one.url = "http://h:30000";
    EXPECT_TRUE(directory_->Register(one).ok());
    EXPECT_TRUE(directory_->Register(digests_.Registration("1")).ok());
    engine_.sockets().WaitForSubscribers();
    digests_.sockets().WaitForSubscribers();
    engine_.Run(50);
    digests_.Run(30);
    for (const PoolEngine* engine : {&engine_, &digests_})
      EXPECT_TRUE(Eventually([&] { return engine->Compare(*registry_, "1").empty(); }));
  }

  std::string Snapshot(bool names = true) {
    std::string text;
    const TextSource source = ReplicaSnapshotSource({}, directory_.get(), names);
    while (source(&text)) {
    }
    return text;
  }

  static absl::StatusOr<SnapshotStats> Read(std::string_view text, SnapshotVisitor* visitor,
                                            const HashContract& contract = {}) {
    return ReadReplicaSnapshot(
        contract,
        [&](char* to, size_t size) -> absl::StatusOr<size_t> {
          size = std::min({size, size_t{1000}, text.size()});
          text.copy(to, size);
          text.remove_prefix(size);
          return size;
        },
        visitor);
  }

  // As from a replica: a checkpoint's positions would make the engines, which are there, replay.
  void Restore(Replica* replica) {
    EngineRestorer restorer(&replica->directory, EngineRestorer::Source::kReplica);
    ASSERT_TRUE(Read(Snapshot(), &restorer).ok());
    restorer.Finish();
    EXPECT_EQ(restorer.refused(), 0u);
  }

  ZmqIngest ingest_;
  std::unique_ptr<HolderRegistry> registry_;
  PoolEngine engine_, digests_;
  std::unique_ptr<EngineDirectory> directory_;
};

TEST_F(ReplicaSnapshotTest, RegistrationsNamesAndPositionsAreReadAsTheyWere) {
  std::multiset<std::string> expected;
  directory_->ForEachAlias({"m", ""}, [&](const std::string& instance, const EngineAlias& alias) {
    expected.insert(Recorder::NameText(instance, alias));
  });
  ASSERT_GT(expected.size(), 20u);
  Recorder told;
  const auto stats = Read(Snapshot(), &told);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(told.names, expected);
  EXPECT_EQ(stats->names, expected.size());
  EXPECT_THAT(told.instances,
              testing::ElementsAre("m 1 4 vLLM  once image 151655 url http://h:30000 [0 " +
                                   engine_.sockets().endpoint() + " " +
                                   engine_.sockets().replay_endpoint() + " ] [2 " +
                                   digests_.sockets().endpoint() + "  ]"));
  EXPECT_THAT(told.positions, testing::ElementsAre("1/0 49", "1/2 29"));
  EXPECT_THAT(told.ranks, testing::ElementsAre("1/0 of 0 1 groups", "1/2 of 2 1 groups"));
  Recorder without;
  ASSERT_TRUE(Read(Snapshot(/*names=*/false), &without).ok());
  EXPECT_EQ(without.instances, told.instances);
  EXPECT_TRUE(without.names.empty());
  EXPECT_TRUE(without.positions.empty());
}

// ---- Hybrid models ----

// A snapshot of a directory that restored it is equal too.
TEST_F(ReplicaSnapshotTest, SideNamesRanksAndWhatRegistrationsSayComeBackEqual) {
  const CurveKeys keys = *MakeCurveKeys();
  ZmqTestEngine hybrid({.curve_secret = keys.secret_key});
  EngineRegistration registration;
  registration.instance = "2";
  registration.model = "m";
  registration.block_size = 4;
  registration.endpoint = hybrid.endpoint();
  registration.eagle_drop = "1,2";
  registration.chunk_tokens = 8192;
  registration.window_tokens = 128;
  registration.hybrid = true;
  registration.offload_chunk_tokens = 64;
  registration.silent_tiers = "host,disk";
  registration.rank = 3;
  registration.first_rank = 2;
  registration.store = "files";
  registration.store_tiers = "external";
  registration.silent_blocks = 1000;
  registration.silent_seconds = 60;
  registration.server_key = keys.public_key;
  registration.from_flags = true;
  ASSERT_TRUE(directory_->Register(registration).ok());
  EngineRegistration second = registration;
  second.rank = 4;
  second.endpoint = "tcp://127.0.0.1:9";
  second.server_key = "";
  second.from_flags = false;
  second.url = "http://h:8001";
  ASSERT_TRUE(directory_->Register(second).ok());
  hybrid.WaitForSubscribers();
  hybrid.Publish(HybridPromptPayload());
  const auto names_of = [](const EngineDirectory& directory) {
    std::multiset<std::string> names;
    directory.ForEachAlias({"m", ""}, [&](const std::string& instance, const EngineAlias& alias) {
      names.insert(Recorder::NameText(instance, alias));
    });
    return names;
  };
  const auto side_names = [&] {
    const std::multiset<std::string> names = names_of(*directory_);
    return std::count_if(names.begin(), names.end(),
                         [](const std::string& name) { return name.ends_with(" side"); });
  };
  // Two of them wait for their main blocks.
  ASSERT_TRUE(Eventually([&] { return side_names() == 6; }));
  Recorder told;
  ASSERT_TRUE(Read(Snapshot(), &told).ok());
  EXPECT_EQ(told.names, names_of(*directory_));
  EXPECT_THAT(told.ranks,
              testing::Contains("2/0 of 3 1 groups, side 1 kind 1 of 4 window 8, side 2 kind 2 of "
                                "4 window 0"));
  EXPECT_THAT(told.instances,
              testing::Contains("m 2 4   drops 1,2 chunk 8192 window 128 hybrid offload 64 silent "
                                "host,disk store files external keeps 1000 for 60 from 2 [3 " +
                                hybrid.endpoint() + "   key " + keys.public_key +
                                " of flags] [4 tcp://127.0.0.1:9   url http://h:8001]"));
  EXPECT_TRUE(told.told) << "where it came from, and nothing is trusted for it";

  Replica replica(&ingest_);
  ASSERT_NO_FATAL_FAILURE(Restore(&replica));
  EXPECT_EQ(names_of(replica.directory), names_of(*directory_));
  const absl::StatusOr<HolderDump> before = registry_->Dump({"m", ""}, {"2", 0, ""});
  const absl::StatusOr<HolderDump> after = replica.registry.Dump({"m", ""}, {"2", 0, ""});
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(after->layout, before->layout);
  EXPECT_EQ(after->layout.sides.size(), 2u);
  const auto held = [](const HolderDump& dump) {
    std::set<std::pair<bool, uint64_t>> blocks;
    for (const Stored& run : dump.runs)
      for (const SequenceHash block : run.blocks) blocks.emplace(run.side != 0, Raw(block));
    return blocks;
  };
  EXPECT_EQ(held(*after), held(*before));
  EXPECT_EQ(held(*after).size(), 10u);
}

// A window of blocks of 2 tokens: one inside the main blocks of two chains, one whose main block is
// not there yet.
TEST_F(ReplicaSnapshotTest, NamesInsideMainBlocksComeToTheReplica) {
  ZmqTestEngine hybrid({});
  EngineRegistration registration;
  registration.instance = "3";
  registration.model = "m";
  registration.block_size = 4;
  registration.endpoint = hybrid.endpoint();
  ASSERT_TRUE(directory_->Register(registration).ok());
  hybrid.WaitForSubscribers();
  const auto window = [](std::vector<uint64_t> names, std::vector<TokenId> tokens) {
    return HybridEvent{.group = 1,
                       .kind = "sliding_window",
                       .window = 3,
                       .names = std::move(names),
                       .tokens = std::move(tokens),
                       .block_size = 2};
  };
  hybrid.Publish(HybridPayload({{.names = {2}, .tokens = {1, 2, 3, 4}},
                                {.names = {5}, .tokens = {1, 2, 3, 5}},
                                window({11, 2, 13, 4}, {1, 2, 3, 4, 5, 6, 7, 8}),
                                window({11, 5}, {1, 2, 3, 5})}));
  const auto sides_of = [](const HolderRegistry& registry) {
    std::set<uint64_t> sides;
    const absl::StatusOr<HolderDump> dump = registry.Dump({"m", ""}, {"3", 0, ""});
    if (!dump.ok()) return sides;
    for (const Stored& run : dump->runs)
      for (const SequenceHash block : run.blocks)
        if (run.side != 0) sides.insert(Raw(block));
    return sides;
  };
  ASSERT_TRUE(Eventually([&] { return sides_of(*registry_).size() == 4; }));
  Recorder told;
  ASSERT_TRUE(Read(Snapshot(), &told).ok());
  EXPECT_THAT(told.ranks, testing::Contains("3/0 of 0 1 groups, side 1 kind 1 of 2 window 2, "
                                            "links 2, shared 1"));
  Replica replica(&ingest_);
  ASSERT_NO_FATAL_FAILURE(Restore(&replica));
  EXPECT_EQ(sides_of(replica.registry), sides_of(*registry_));
}

// In this order a reader can make runs of them.
TEST_F(ReplicaSnapshotTest, BlocksFollowTheirParents) {
  class Order : public Recorder {
   public:
    absl::Status OnName(const EngineEntry&, const EngineAlias& alias) override {
      if (alias.position > 0 && held.contains({alias.rank, alias.parent})) {
        EXPECT_TRUE(told.contains({alias.rank, alias.parent}));
      }
      told.insert({alias.rank, alias.block});
      return absl::OkStatus();
    }
    std::set<std::pair<uint32_t, SequenceHash>> held, told;
  };
  Order order;
  directory_->ForEachAlias({"m", ""}, [&](const std::string&, const EngineAlias& alias) {
    order.held.insert({alias.rank, alias.block});
  });
  ASSERT_TRUE(Read(Snapshot(), &order).ok());
  EXPECT_EQ(order.told, order.held);
}

TEST_F(ReplicaSnapshotTest, AnotherContractOrVersionIsRefused) {
  Recorder told;
  std::string text = Snapshot();
  HashContract other;
  other.seed = 42;
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(text, &told, other).status()));
  text[7] = '9';
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(text, &told).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Read("{\"error\":\"no\"}", &told).status()));
  EXPECT_TRUE(absl::IsDataLoss(Read("", &told).status()));
}

TEST_F(ReplicaSnapshotTest, EveryCutAndEveryFlippedBitIsNoticed) {
  const std::string text = Snapshot();
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    Recorder told;
    EXPECT_TRUE(absl::IsDataLoss(Read(text.substr(0, random() % text.size()), &told).status()));
    std::string flipped = text;
    const size_t at = 8 + random() % (text.size() - 8);
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
    EXPECT_TRUE(absl::IsDataLoss(Read(flipped, &told).status())) << "byte " << at;
  }
}

// ---- Peers that write what they should not ----

// The records of a snapshot, each with a checksum that is right.
struct Record {
  char kind;
  std::string payload;
};

std::vector<Record> RecordsOf(std::string_view text) {
  std::vector<Record> records;
  text.remove_prefix(8);
  while (!text.empty()) {
    uint32_t size = 0;
    std::memcpy(&size, text.data() + 1, sizeof size);
    records.push_back({text[0], std::string(text.substr(5, size))});
    text.remove_prefix(5 + size + 8);
  }
  return records;
}

std::string TextOf(const std::vector<Record>& records) {
  std::string text = "KVAREP07";
  for (const Record& record : records) {
    const size_t start = text.size();
    const auto size = static_cast<uint32_t>(record.payload.size());
    text += record.kind;
    text.append(reinterpret_cast<const char*>(&size), sizeof size);
    text += record.payload;
    const uint64_t sum = Xxh3(std::string_view(text).substr(start), 0);
    text.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  }
  return text;
}

constexpr char kInstanceRecord = 2, kNamesRecord = 3, kPositionRecord = 4, kRankRecord = 6;

TEST_F(ReplicaSnapshotTest, AWriterThatDoesNotSayWhatCameFromFlagsIsRead) {
  std::vector<Record> records = RecordsOf(Snapshot());
  for (Record& record : records)
    if (record.kind == kInstanceRecord) record.payload.resize(record.payload.find("from_flags:"));
  Recorder now, before;
  ASSERT_TRUE(Read(Snapshot(), &now).ok());
  ASSERT_TRUE(Read(TextOf(records), &before).ok());
  EXPECT_EQ(before.instances, now.instances);
  EXPECT_EQ(before.names, now.names);
  EXPECT_TRUE(now.told);
  EXPECT_FALSE(before.told);
}

TEST_F(ReplicaSnapshotTest, WhatNobodyCanHaveIsRefusedWithAReason) {
  const std::vector<Record> records = RecordsOf(Snapshot());
  const auto refused = [&](const std::function<void(std::vector<Record>*)>& change) {
    std::vector<Record> changed = records;
    change(&changed);
    Recorder told;
    return std::string(Read(TextOf(changed), &told).status().message());
  };
  const auto first = [](std::vector<Record>* of, char kind) -> std::string& {
    return std::find_if(of->begin(), of->end(),
                        [&](const Record& record) { return record.kind == kind; })
        ->payload;
  };
  const auto number = [](uint64_t value, size_t bytes) {
    return std::string(reinterpret_cast<const char*>(&value), bytes);
  };
  ASSERT_EQ(refused([](auto*) {}), "");
  EXPECT_EQ(refused([&](auto* of) {
              std::erase_if(*of,
                            [](const Record& record) { return record.kind == kPositionRecord; });
            }),
            "a replica's snapshot is broken: a rank of no stream");
  EXPECT_EQ(refused([&](auto* of) {
              std::erase_if(*of, [](const Record& record) {
                return record.kind == kPositionRecord || record.kind == kRankRecord;
              });
            }),
            "a replica's snapshot is broken: names of no stream");
  EXPECT_EQ(refused([&](auto* of) { first(of, kPositionRecord).replace(0, 4, number(7, 4)); }),
            "a replica's snapshot is broken: a position of no stream");
  constexpr std::string_view kNoInstance =
      "a replica's snapshot is broken: an instance that cannot have been registered";
  EXPECT_EQ(refused([&](auto* of) {
              first(of, kInstanceRecord).replace(0, 5, number(5000, 4) + std::string(5000, 'x'));
            }),
            kNoInstance);
  EXPECT_EQ(refused([&](auto* of) { first(of, kInstanceRecord).resize(20); }), kNoInstance);
  constexpr std::string_view kNoName =
      "a replica's snapshot is broken: a name that no block can have";
  // Its position: behind flags, rank, name, block and parent.
  EXPECT_EQ(
      refused([&](auto* of) { first(of, kNamesRecord).replace(29, 4, number(0xffffffff, 4)); }),
      kNoName);
  EXPECT_EQ(refused([&](auto* of) { first(of, kNamesRecord).pop_back(); }), kNoName);
}

// Reading ends whatever the records say, and what it restored is consistent.
TEST_F(ReplicaSnapshotTest, RecordsOfAnyShapeHarmNothing) {
  const std::vector<Record> records = RecordsOf(Snapshot());
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<Record> changed = records;
    for (uint32_t changes = 1 + random() % 8; changes > 0; --changes) {
      Record& record = changed[random() % changed.size()];
      const size_t at = record.payload.empty() ? 0 : random() % record.payload.size();
      switch (random() % 8) {
        case 0:
          record.kind = static_cast<char>(random() % 8);
          break;
        case 1:
          record.payload.resize(at);
          break;
        case 2:
          record.payload.insert(at, random() % 300, static_cast<char>(random()));
          break;
        case 3:
          changed.insert(changed.begin() + static_cast<ptrdiff_t>(random() % changed.size()),
                         Record(record));
          break;
        default:
          if (!record.payload.empty())
            record.payload[at] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
      }
    }
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    HolderRegistry registry(options);
    EngineDirectory directory({}, &registry, &ingest_);
    EngineRestorer restorer(&directory, EngineRestorer::Source::kReplica);
    const auto read = Read(TextOf(changed), &restorer);
    EXPECT_TRUE(read.ok() || absl::IsDataLoss(read.status()) ||
                absl::IsFailedPrecondition(read.status()))
        << read.status();
    restorer.Finish();
    size_t names = 0;
    for (const Domain& domain : directory.Domains())
      directory.ForEachAlias(domain, [&](const std::string&, const EngineAlias&) { ++names; });
    EXPECT_LE(names, restorer.restored());
  }
}

}  // namespace
}  // namespace kvatlas
