// Frames that engines wrote, byte for byte, and what they say.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {
namespace {

// Common to the frames: 1700000000.5 s, two hashes, "BlockStored", "GPU".
constexpr std::string_view kTime = "cb41d954fc40200000";
constexpr uint64_t kHash0 = 0x7b0bf7bf7fd01682;
constexpr uint64_t kHash1 = 0x0b368b33d87bf3bf;
constexpr std::string_view kStored = "ab426c6f636b53746f726564";
constexpr std::string_view kRemoved = "ac426c6f636b52656d6f766564";
constexpr std::string_view kCleared = "b0416c6c426c6f636b73436c6561726564";
constexpr std::string_view kHashes0 = "91cf7b0bf7bf7fd01682";

// Keys of maps.
constexpr std::string_view kType = "a474797065";
constexpr std::string_view kBlockHashes = "ac626c6f636b5f686173686573";
constexpr std::string_view kParent = "b1706172656e745f626c6f636b5f68617368";
constexpr std::string_view kTokenIds = "a9746f6b656e5f696473";
constexpr std::string_view kBlockSize = "aa626c6f636b5f73697a65";
constexpr std::string_view kLoraId = "a76c6f72615f6964";
constexpr std::string_view kMedium = "a66d656469756d";
constexpr std::string_view kLoraName = "a96c6f72615f6e616d65";
constexpr std::string_view kSalt = "aa63616368655f73616c74";
constexpr std::string_view kSession = "aa73657373696f6e5f6964";
constexpr std::string_view kGroup = "a967726f75705f696478";
constexpr std::string_view kKind = "b26b765f63616368655f737065635f6b696e64";
constexpr std::string_view kWindow = "bc6b765f63616368655f737065635f736c6964696e675f77696e646f77";
constexpr std::string_view kComponentType = "ae636f6d706f6e656e745f74797065";

constexpr std::string_view kTwelveElements =
    "93cb41d954fc40200000919cab426c6f636b53746f72656492cf7b0bf7bf7fd01682cf0b368b33d87bf3bfc0980102"
    "03040506070804c0a3475055c092c0c000ae66756c6c5f617474656e74696f6ec000";
constexpr std::string_view kMap =
    "93cb41d954fc40200000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf7b0bf7"
    "bf7fd01682cf0b368b33d87bf3bfb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647398010203"
    "0405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65"
    "c0aa65787472615f6b65797392c0c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66"
    "756c6c5f617474656e74696f6e00";

std::string Join(std::initializer_list<std::string_view> parts) {
  std::string joined;
  for (const std::string_view part : parts) joined += part;
  return joined;
}

class DecoderVectorsTest : public ::testing::Test {
 protected:
  const EngineBatch& Decode(std::string_view hex) {
    payload_ = FromHex(hex);
    const absl::Status status = decoder_.Decode(payload_, &batch_);
    EXPECT_TRUE(status.ok()) << status;
    return batch_;
  }

  // The one event of a frame.
  const EngineEvent& DecodeOne(std::string_view hex) {
    static const EngineEvent kNone;
    Decode(hex);
    EXPECT_TRUE(batch_.refused.empty()) << ToText(batch_);
    EXPECT_EQ(batch_.events.size(), 1u);
    return batch_.events.size() == 1 ? batch_.events[0] : kNone;
  }

  std::string payload_;
  EngineDecoder decoder_;
  EngineBatch batch_;
};

std::vector<TokenId> Tokens(const EngineEvent& event) {
  return {event.tokens.begin(), event.tokens.end()};
}

std::vector<uint64_t> Values(const EngineEvent& event) {
  std::vector<uint64_t> values;
  for (const EngineBlockHash& hash : event.hashes) values.push_back(hash.value);
  return values;
}

TEST_F(DecoderVectorsTest, OldestVllmHasTwoElementsAndFiveFields) {
  const EngineEvent& event =
      DecodeOne(Join({"92", kTime, "9196", kStored, kHashes0, "c0940102030404c0"}));
  EXPECT_EQ(event.kind, EngineEvent::Kind::kStored);
  EXPECT_EQ(Values(event), std::vector<uint64_t>{kHash0});
  EXPECT_FALSE(event.parent.has_value());
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3, 4}));
  EXPECT_EQ(event.block_size, 4u);
  EXPECT_FALSE(event.lora_id.has_value());
  EXPECT_EQ(event.medium, "");
  EXPECT_EQ(batch_.time_s, 1700000000.5);
  EXPECT_FALSE(batch_.rank.has_value());
}

