// The C interface against a receiver over gRPC: every call, every refusal, older callers, forks.

#include "publisher/kvatlas_publisher.h"
#include "indexer/base/await.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/stream/receiver.h"
#include "publisher/fake_leaf.h"
#include "publisher/side_events.h"
#include "publisher/zmq_events.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

constexpr uint32_t kBlockSize = 4;
constexpr uint64_t kLongMs = 60000;

class Closer {
 public:
  void operator()(kvatlas_publisher* publisher) const { kvatlas_publisher_destroy(publisher); }
};
using Handle = std::unique_ptr<kvatlas_publisher, Closer>;

kvatlas_publisher_options DefaultOptions() {
  kvatlas_publisher_options options;
  kvatlas_publisher_options_init(&options, sizeof(options));
  options.worker = "w";
  options.model = "m";
  options.block_size = kBlockSize;
  return options;
}

Handle Create(const kvatlas_publisher_options& options) {
  kvatlas_publisher* publisher = nullptr;
  char error[256];
  EXPECT_EQ(kvatlas_publisher_create(&options, &publisher, error, sizeof(error)), KVATLAS_OK)
      << error;
  return Handle(publisher);
}

std::vector<TokenId> Tokens(size_t blocks, TokenId first = 0) {
  std::vector<TokenId> tokens(blocks * kBlockSize);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// The chain of a prompt's blocks in a tier.
Holdings ChainOf(const std::vector<TokenId>& tokens, Tier tier = Tier::kDevice,
                 const CacheNamespace& within = {}) {
  Holdings holdings;
  for (const SequenceHash block :
       SequenceHashes(LocalHashes(tokens, {.block_size = kBlockSize}, BlockSeed(within)))) {
    holdings.insert({static_cast<int>(tier), Raw(block)});
  }
  return holdings;
}

class KvatlasPublisherTest : public testing::Test {
 protected:
  KvatlasPublisherTest() : server_(&leaf_), target_(server_.target()), leaves_{target_.c_str()} {
    EXPECT_TRUE(server_.status().ok()) << server_.status();
    options_ = DefaultOptions();
    options_.leaves = leaves_;
    options_.leaves_count = 1;
  }

  // The leaf's blocks once every call has arrived.
  Holdings Known() {
    EXPECT_EQ(kvatlas_publisher_wait_acknowledged(publisher_.get(), kLongMs), KVATLAS_OK);
    return leaf_.holdings();
  }
  int32_t Stored(const std::vector<uint64_t>& names, const std::vector<TokenId>& tokens,
                 const uint64_t* parent = nullptr) {
    return kvatlas_publisher_stored(publisher_.get(), KVATLAS_TIER_DEVICE, names.data(),
                                    names.size(), parent, tokens.data(), tokens.size(), nullptr);
  }
  kvatlas_publisher_stats Stats() {
    kvatlas_publisher_stats stats = {};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(kvatlas_publisher_get_stats(publisher_.get(), &stats), KVATLAS_OK);
    return stats;
  }

  FakeLeaf leaf_;
  TestServer server_;
  const std::string target_;
  const char* leaves_[1];
  kvatlas_publisher_options options_;
  Handle publisher_;
};

TEST_F(KvatlasPublisherTest, StoresAndRemovalsByNumber) {
  publisher_ = Create(options_);
  const std::vector<TokenId> tokens = Tokens(3);
  const uint64_t parent = 2;
  EXPECT_EQ(Stored({1, 2}, {tokens.begin(), tokens.begin() + 8}), KVATLAS_OK);
  EXPECT_EQ(Stored({3}, {tokens.begin() + 8, tokens.end()}, &parent), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(tokens));
  const uint64_t last = 3;
  EXPECT_EQ(kvatlas_publisher_removed(publisher_.get(), KVATLAS_TIER_DEVICE, &last, 1), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(2)));
  EXPECT_EQ(Stats().blocks_held, 2u);
}

