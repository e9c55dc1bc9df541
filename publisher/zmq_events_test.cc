// Bytes as vLLM's own encoder makes them, and batches read back with another library.

#include "publisher/zmq_events.h"
#include "indexer/base/test_seed.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <msgpack.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace kvatlas {
namespace {

constexpr double kTime = 1700000000.5;
constexpr uint64_t kFirst = 0x7b0bf7bf7fd01682;
constexpr uint64_t kSecond = 0x0b368b33d87bf3bf;

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

std::vector<TokenId> Tokens(size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

std::string TwoBlocks(ZmqEventForm form) {
  ZmqEventEncoder encoder(form, 4, 0);
  const std::vector<uint64_t> hashes = {kFirst, kSecond};
  encoder.Stored({.hashes = hashes, .tokens = Tokens(8)});
  return encoder.Finish(kTime);
}

// Everything after the batch's header and before its rank.
std::string OneEvent(ZmqEventEncoder* encoder) {
  const std::string batch = encoder->Finish(kTime);
  constexpr size_t kHeader = 1 + 9 + 1;
  return Hex(batch.substr(kHeader, batch.size() - kHeader - 1));
}

TEST(ZmqEventsTest, MapBatchIsByteForByteVllms) {
  EXPECT_EQ(
      Hex(TwoBlocks(ZmqEventForm::kMap)),
      "93cb41d954fc40200000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf7b"
      "0bf7bf7fd01682cf0b368b33d87bf3bfb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473"
      "980102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72"
      "615f6e616d65c0aa65787472615f6b65797392c0c0a967726f75705f69647800b26b765f63616368655f737065"
      "635f6b696e64ae66756c6c5f617474656e74696f6e00");
}

TEST(ZmqEventsTest, LegacyArrayBatchIsByteForByteVllms) {
  EXPECT_EQ(
      Hex(TwoBlocks(ZmqEventForm::kLegacyArray)),
      "93cb41d954fc40200000919cab426c6f636b53746f72656492cf7b0bf7bf7fd01682cf0b368b33d87bf3bfc098"
      "010203040506070804c0a3475055c092c0c000ae66756c6c5f617474656e74696f6ec000");
}

TEST(ZmqEventsTest, RemovalsAndClearsAreByteForByteVllms) {
  const std::vector<uint64_t> hashes = {kFirst};
  ZmqEventEncoder map(ZmqEventForm::kMap, 4, 0);
  map.Removed(Tier::kDevice, hashes);
  EXPECT_EQ(
      OneEvent(&map),
      "84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf7b0bf7bf7fd01682a66d65"
      "6469756da3475055a967726f75705f69647800");
  map.AllCleared();
  EXPECT_EQ(OneEvent(&map), "81a474797065b0416c6c426c6f636b73436c6561726564");

  ZmqEventEncoder array(ZmqEventForm::kLegacyArray, 4, 0);
  array.Removed(Tier::kDevice, hashes);
  EXPECT_EQ(OneEvent(&array), "94ac426c6f636b52656d6f76656491cf7b0bf7bf7fd01682a347505500");
  array.AllCleared();
  EXPECT_EQ(OneEvent(&array), "91b0416c6c426c6f636b73436c6561726564");
}

TEST(ZmqEventsTest, AnAdaptersChildBlockIsAsVllmSaysIt) {
  ZmqEventEncoder encoder(ZmqEventForm::kMap, 4, 0);
  const std::vector<uint64_t> hashes = {kSecond};
  const std::vector<TokenId> tokens = {151644, 872, 198, 70000};
  encoder.Stored({.hashes = hashes, .parent = kFirst, .tokens = tokens, .lora_name = "my-lora"});
  const std::string event = OneEvent(&encoder);
  EXPECT_NE(event.find("94ce0002505ccd0368ccc6ce00011170"), std::string::npos) << event;
  EXPECT_NE(event.find("a96c6f72615f6e616d65a76d792d6c6f7261"), std::string::npos) << event;
  EXPECT_NE(event.find("aa65787472615f6b6579739191a76d792d6c6f7261"), std::string::npos) << event;
  EXPECT_NE(event.find("b1706172656e745f626c6f636b5f68617368cf7b0bf7bf7fd01682"), std::string::npos)
      << event;
}

TEST(ZmqEventsTest, ATimeWithoutAFractionIsStillAFloat) {
  ZmqEventEncoder encoder(ZmqEventForm::kMap, 4, 0);
  encoder.AllCleared();
  EXPECT_EQ(Hex(encoder.Finish(1700000000)).substr(0, 20), "93cb41d954fc40000000");
}

TEST(ZmqEventsTest, IntegersAreAsSmallAsMsgspecMakesThem) {
  const std::map<uint64_t, std::string> forms = {{127, "7f"},
                                                 {128, "cc80"},
                                                 {255, "ccff"},
                                                 {256, "cd0100"},
                                                 {65535, "cdffff"},
                                                 {65536, "ce00010000"},
                                                 {4294967295, "ceffffffff"},
                                                 {4294967296, "cf0000000100000000"},
                                                 {uint64_t{1} << 63, "cf8000000000000000"},
                                                 {~uint64_t{0}, "cfffffffffffffffff"}};
  for (const auto& [number, hex] : forms) {
    ZmqEventEncoder encoder(ZmqEventForm::kLegacyArray, 4, 0);
    const std::vector<uint64_t> hashes = {number};
    encoder.Removed(Tier::kDevice, hashes);
    EXPECT_EQ(OneEvent(&encoder), "94ac426c6f636b52656d6f76656491" + hex + "a347505500");
  }
}

// ---- Read back with msgpack-cxx ----

const msgpack::object* Field(const msgpack::object& map, const std::string& name) {
  for (uint32_t i = 0; i < map.via.map.size; ++i) {
    const msgpack::object_kv& field = map.via.map.ptr[i];
    if (field.key.as<std::string>() == name) return &field.val;
  }
  return nullptr;
}

TEST(ZmqEventsTest, SaltedRootSaysItsSaltWhereverAConsumerLooks) {
  const std::vector<uint64_t> hashes = {1, 2};
  const std::vector<TokenId> tokens = Tokens(8);
  ZmqEventEncoder map(ZmqEventForm::kMap, 4, 0);
  map.Stored({.hashes = hashes, .tokens = tokens, .lora_name = "a", .cache_salt = "s"});
  map.Stored({.hashes = hashes, .parent = 9, .tokens = tokens, .cache_salt = "s"});
  const std::string batch = map.Finish(kTime);
  const msgpack::object_handle handle = msgpack::unpack(batch.data(), batch.size());
  const msgpack::object& events = handle->via.array.ptr[1];
  const msgpack::object& root = events.via.array.ptr[0];
  EXPECT_EQ(Field(root, "cache_salt")->as<std::string>(), "s");
  using Keys = std::vector<std::vector<std::string>>;
  EXPECT_EQ(Field(root, "extra_keys")->as<Keys>(), (Keys{{"a", "dynamo-cache-salt:s"}, {"a"}}));
  const msgpack::object& child = events.via.array.ptr[1];
  EXPECT_EQ(Field(child, "cache_salt")->as<std::string>(), "s");
  EXPECT_EQ(Field(child, "extra_keys")->via.array.ptr[0].type, msgpack::type::NIL);

  ZmqEventEncoder array(ZmqEventForm::kLegacyArray, 4, 0);
  array.Stored({.hashes = hashes, .tokens = tokens, .cache_salt = "s"});
  const std::string legacy = array.Finish(kTime);
  const msgpack::object_handle legacy_handle = msgpack::unpack(legacy.data(), legacy.size());
  const msgpack::object& stored = legacy_handle->via.array.ptr[1].via.array.ptr[0];
  ASSERT_EQ(stored.via.array.size, 12u);
  const msgpack::object& extra = stored.via.array.ptr[8];
  EXPECT_EQ(extra.via.array.ptr[0].as<std::vector<std::string>>(),
            std::vector<std::string>{"dynamo-cache-salt:s"});
  EXPECT_EQ(extra.via.array.ptr[1].type, msgpack::type::NIL);
}

TEST(ZmqEventsTest, BlocksInAnotherTierAreHashesAlone) {
  const std::vector<uint64_t> hashes = {1, 2};
  ZmqEventEncoder encoder(ZmqEventForm::kMap, 16, 0);
  encoder.Stored({.tier = Tier::kHost, .hashes = hashes, .parent = 7, .cache_salt = "s"});
  const std::string batch = encoder.Finish(kTime);
  const msgpack::object_handle handle = msgpack::unpack(batch.data(), batch.size());
  const msgpack::object& event = handle->via.array.ptr[1].via.array.ptr[0];
  EXPECT_EQ(Field(event, "block_size")->as<int>(), 0);
  EXPECT_EQ(Field(event, "token_ids")->via.array.size, 0u);
  EXPECT_EQ(Field(event, "parent_block_hash")->type, msgpack::type::NIL);
  EXPECT_EQ(Field(event, "medium")->as<std::string>(), "CPU");
  EXPECT_EQ(Field(event, "cache_salt"), nullptr);
}

TEST(ZmqEventsTest, RandomBatchesAreReadBackAsTheyWereSaid) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto form = round % 2 == 0 ? ZmqEventForm::kMap : ZmqEventForm::kLegacyArray;
    const uint32_t block_size = 1 + random() % 40;
    const uint32_t rank = random() % 3 == 0 ? random() : random() % 200;
    ZmqEventEncoder encoder(form, block_size, rank);
    std::vector<std::vector<uint64_t>> all_hashes;
    std::vector<std::vector<TokenId>> all_tokens;
    const size_t events = random() % 40;
    for (size_t e = 0; e < events; ++e) {
      std::vector<uint64_t> hashes(random() % 40);
      for (uint64_t& hash : hashes) hash = random() >> (random() % 64);
      std::vector<TokenId> tokens;
      if (random() % 2 == 0) {
        tokens.resize(hashes.size() * block_size);
        for (TokenId& token : tokens) token = random() >> (random() % 32);
        encoder.Stored({.hashes = hashes, .tokens = tokens});
      } else {
        encoder.Removed(Tier::kDisk, hashes);
      }
      all_hashes.push_back(hashes);
      all_tokens.push_back(tokens);
    }
    ASSERT_EQ(encoder.events(), events);
    const std::string batch = encoder.Finish(kTime + round);
    EXPECT_EQ(encoder.events(), 0u);
    const msgpack::object_handle handle = msgpack::unpack(batch.data(), batch.size());
    ASSERT_EQ(handle->via.array.size, 3u);
    EXPECT_EQ(handle->via.array.ptr[0].as<double>(), kTime + round);
    EXPECT_EQ(handle->via.array.ptr[2].as<uint32_t>(), rank);
    const msgpack::object& read = handle->via.array.ptr[1];
    ASSERT_EQ(read.via.array.size, events);
    for (size_t e = 0; e < events; ++e) {
      const msgpack::object& event = read.via.array.ptr[e];
      const bool map = form == ZmqEventForm::kMap;
      const msgpack::object& hashes = map ? *Field(event, "block_hashes") : event.via.array.ptr[1];
      EXPECT_EQ(hashes.as<std::vector<uint64_t>>(), all_hashes[e]);
      if (all_tokens[e].empty()) continue;
      const msgpack::object& tokens = map ? *Field(event, "token_ids") : event.via.array.ptr[3];
      EXPECT_EQ(tokens.as<std::vector<TokenId>>(), all_tokens[e]);
    }
  }
}

}  // namespace
}  // namespace kvatlas