TEST_F(DecoderVectorsTest, MediumAndRankOfVllm010) {
  const EngineEvent& event =
      DecodeOne(Join({"93", kTime, "9197", kStored, kHashes0, "c0940102030404c0a347505500"}));
  EXPECT_EQ(event.medium, "GPU");
  EXPECT_EQ(batch_.rank, 0);
}

TEST_F(DecoderVectorsTest, LoraNameOfVllm013) {
  const EngineEvent& event =
      DecodeOne(Join({"93", kTime, "9198", kStored, kHashes0, "c0940102030404c0a3475055c000"}));
  EXPECT_EQ(event.medium, "GPU");
  EXPECT_EQ(event.lora_name, "");
  EXPECT_EQ(batch_.rank, 0);
}

TEST_F(DecoderVectorsTest, TwelveElementsOfVllm023) {
  const EngineEvent& event = DecodeOne(kTwelveElements);
  EXPECT_EQ(Values(event), (std::vector<uint64_t>{kHash0, kHash1}));
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(event.block_size, 4u);
  EXPECT_TRUE(event.extra_keys.empty());
  EXPECT_EQ(event.group, 0u);
  EXPECT_EQ(event.spec_kind, "full_attention");
  EXPECT_FALSE(event.sliding_window.has_value());
}

TEST_F(DecoderVectorsTest, MapOfVllm024SaysTheSameAsItsTuple) {
  const std::string tuple = ToText(Decode(kTwelveElements));
  EXPECT_EQ(FromHex(kMap).size(), 202u);
  EXPECT_EQ(ToText(Decode(kMap)), tuple);
}

TEST_F(DecoderVectorsTest, MapHeaderMayBeWiderThanItsCount) {
  const std::string expected = ToText(Decode(kMap));
  std::string wide(kMap);
  wide.replace(wide.find("918b") + 2, 2, "de000b");
  EXPECT_EQ(ToText(Decode(wide)), expected);
}

TEST_F(DecoderVectorsTest, BytesHashKeepsItsDigestAndEndsInTheIntegerHash) {
  const std::string digest = "cd7c51bc5a8fc8643f383a2b9e01522fba7473c669e9270c7b0bf7bf7fd01682";
  const EngineEvent& event = DecodeOne(
      Join({"93", kTime, "9197", kStored, "91c420", digest, "c0940102030404c0a347505500"}));
  ASSERT_EQ(event.hashes.size(), 1u);
  EXPECT_EQ(event.hashes[0].value, kHash0);
  EXPECT_EQ(event.hashes[0].bytes, FromHex(digest));
  EXPECT_EQ(event.hashes[0].FirstBytes(), 0xcd7c51bc5a8fc864);
}

TEST_F(DecoderVectorsTest, RemovalsAsTupleAndAsMap) {
  const EngineEvent& tuple =
      DecodeOne(Join({"93", kTime, "9194ac426c6f636b52656d6f766564", kHashes0, "a34750550000"}));
  EXPECT_EQ(tuple.kind, EngineEvent::Kind::kRemoved);
  EXPECT_EQ(Values(tuple), std::vector<uint64_t>{kHash0});
  EXPECT_EQ(tuple.medium, "GPU");
  EXPECT_EQ(tuple.group, 0u);
  const std::string expected = ToText(batch_);
  Decode(Join({"93", kTime, "9184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573",
               kHashes0, "a66d656469756da3475055a967726f75705f6964780000"}));
  EXPECT_EQ(ToText(batch_), expected);
}

TEST_F(DecoderVectorsTest, AllBlocksClearedAsTupleAndAsMap) {
  const EngineEvent& tuple =
      DecodeOne(Join({"93", kTime, "9191b0416c6c426c6f636b73436c656172656400"}));
  EXPECT_EQ(tuple.kind, EngineEvent::Kind::kCleared);
  const EngineEvent& map =
      DecodeOne(Join({"93", kTime, "9181a474797065b0416c6c426c6f636b73436c656172656400"}));
  EXPECT_EQ(map.kind, EngineEvent::Kind::kCleared);
}