TEST_F(KvatlasPublisherTest, NamesOfBytesAreToldApartByAllOfThem) {
  publisher_ = Create(options_);
  const std::vector<TokenId> tokens = Tokens(3);
  std::string names(3 * 32, 'a');
  names[0] = 'x';
  names[32 + 31] = 'y';
  names[64 + 16] = 'z';
  kvatlas_publisher* const to = publisher_.get();
  EXPECT_EQ(kvatlas_publisher_stored_bytes(to, 0, names.data(), 32, 2, nullptr, tokens.data(), 8,
                                           nullptr),
            KVATLAS_OK);
  EXPECT_EQ(kvatlas_publisher_stored_bytes(to, 0, names.data() + 64, 32, 1, names.data() + 32,
                                           tokens.data() + 8, 4, nullptr),
            KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(tokens));
  EXPECT_EQ(kvatlas_publisher_removed_bytes(to, 0, names.data() + 32, 32, 2), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(1)));
  EXPECT_EQ(kvatlas_publisher_removed_bytes(to, 0, names.data(), 0, 1), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_removed_bytes(to, 0, names.data(), 257, 1), KVATLAS_INVALID_ARGUMENT);
}

TEST_F(KvatlasPublisherTest, NamespacesTiersAndClears) {
  options_.within.lora_name = "sql";
  publisher_ = Create(options_);
  const std::vector<TokenId> tokens = Tokens(1);
  const uint64_t names[] = {1, 2};
  const kvatlas_namespace none = {nullptr, nullptr}, salted = {nullptr, "s"};
  kvatlas_publisher* const to = publisher_.get();
  EXPECT_EQ(kvatlas_publisher_stored(to, 0, names, 1, nullptr, tokens.data(), 4, nullptr),
            KVATLAS_OK);
  EXPECT_EQ(kvatlas_publisher_stored(to, 0, names + 1, 1, nullptr, tokens.data(), 4, &salted),
            KVATLAS_OK);
  EXPECT_EQ(kvatlas_publisher_stored(to, KVATLAS_TIER_DISK, names, 1, nullptr, nullptr, 0, &none),
            KVATLAS_OK);
  Holdings expected = ChainOf(tokens, Tier::kDevice, {.lora_name = "sql", .cache_salt = ""});
  expected.merge(ChainOf(tokens, Tier::kDisk, {.lora_name = "sql", .cache_salt = ""}));
  const Holdings disk = ChainOf(tokens, Tier::kDisk, {.lora_name = "sql", .cache_salt = ""});
  expected.merge(ChainOf(tokens, Tier::kDevice, {.lora_name = "", .cache_salt = "s"}));
  EXPECT_EQ(Known(), expected);
  EXPECT_EQ(kvatlas_publisher_cleared(to, 1u << KVATLAS_TIER_DEVICE), KVATLAS_OK);
  EXPECT_EQ(Known(), disk);
  EXPECT_EQ(kvatlas_publisher_cleared(to, KVATLAS_TIERS_ALL), KVATLAS_OK);
  EXPECT_EQ(Known(), Holdings());
  EXPECT_EQ(kvatlas_publisher_cleared(to, 0), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_cleared(to, 16), KVATLAS_INVALID_ARGUMENT);
}

