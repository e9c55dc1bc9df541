// Frames that engines wrote, byte for byte, and what they say.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/engines/decoder_test_util.h"
#include "indexer/engines/engine_decoder.h"
#include "indexer/engines/engine_event.h"

namespace kvatlas {
namespace {

// Common to the frames: 1700000000.5 s, two hashes, "BlockStored", "GPU".
constexpr std::string_view kTime = "cb41d954fc40200000";
constexpr uint64_t kHash0 = 0x7b0bf7bf7fd01682;
constexpr uint64_t kHash1 = 0x0b368b33d87bf3bf;
constexpr std::string_view kStored = "ab426c6f636b53746f726564";
constexpr std::string_view kHashes0 = "91cf7b0bf7bf7fd01682";

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
  EXPECT_TRUE(event.bigrams);
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