TEST_F(DecoderVectorsTest, ChildOfAnAdapterHasWideTokensAndTheAdaptersKey) {
  const EngineEvent& event = DecodeOne(
      Join({"93", kTime, "9189a474797065", kStored, "ac626c6f636b5f686173686573",
            "91cf0b368b33d87bf3bf", "b1706172656e745f626c6f636b5f68617368", "cf7b0bf7bf7fd01682",
            "a9746f6b656e5f696473", "94ce0002505ccd0368ccc6ce00011170", "aa626c6f636b5f73697a6504",
            "a76c6f72615f696401", "a66d656469756da3475055", "a96c6f72615f6e616d65a76d792d6c6f7261",
            "aa65787472615f6b6579739191a76d792d6c6f7261", "00"}));
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{151644, 872, 198, 70000}));
  ASSERT_TRUE(event.parent.has_value());
  EXPECT_EQ(event.parent->value, kHash0);
  EXPECT_EQ(event.lora_id, 1);
  EXPECT_EQ(event.lora_name, "my-lora");
  ASSERT_EQ(event.extra_keys.size(), 1u);
  ASSERT_EQ(event.extra_keys[0].size(), 1u);
  EXPECT_EQ(event.extra_keys[0][0].kind, ExtraKey::Kind::kText);
  EXPECT_EQ(event.extra_keys[0][0].text, "my-lora");
}

TEST_F(DecoderVectorsTest, ExtraKeysOfAllKinds) {
  const EngineEvent& event =
      DecodeOne(Join({"93", kTime, "9199", kStored, kHashes0, "c0940102030404c0a3475055c0",
                      "9193a76d792d6c6f726192a43966306103a473616c74", "00"}));
  ASSERT_EQ(event.extra_keys.size(), 1u);
  const std::span<const ExtraKey> keys = event.extra_keys[0];
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[0].text, "my-lora");
  EXPECT_EQ(keys[1].kind, ExtraKey::Kind::kTextAt);
  EXPECT_EQ(keys[1].text, "9f0a");
  EXPECT_EQ(keys[1].offset, 3);
  EXPECT_EQ(keys[2].kind, ExtraKey::Kind::kText);
  EXPECT_EQ(keys[2].text, "salt");
}

TEST_F(DecoderVectorsTest, IntegersOfEveryWidthAreHashes) {
  const EngineEvent& event =
      DecodeOne(Join({"93", kTime, "9192ac426c6f636b52656d6f766564", "9b", "7f", "cc80", "cd0100",
                      "ce00010000", "cf0000000100000000", "cf8000000000000000", "ff", "d0df",
                      "d1ff7f", "d2ffff7fff", "d3ffffffff7fffffff", "00"}));
  const auto negative = [](int64_t value) { return static_cast<uint64_t>(value); };
  EXPECT_EQ(Values(event),
            (std::vector<uint64_t>{127, 128, 256, 65536, uint64_t{1} << 32, uint64_t{1} << 63,
                                   negative(-1), negative(-33), negative(-129), negative(-32769),
                                   negative(-2147483649)}));
}

TEST_F(DecoderVectorsTest, SglangStoresUnderNegativeHashes) {
  const EngineEvent& event = DecodeOne(
      Join({"93", kTime, "9197", kStored, "91d3eeddef0b82167eeb", "c0940102030404c0a347505500"}));
  EXPECT_EQ(Values(event), std::vector<uint64_t>{static_cast<uint64_t>(-1234567890123456789)});
  EXPECT_TRUE(event.hashes[0].bytes.empty());
}

TEST_F(DecoderVectorsTest, SglangRemovesFromPinnedMemory) {
  const EngineEvent& event =
      DecodeOne(Join({"93", kTime, "9193ac426c6f636b52656d6f766564", "91d3eeddef0b82167eeb",
                      "aa4350555f50494e4e4544", "00"}));
  EXPECT_EQ(event.kind, EngineEvent::Kind::kRemoved);
  EXPECT_EQ(event.medium, "CPU_PINNED");
  EXPECT_FALSE(event.group.has_value());
}

TEST_F(DecoderVectorsTest, SglangBigramsAreTheirFirstsAndTheLastSecond) {
  const EngineEvent& event = DecodeOne(
      Join({"93", kTime, "9197", kStored, "91ff", "c0", "92920102920203", "02c0a347505500"}));
  EXPECT_EQ(event.look_ahead, 1u);
  EXPECT_FALSE(event.tokens_opaque);
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(event.block_size, 2u);
}