TEST_F(KvatlasPublisherTest, HashedBlocksAndLoads) {
  publisher_ = Create(options_);
  kvatlas_publisher* const to = publisher_.get();
  const uint64_t blocks[] = {11, 12};
  EXPECT_EQ(kvatlas_publisher_stored_hashed(to, 0, 0, 0, blocks, 2), KVATLAS_OK);
  EXPECT_EQ(kvatlas_publisher_stored_hashed(to, 0, 1, 0, blocks, 1), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(Known(), (Holdings{{0, 11}, {0, 12}}));
  EXPECT_EQ(kvatlas_publisher_removed_hashed(to, 0, blocks, 1), KVATLAS_OK);
  kvatlas_load load = {};
  load.struct_size = sizeof(load);
  load.waiting_requests = 7;
  load.tokens_per_s = 2.5;
  EXPECT_EQ(kvatlas_publisher_set_load(to, &load), KVATLAS_OK);
  EXPECT_EQ(Known(), (Holdings{{0, 12}}));
  EXPECT_EQ(leaf_.load().waiting_requests, 7u);
  EXPECT_EQ(leaf_.load().tokens_per_s, 2.5);
}

TEST_F(KvatlasPublisherTest, AnEnginesOwnBatches) {
  publisher_ = Create(options_);
  kvatlas_publisher* const to = publisher_.get();
  const std::vector<TokenId> tokens = Tokens(2);
  const std::vector<uint64_t> names = {1, 2}, second = {2};
  // Another rank than the publisher's own: a publisher is one rank.
  ZmqEventEncoder encoder(ZmqEventForm::kMap, kBlockSize, /*rank=*/5);
  encoder.Stored({.hashes = names, .tokens = tokens});
  encoder.Stored({.hashes = names, .tokens = tokens});
  std::string batch = encoder.Finish(1);
  EXPECT_EQ(kvatlas_publisher_publish(to, batch.data(), batch.size()), KVATLAS_OK);
  encoder.Removed(Tier::kDevice, second);
  batch = encoder.Finish(2);
  EXPECT_EQ(kvatlas_publisher_publish(to, batch.data(), batch.size()), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(tokens)) << "there was a copy";
  EXPECT_EQ(kvatlas_publisher_publish(to, batch.data(), batch.size()), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(1)));
  EXPECT_EQ(Stored({9}, Tokens(1)), KVATLAS_INVALID_ARGUMENT) << "it speaks in batches";
  EXPECT_EQ(kvatlas_publisher_cleared(to, 1), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_cleared(to, KVATLAS_TIERS_ALL), KVATLAS_OK);
  EXPECT_EQ(Known(), Holdings());
  EXPECT_EQ(kvatlas_publisher_publish(to, "\xc1", 1), KVATLAS_OK);
  encoder.Stored({.hashes = names, .tokens = tokens});
  batch = encoder.Finish(3);
  EXPECT_EQ(kvatlas_publisher_publish(to, batch.data(), batch.size()), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(tokens)) << "known anew after the clear";
  const kvatlas_publisher_stats stats = Stats();
  EXPECT_EQ(stats.engine_batches, 4u);
  EXPECT_EQ(stats.engine_unreadable, 1u);
  EXPECT_EQ(stats.invalid_calls, 2u);
}

TEST_F(KvatlasPublisherTest, AQueueWithoutRoomLosesNothing) {
  options_.queue_bytes_max = 0;
  publisher_ = Create(options_);
  ZmqEventEncoder encoder(ZmqEventForm::kMap, kBlockSize, 0);
  Holdings expected;
  for (uint64_t name = 1; name <= 100; ++name) {
    const std::vector<uint64_t> names = {name};
    const std::vector<TokenId> tokens = Tokens(1, static_cast<TokenId>(name * 1000));
    encoder.Stored({.hashes = names, .tokens = tokens});
    const std::string batch = encoder.Finish(1);
    EXPECT_EQ(kvatlas_publisher_publish(publisher_.get(), batch.data(), batch.size()), KVATLAS_OK);
    expected.merge(ChainOf(tokens));
  }
  EXPECT_EQ(Known(), expected);
  EXPECT_EQ(Stats().inline_records, 100u);
}

TEST_F(KvatlasPublisherTest, WhatIsWrongIsRefusedAndChangesNothing) {
  publisher_ = Create(options_);
  kvatlas_publisher* const to = publisher_.get();
  const uint64_t name = 1;
  const std::vector<TokenId> tokens = Tokens(1);
  EXPECT_EQ(kvatlas_publisher_stored(to, 4, &name, 1, nullptr, tokens.data(), 4, nullptr),
            KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_stored(to, -1, &name, 1, nullptr, tokens.data(), 4, nullptr),
            KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_stored(to, 0, &name, 1, nullptr, tokens.data(), 3, nullptr),
            KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_stored(to, 0, nullptr, 1, nullptr, tokens.data(), 4, nullptr),
            KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_stored(to, 0, &name, 1, nullptr, nullptr, 4, nullptr),
            KVATLAS_INVALID_ARGUMENT);
  char why[128];
  EXPECT_EQ(kvatlas_publisher_last_error(to, why, sizeof(why)), KVATLAS_INVALID_ARGUMENT);
  EXPECT_STREQ(why, "tokens is NULL, and its count is 4");
  EXPECT_EQ(kvatlas_publisher_stored(to, 0, &name, 1, nullptr, tokens.data(), 3, nullptr),
            KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_last_error(to, why, sizeof(why)), KVATLAS_INVALID_ARGUMENT);
  EXPECT_STREQ(why, "1 block of 4 tokens needs 4 token ids; got 3");
  EXPECT_EQ(kvatlas_publisher_removed(to, 7, &name, 1), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_last_error(to, why, sizeof(why)), KVATLAS_INVALID_ARGUMENT);
  EXPECT_STREQ(why, "tier 7: expected a KVATLAS_TIER_ value, 0 to 3");
  EXPECT_EQ(kvatlas_publisher_removed(nullptr, 0, &name, 1), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_set_load(to, nullptr), KVATLAS_INVALID_ARGUMENT);
  // A leaf would refuse the batch that it is in, and each one after it.
  kvatlas_load load = {};
  load.struct_size = sizeof(load);
  for (const double no_speed : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    load.tokens_per_s = no_speed;
    EXPECT_EQ(kvatlas_publisher_set_load(to, &load), KVATLAS_INVALID_ARGUMENT) << no_speed;
  }
  EXPECT_EQ(kvatlas_publisher_get_stats(to, nullptr), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(Known(), Holdings());

  const uint64_t parent = 77;
  EXPECT_EQ(Stored({1}, tokens, &parent), KVATLAS_OK) << "known to be wrong only later";
  EXPECT_EQ(Known(), Holdings());
  char text[16];
  EXPECT_EQ(kvatlas_publisher_last_error(to, text, sizeof(text)), KVATLAS_NOT_FOUND);
  EXPECT_STREQ(text, "stored after a ");
  EXPECT_EQ(kvatlas_publisher_last_error(to, nullptr, 0), KVATLAS_NOT_FOUND);
}

TEST_F(KvatlasPublisherTest, OptionsThatAreWrongAreNamed) {
  kvatlas_publisher* publisher = nullptr;
  char error[256];
  const auto refused = [&](const kvatlas_publisher_options& options) {
    publisher = reinterpret_cast<kvatlas_publisher*>(1);
    EXPECT_EQ(kvatlas_publisher_create(&options, &publisher, error, sizeof(error)),
              KVATLAS_INVALID_ARGUMENT);
    EXPECT_EQ(publisher, nullptr);
    return std::string(error);
  };
  kvatlas_publisher_options options = DefaultOptions();
  options.block_size = 0;
  EXPECT_NE(refused(options).find("block_size"), std::string::npos);
  options = DefaultOptions();
  options.leaves_count = 1;
  EXPECT_NE(refused(options).find("leaves"), std::string::npos);
  options = DefaultOptions();
  options.zmq_attach = 3;
  EXPECT_NE(refused(options).find("zmq_attach"), std::string::npos);
  options = DefaultOptions();
  options.redis_url = "http://127.0.0.1";
  EXPECT_NE(refused(options).find("redis"), std::string::npos);
  options.redis_url = "redis://127.0.0.1";
  EXPECT_NE(refused(options).find("redis.cell"), std::string::npos);
  options = DefaultOptions();
  options.window_batches = 0;
  EXPECT_NE(refused(options).find("window_batches"), std::string::npos);
  options.struct_size = 0;
  EXPECT_NE(refused(options).find("options"), std::string::npos);
  EXPECT_EQ(kvatlas_publisher_create(nullptr, &publisher, nullptr, 0), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(kvatlas_publisher_create(&options_, nullptr, nullptr, 0), KVATLAS_INVALID_ARGUMENT);
}

TEST_F(KvatlasPublisherTest, ACallerWithAnOlderHeaderGetsWhatItKnows) {
  // Its options end before ZeroMQ's; what lies behind them is no business of the library's.
  options_.struct_size = offsetof(kvatlas_publisher_options, zmq_endpoint);
  std::memset(&options_.zmq_endpoint, 0xff, sizeof(options_) - options_.struct_size);
  publisher_ = Create(options_);
  EXPECT_EQ(Stored({1}, Tokens(1)), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(1)));
  EXPECT_EQ(kvatlas_publisher_zmq_endpoint(publisher_.get(), nullptr, 0), KVATLAS_NOT_FOUND);
  kvatlas_publisher_stats stats;
  std::memset(&stats, 0xee, sizeof(stats));
  stats.struct_size = offsetof(kvatlas_publisher_stats, blocks_removed);
  EXPECT_EQ(kvatlas_publisher_get_stats(publisher_.get(), &stats), KVATLAS_OK);
  EXPECT_EQ(stats.struct_size, offsetof(kvatlas_publisher_stats, blocks_removed));
  EXPECT_EQ(stats.blocks_stored, 1u);
  EXPECT_EQ(stats.blocks_removed, 0xeeeeeeeeeeeeeeeeull);
}

TEST_F(KvatlasPublisherTest, ReplicasAndZmqAreTold) {
  options_.zmq_endpoint = "tcp://127.0.0.1:0";
  publisher_ = Create(options_);
  EXPECT_EQ(Stored({1}, Tokens(1)), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(1)));
  char text[64];
  EXPECT_EQ(kvatlas_publisher_zmq_endpoint(publisher_.get(), text, sizeof(text)), KVATLAS_OK);
  EXPECT_EQ(std::string(text).rfind("tcp://127.0.0.1:", 0), 0u) << text;
  kvatlas_replica_stats replica = {};
  replica.struct_size = sizeof(replica);
  EXPECT_EQ(kvatlas_publisher_get_replica(publisher_.get(), 0, &replica, text, sizeof(text)),
            KVATLAS_OK);
  EXPECT_EQ(replica.connected, 1);
  EXPECT_EQ(replica.status, KVATLAS_OK);
  EXPECT_EQ(replica.acknowledged, replica.last_number);
  EXPECT_EQ(kvatlas_publisher_get_replica(publisher_.get(), 1, &replica, nullptr, 0),
            KVATLAS_NOT_FOUND);
}