TEST_F(DecoderVectorsTest, SglangSaltStandsInAMapAtTheEighthPlace) {
  const EngineEvent& event =
      DecodeOne(Join({"93", kTime, "9198", kStored, kHashes0, "c0940102030404c0a3475055",
                      "81aa63616368655f73616c74a3782d79", "00"}));
  EXPECT_EQ(event.cache_salt, "x-y");
  EXPECT_EQ(event.lora_name, "");
}

// ---- vLLM 0.33 and SGLang 0.5.23, by their own classes and msgspec 0.22 ----

TEST_F(DecoderVectorsTest, WindowOfVllm033WithEveryFieldUnderALongHeader) {
  const EngineEvent& event = DecodeOne(Join({"93",
                                             kTime,
                                             "91",
                                             "de000e",
                                             kType,
                                             kStored,
                                             kBlockHashes,
                                             "91cf0b368b33d87bf3bf",
                                             kParent,
                                             "c0",
                                             kTokenIds,
                                             "980102030405060708",
                                             kBlockSize,
                                             "04",
                                             kLoraId,
                                             "01",
                                             kMedium,
                                             "a3475055",
                                             kLoraName,
                                             "a76d792d6c6f7261",
                                             "aa65787472615f6b657973",
                                             "9193a76d792d6c6f726192a43966306103a473616c74",
                                             kGroup,
                                             "01",
                                             kKind,
                                             "ae736c6964696e675f77696e646f77",
                                             kWindow,
                                             "cc80",
                                             kSession,
                                             "a3732d31",
                                             "b36c6f6f6b61686561645f746f6b656e5f696473",
                                             "919109",
                                             "00"}));
  EXPECT_EQ(Values(event), std::vector<uint64_t>{kHash1});
  // Two blocks of tokens and one hash: what is not cached any more has none.
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(event.look_ahead, 1u);
  EXPECT_EQ(event.group, 1u);
  EXPECT_EQ(event.spec_kind, "sliding_window");
  EXPECT_EQ(event.sliding_window, 128u);
  EXPECT_EQ(event.session_id, "s-1");
  EXPECT_EQ(event.lora_name, "my-lora");
  ASSERT_EQ(event.extra_keys.size(), 1u);
  EXPECT_EQ(event.extra_keys[0].size(), 3u);
  EXPECT_TRUE(event.block_offsets.empty());
}

TEST_F(DecoderVectorsTest, StatesOfVllm033ThatAreNotKeptAreAStoreOfNothing) {
  const EngineEvent& event =
      DecodeOne(Join({"93",      kTime,        "91",       "de000a",       kType,
                      kStored,   kBlockHashes, "90",       kParent,        "cf7b0bf7bf7fd01682",
                      kTokenIds, "9405060708", kBlockSize, "04",           kLoraId,
                      "c0",      kMedium,      "a3475055", kLoraName,      "c0",
                      kGroup,    "02",         kKind,      "a56d616d6261", "00"}));
  EXPECT_TRUE(event.hashes.empty());
  EXPECT_EQ(event.tokens.size(), 4u);
  EXPECT_EQ(event.spec_kind, "mamba");
}

TEST_F(DecoderVectorsTest, RemovalOfVllm033FromASecondTierAndAClear) {
  const EngineBatch& batch =
      Decode(Join({"93", kTime, "92", "86", kType, kRemoved, kBlockHashes, kHashes0, kMedium,
                   "a3435055", kGroup, "01", "a86c6f63616c697479a54c4f43414c",
                   "a96f776e657273686970a26673", "81", kType, kCleared, "00"}));
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].group, 1u);
  EXPECT_EQ(batch.events[0].medium, "CPU");
  EXPECT_EQ(batch.events[0].locality, "LOCAL");
  EXPECT_EQ(batch.events[0].ownership, "fs");
  EXPECT_EQ(batch.events[1].kind, EngineEvent::Kind::kCleared);
}

TEST_F(DecoderVectorsTest, PlaceholderOfVllm033UnderADigest) {
  const EngineEvent& event =
      DecodeOne(Join({"93",
                      kTime,
                      "91",
                      "de000c",
                      kType,
                      kStored,
                      kBlockHashes,
                      "91c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
                      kParent,
                      "c0",
                      kTokenIds,
                      "90",
                      kBlockSize,
                      "00",
                      kLoraId,
                      "c0",
                      kMedium,
                      "a753544f52414745",
                      kLoraName,
                      "c0",
                      kGroup,
                      "01",
                      kKind,
                      "b76368756e6b65645f6c6f63616c5f617474656e74696f6e",
                      "a86c6f63616c697479a652454d4f5445",
                      "a96f776e657273686970a26673",
                      "00"}));
  ASSERT_EQ(event.hashes.size(), 1u);
  EXPECT_EQ(event.hashes[0].value, 0x18191a1b1c1d1e1fu);
  EXPECT_EQ(event.medium, "STORAGE");
  EXPECT_EQ(event.spec_kind, "chunked_local_attention");
  EXPECT_FALSE(event.sliding_window.has_value());
  EXPECT_EQ(event.locality, "REMOTE");
}