TEST_F(KvatlasPublisherTest, AfterTheStopNothingIsTaken) {
  publisher_ = Create(options_);
  EXPECT_EQ(Stored({1}, Tokens(1)), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(1)));
  EXPECT_EQ(kvatlas_publisher_stop(publisher_.get(), 1, kLongMs), KVATLAS_OK);
  EXPECT_EQ(kvatlas_publisher_stop(publisher_.get(), 1, kLongMs), KVATLAS_OK);
  EXPECT_EQ(Stored({2}, Tokens(1)), KVATLAS_FAILED_PRECONDITION);
  EXPECT_EQ(kvatlas_publisher_flush(publisher_.get()), KVATLAS_FAILED_PRECONDITION);
  EXPECT_EQ(Stats().blocks_stored, 1u);
}

TEST_F(KvatlasPublisherTest, AForkedChildTouchesNothing) {
  publisher_ = Create(options_);
  EXPECT_EQ(Stored({1}, Tokens(1)), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(1)));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    kvatlas_publisher* another = nullptr;
    const bool refused =
        Stored({2}, Tokens(1)) == KVATLAS_FAILED_PRECONDITION &&
        kvatlas_publisher_stop(publisher_.get(), 1, 0) == KVATLAS_FAILED_PRECONDITION &&
        kvatlas_publisher_wait_acknowledged(publisher_.get(), 1) == KVATLAS_FAILED_PRECONDITION &&
        kvatlas_publisher_create(&options_, &another, nullptr, 0) == KVATLAS_FAILED_PRECONDITION;
    kvatlas_publisher_destroy(publisher_.get());
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const uint64_t parent = 1;
  EXPECT_EQ(Stored({2}, Tokens(1, kBlockSize), &parent), KVATLAS_OK);
  EXPECT_EQ(Known(), ChainOf(Tokens(2)));
}

// An engine's own events of a hybrid model; what they do not say is in the options.
TEST_F(KvatlasPublisherTest, AWindowOfAnEnginesOwnEventsArrivesWithTheLayout) {
  options_.eagle_drop = "1,x";
  kvatlas_publisher* none = nullptr;
  char error[256];
  EXPECT_EQ(kvatlas_publisher_create(&options_, &none, error, sizeof(error)),
            KVATLAS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error).find("eagle_drop"), std::string::npos) << error;
  options_.eagle_drop = "all";
  publisher_ = Create(options_);
  const std::vector<uint64_t> names = {5};
  const std::vector<TokenId> tokens(kBlockSize, 5);
  ZmqEventEncoder encoder(ZmqEventForm::kMap, kBlockSize, 0);
  encoder.Stored({.hashes = names, .tokens = tokens});
  const std::string main = encoder.Finish(1);
  const std::string window = WindowBatch(true, names, kBlockSize, 8);
  for (const std::string& batch : {main, window})
    EXPECT_EQ(kvatlas_publisher_publish(publisher_.get(), batch.data(), batch.size()), KVATLAS_OK);
  CacheLayout layout = WindowLayout(kBlockSize, 8);
  layout.main.drops_last = layout.sides[0].drops_last = true;
  Known();
  EXPECT_EQ(leaf_.layout(), layout);
  EXPECT_EQ(leaf_.holdings_of(0), ChainOf(tokens));
  EXPECT_EQ(leaf_.holdings_of(1), SidesOf(ChainOf(tokens), layout.sides[0]));
}

kvatlas_group GroupOf(uint32_t number, uint32_t kind, uint32_t window = 0) {
  kvatlas_group group = {};
  group.struct_size = sizeof(group);
  group.number = number;
  group.kind = kind;
  group.window_tokens = window;
  return group;
}