// The field that is proposed, behind those of vLLM 0.33.
TEST_F(DecoderVectorsTest, OffsetsOfSparseBlocks) {
  const EngineEvent& event = DecodeOne(Join({"93",
                                             kTime,
                                             "91",
                                             "de000c",
                                             kType,
                                             kStored,
                                             kBlockHashes,
                                             "92cf7b0bf7bf7fd01682cf0b368b33d87bf3bf",
                                             kParent,
                                             "c0",
                                             kTokenIds,
                                             "9c0102030405060708090a0b0c",
                                             kBlockSize,
                                             "04",
                                             kLoraId,
                                             "c0",
                                             kMedium,
                                             "a3475055",
                                             kLoraName,
                                             "c0",
                                             kGroup,
                                             "01",
                                             kKind,
                                             "b2736c6964696e675f77696e646f775f6d6c61",
                                             kWindow,
                                             "08",
                                             "ad626c6f636b5f6f666673657473",
                                             "920002",
                                             "00"}));
  EXPECT_EQ(Values(event), (std::vector<uint64_t>{kHash0, kHash1}));
  EXPECT_EQ(std::vector<uint32_t>(event.block_offsets.begin(), event.block_offsets.end()),
            (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(event.tokens.size(), 12u);
  EXPECT_EQ(event.spec_kind, "sliding_window_mla");
}

TEST_F(DecoderVectorsTest, StoreOfSglang0523WithSaltSessionAndAdapter) {
  const EngineEvent& event =
      DecodeOne(Join({"93",         kTime,    "91",     "8a",       kType,     kStored,
                      kBlockHashes, "92fb06", kParent,  "f9",       kTokenIds, "9401020304",
                      kBlockSize,   "02",     kLoraId,  "c0",       kMedium,   "a3475055",
                      kSalt,        "a174",   kSession, "a3732d31", kLoraName, "a76d792d6c6f7261",
                      "c0"}));
  EXPECT_EQ(Values(event), (std::vector<uint64_t>{static_cast<uint64_t>(-5), 6}));
  ASSERT_TRUE(event.parent.has_value());
  EXPECT_EQ(event.parent->value, static_cast<uint64_t>(-7));
  EXPECT_EQ(event.cache_salt, "t");
  EXPECT_EQ(event.session_id, "s-1");
  EXPECT_EQ(event.lora_name, "my-lora");
  EXPECT_EQ(event.component_form, ComponentForm::kNone);
  EXPECT_FALSE(batch_.rank.has_value());
}

TEST_F(DecoderVectorsTest, BigramsOfSglang0523InPinnedMemory) {
  const EngineEvent& event =
      DecodeOne(Join({"93", kTime, "91", "87", kType, kStored, kBlockHashes, "91fb", kParent, "c0",
                      kTokenIds, "92920102920203", kBlockSize, "02", kLoraId, "c0", kMedium,
                      "aa4350555f50494e4e4544", "c0"}));
  EXPECT_EQ(event.look_ahead, 1u);
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(event.medium, "CPU_PINNED");
}

TEST_F(DecoderVectorsTest, RemovalAndClearOfSglang0523) {
  const EngineBatch& batch =
      Decode(Join({"93", kTime, "92", "83", kType, kRemoved, kBlockHashes, "91fb", kMedium,
                   "a845585445524e414c", "81", kType, kCleared, "03"}));
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].medium, "EXTERNAL");
  EXPECT_EQ(batch.events[1].kind, EngineEvent::Kind::kCleared);
  EXPECT_EQ(batch.rank, 3);
}