// The same by calls, whichever block comes first, with names that are numbers or bytes.
TEST_F(KvatlasPublisherTest, GroupsOfAHybridModelArriveByTheEnginesOwnNames) {
  const std::vector<TokenId> tokens = Tokens(2);
  const kvatlas_group full = GroupOf(0, KVATLAS_GROUP_FULL);
  const kvatlas_group window = GroupOf(1, KVATLAS_GROUP_WINDOW, 8);
  const CacheLayout layout = WindowLayout(kBlockSize, 8);
  const std::vector<uint64_t> numbers = {21, 22};
  const std::string bytes = std::string(32, 'x') + std::string(32, 'y');
  for (const size_t name_bytes : {0, 32}) {
    SCOPED_TRACE(name_bytes);
    const size_t size = name_bytes == 0 ? sizeof(uint64_t) : name_bytes;
    const auto* names =
        name_bytes == 0 ? reinterpret_cast<const char*>(numbers.data()) : bytes.data();
    publisher_ = Create(options_);
    kvatlas_publisher* const to = publisher_.get();
    const auto store = [&](const kvatlas_group& group, size_t from, size_t count) {
      return kvatlas_publisher_stored_in_group(
          to, &group, KVATLAS_TIER_DEVICE, names + from * size, name_bytes, count,
          from == 0 ? nullptr : names + (from - 1) * size, tokens.data() + from * kBlockSize,
          count * kBlockSize, nullptr);
    };
    EXPECT_EQ(store(full, 0, 1), KVATLAS_OK);
    EXPECT_EQ(store(window, 1, 1), KVATLAS_OK) << "before the block that it ends with";
    EXPECT_EQ(Known(), ChainOf({tokens.begin(), tokens.begin() + kBlockSize}));
    EXPECT_EQ(store(full, 1, 1), KVATLAS_OK);
    EXPECT_EQ(Known().size(), 3u);
    EXPECT_EQ(leaf_.layout(), layout);
    EXPECT_EQ(leaf_.holdings_of(0), ChainOf(tokens));
    Holdings last = ChainOf(tokens);
    for (const auto& block : ChainOf({tokens.begin(), tokens.begin() + kBlockSize}))
      last.erase(block);
    EXPECT_EQ(leaf_.holdings_of(1), SidesOf(last, layout.sides[0]));
    EXPECT_EQ(
        kvatlas_publisher_removed_in_group(to, 1, KVATLAS_TIER_DEVICE, names + size, name_bytes, 1),
        KVATLAS_OK);
    EXPECT_EQ(Known(), ChainOf(tokens));
    EXPECT_EQ(kvatlas_publisher_removed_in_group(to, 0, KVATLAS_TIER_DEVICE, names, name_bytes, 2),
              KVATLAS_OK);
    EXPECT_EQ(Known(), Holdings());
    EXPECT_EQ(Stats().engine_refused + Stats().engine_unreadable + Stats().invalid_calls, 0u);
  }
}

TEST_F(KvatlasPublisherTest, CallsOfGroupsThatDoNotFitAreRefusedAndChangeNothing) {
  publisher_ = Create(options_);
  const std::vector<TokenId> tokens = Tokens(2);
  const uint64_t names[] = {1, 2};
  const auto store = [&](const kvatlas_group* group, size_t tokens_count) {
    return kvatlas_publisher_stored_in_group(publisher_.get(), group, KVATLAS_TIER_DEVICE, names, 0,
                                             2, nullptr, tokens.data(), tokens_count, nullptr);
  };
  const kvatlas_group full = GroupOf(0, KVATLAS_GROUP_FULL), unknown = GroupOf(0, 4),
                      odd = GroupOf(0, KVATLAS_GROUP_STATE, 8);
  for (const kvatlas_group* const wrong :
       {static_cast<const kvatlas_group*>(nullptr), &unknown, &odd})
    EXPECT_EQ(store(wrong, tokens.size()), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(store(&full, tokens.size() - 1), KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(store(&full, tokens.size()), KVATLAS_OK);
  EXPECT_EQ(Stored({3}, Tokens(1)), KVATLAS_INVALID_ARGUMENT) << "another way of speaking";
  EXPECT_EQ(Known(), ChainOf(tokens));
}

// Forks at any moment of the publisher's threads, whose locks a child finds as they were: with
// leaves by gRPC, leaves that are looked for, and a log in Redis.
TEST_F(KvatlasPublisherTest, ForksUnderLoadHangNobodyAndSayNothingTwice) {
  RedisTestServer redis;
  const std::string url = redis.url();
  const char* const leaves[] = {target_.c_str(), url.c_str()};
  options_.leaves = leaves;
  options_.leaves_count = 2;
  options_.cell = "cell";
  options_.redis_url = url.c_str();
  publisher_ = Create(options_);
  ASSERT_TRUE(Await([&] { return leaf_.seen_hello(); }, std::chrono::seconds(60)));
  // A hello that is answered late is said again, and what was said after the first answer too: that
  // is over with the second block.
  constexpr uint64_t kFirst = 2;
  // By the leaf: a log without a reader acknowledges nothing.
  const auto acknowledged = [&] {
    kvatlas_replica_stats replica = {};
    replica.struct_size = sizeof(replica);
    kvatlas_publisher_flush(publisher_.get());
    kvatlas_publisher_get_replica(publisher_.get(), 0, &replica, nullptr, 0);
    return replica.acknowledged;
  };
  for (uint64_t block = 1; block <= kFirst; ++block) {
    EXPECT_EQ(
        kvatlas_publisher_stored_hashed(publisher_.get(), KVATLAS_TIER_DEVICE, 0, 0, &block, 1),
        KVATLAS_OK);
    EXPECT_TRUE(Await([&] { return acknowledged() >= block; }, std::chrono::seconds(60)));
  }
  const ReceiverStats before = leaf_.stats();
  constexpr int kForks = 40;
  constexpr uint64_t kPerFork = 50;
  std::atomic<int> forks{0};
  std::atomic<uint64_t> said{kFirst};
  std::thread engine([&] {
    // Some before each fork, so that there is one in the middle of it.
    while (forks.load() < kForks) {
      if (said.load() >= (static_cast<uint64_t>(forks.load()) + 1) * kPerFork) {
        std::this_thread::yield();
        continue;
      }
      const uint64_t block = said.load() + 1;
      EXPECT_EQ(
          kvatlas_publisher_stored_hashed(publisher_.get(), KVATLAS_TIER_DEVICE, 0, 0, &block, 1),
          KVATLAS_OK);
      said = block;
    }
  });
  for (int i = 0; i < kForks; ++i) {
    // Without a pause, so that the fork falls into the middle of what the engine's thread says.
    while (said.load() < static_cast<uint64_t>(i) * kPerFork + 1) std::this_thread::yield();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);  // a child that hangs is a failure, not a test that hangs
      const uint64_t block = 1'000'000;
      kvatlas_publisher_stats stats = {};
      stats.struct_size = sizeof(stats);
      const bool refused =
          kvatlas_publisher_stored_hashed(publisher_.get(), KVATLAS_TIER_DEVICE, 0, 0, &block, 1) ==
              KVATLAS_FAILED_PRECONDITION &&
          kvatlas_publisher_flush(publisher_.get()) == KVATLAS_FAILED_PRECONDITION &&
          kvatlas_publisher_get_stats(publisher_.get(), &stats) == KVATLAS_FAILED_PRECONDITION &&
          kvatlas_publisher_stop(publisher_.get(), 1, 1000) == KVATLAS_FAILED_PRECONDITION;
      kvatlas_publisher_destroy(publisher_.get());
      _exit(refused ? 0 : 1);
    }
    ++forks;
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "fork " << i;
  }
  engine.join();
  Holdings expected;
  for (uint64_t block = 1; block <= said.load(); ++block)
    expected.insert({static_cast<int>(Tier::kDevice), block});
  // The log has no reader: the leaf has all blocks once its replica is at rest.
  EXPECT_TRUE(Await(
      [&] {
        kvatlas_publisher_flush(publisher_.get());
        return leaf_.holdings() == expected;
      },
      std::chrono::seconds(60)));
  const ReceiverStats heard = leaf_.stats();
  EXPECT_EQ(heard.blocks_applied, said.load());
  EXPECT_EQ(heard.batches_duplicate, before.batches_duplicate);
  EXPECT_EQ(heard.gaps, 0u);
  EXPECT_EQ(heard.digests_different, 0u);
  EXPECT_EQ(Stats().blocks_stored, said.load());
}

TEST(KvatlasPublisherTextTest, CodesHaveNames) {
  EXPECT_STREQ(kvatlas_code_name(KVATLAS_UNAVAILABLE), "UNAVAILABLE");
  EXPECT_STREQ(kvatlas_code_name(-1), "UNKNOWN");
  EXPECT_EQ(kvatlas_publisher_abi(), KVATLAS_PUBLISHER_ABI);
}

}  // namespace
}  // namespace kvatlas