// The fields that are proposed, behind those of SGLang 0.5.23, and in tuples behind the medium.
TEST_F(DecoderVectorsTest, SnapshotOfComponentsInAMapAndInATuple) {
  const EngineEvent& map = DecodeOne(Join({"93",
                                           kTime,
                                           "91",
                                           "88",
                                           kType,
                                           kStored,
                                           kBlockHashes,
                                           "92fb06",
                                           kParent,
                                           "c0",
                                           kTokenIds,
                                           "9401020304",
                                           kBlockSize,
                                           "02",
                                           kLoraId,
                                           "c0",
                                           kMedium,
                                           "a3475055",
                                           "af636f6d706f6e656e745f7479706573",
                                           "92a466756c6ca3737761",
                                           "c0"}));
  EXPECT_EQ(map.component_form, ComponentForm::kSnapshot);
  EXPECT_EQ(map.components, kComponentFull | kComponentSwa);
  const EngineEvent& tuple =
      DecodeOne(Join({"93", kTime, "91", "98", kStored, "92fb06", "c0", "9401020304", "02", "c0",
                      "a3475055", "92a466756c6ca56d616d6261", "c0"}));
  EXPECT_EQ(tuple.component_form, ComponentForm::kSnapshot);
  EXPECT_EQ(tuple.components, kComponentFull | kComponentMamba);
}

TEST_F(DecoderVectorsTest, OneComponentInMapsAndInTuples) {
  Decode(Join({"93",           kTime,          "92",       "88",           kType,      kStored,
               kBlockHashes,   "9106",         kParent,    "c0",           kTokenIds,  "920304",
               kBlockSize,     "02",           kLoraId,    "c0",           kMedium,    "a3475055",
               kComponentType, "a56d616d6261", "84",       kType,          kRemoved,   kBlockHashes,
               "9106",         kMedium,        "a3475055", kComponentType, "a3737761", "c0"}));
  ASSERT_EQ(batch_.events.size(), 2u);
  EXPECT_EQ(batch_.events[0].component_form, ComponentForm::kOne);
  EXPECT_EQ(batch_.events[0].components, kComponentMamba);
  EXPECT_EQ(batch_.events[1].component_form, ComponentForm::kOne);
  EXPECT_EQ(batch_.events[1].components, kComponentSwa);
  Decode(Join({"93", kTime, "92", "98", kStored, "9106", "c0", "920304", "02", "c0", "a3475055",
               "a3737761", "94", kRemoved, "9106", "a3475055", "a3737761", "c0"}));
  ASSERT_EQ(batch_.events.size(), 2u);
  for (const EngineEvent& event : batch_.events) {
    EXPECT_EQ(event.component_form, ComponentForm::kOne);
    EXPECT_EQ(event.components, kComponentSwa);
  }
}

TEST_F(DecoderVectorsTest, MooncakesMasterStoresWithoutTokens) {
  const EngineEvent& event = DecodeOne(
      "93 cf00000194ed27dc00 91 de0014 a86576656e745f6964 01 a974696d657374616d70 "
      "cf00000194ed27dc00 aa6576656e745f74797065 a673746f726564 a474797065 "
      "ab426c6f636b53746f726564 aa6d6f64656c5f6e616d65 c0 aa626c6f636b5f73697a65 c0 "
      "af6164646974696f6e616c5f73616c74 c0 a96c6f72615f6e616d65 c0 "
      "a974656e616e745f6964 a764656661756c74 aa6261636b656e645f6964 a26e30 a867726f75705f6964 c0 "
      "a66d656469756d a3637075 a764705f72616e6b c0 aa6f626a6563745f6b6579 "
      "aa31323334353637383930 aa7365715f686173686573 91ce499602d2 ac626c6f636b5f686173686573 "
      "91ce499602d2 ae626173655f626c6f636b5f696478 00 ab706172656e745f68617368 c0 "
      "a9746f6b656e5f696473 c0 b1706172656e745f626c6f636b5f68617368 c0 00");
  EXPECT_TRUE(event.envelope);
  EXPECT_EQ(event.kind, EngineEvent::Kind::kStored);
  EXPECT_EQ(Values(event), std::vector<uint64_t>{1234567890});
  EXPECT_EQ(event.tenant_id, "default");
  EXPECT_EQ(event.backend_id, "n0");
  EXPECT_EQ(event.medium, "cpu");
  EXPECT_EQ(event.base_block, 0u);
  EXPECT_EQ(event.block_size, 0u);
  EXPECT_TRUE(event.tokens.empty());
  EXPECT_FALSE(event.parent.has_value());
  EXPECT_FALSE(event.rank.has_value());
  EXPECT_EQ(batch_.time_s, 0x194ed27dc00 / 1000.0);
  EXPECT_EQ(batch_.rank, 0);
}

}  // namespace
}  // namespace kvatlas
