// The decoder on each form that engines use, and on forms that none should use.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/hash.h"
#include "indexer/kv_events/decoder_forms_test_util.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {
namespace {

// ---- Tuples and maps ----

TEST_F(DecoderFormsTest, TupleAndMapEventsAreEqual) {
  const std::string map = ToText(DecodeOne(StoreMap({{"lora_id", Nil()},
                                                     {"medium", Text("CPU")},
                                                     {"lora_name", Text("a")},
                                                     {"extra_keys", Array({Nil()})},
                                                     {"group_idx", Number(3)},
                                                     {"kv_cache_spec_kind", Text("mamba")}})));
  EXPECT_EQ(ToText(DecodeOne(StoreTuple(
                {Nil(), Text("CPU"), Text("a"), Array({Nil()}), Number(3), Text("mamba")}))),
            map);
}

TEST_F(DecoderFormsTest, ExtraTrailingElementsAreIgnored) {
  const std::string expected =
      ToText(DecodeOne(StoreTuple({Nil(), Nil(), Nil(), Nil(), Number(0), Text("mla_attention"),
                                   Number(9), Text("LOCAL"), Text("kvcr")})));
  EXPECT_EQ(ToText(DecodeOne(
                StoreTuple({Nil(), Nil(), Nil(), Nil(), Number(0), Text("mla_attention"), Number(9),
                            Text("LOCAL"), Text("kvcr"), Number(1), Map({}), Text("x")}))),
            expected);
}

TEST_F(DecoderFormsTest, MissingFieldsHaveTheirDefaults) {
  const EngineEvent& event = DecodeOne(StoreMap());
  EXPECT_EQ(event.lora_name, "");
  EXPECT_EQ(event.medium, "");
  EXPECT_EQ(event.locality, "");
  EXPECT_EQ(event.ownership, "");
  EXPECT_FALSE(event.cache_salt.has_value());
  EXPECT_FALSE(event.group.has_value());
  EXPECT_FALSE(event.lora_id.has_value());
  EXPECT_FALSE(event.envelope);
  EXPECT_EQ(ToText(DecodeOne(StoreTuple())), ToText(DecodeOne(StoreMap())));
}

TEST_F(DecoderFormsTest, TagMayStandLast) {
  const EngineEvent& event = DecodeOne(Map({{"block_size", Number(4)},
                                            {"token_ids", Numbers({1, 2, 3, 4})},
                                            {"block_hashes", Numbers({7})},
                                            {"type", Text("BlockStored")}}));
  EXPECT_EQ(event.kind, EngineEvent::Kind::kStored);
}

TEST_F(DecoderFormsTest, OldAndNewFieldsCoexistByName) {
  const EngineEvent& event = DecodeOne(StoreMap({{"lookahead_token_ids", Numbers({5})},
                                                 {"skipped_token_ids", Nil()},
                                                 {"origin", Text("NEW")},
                                                 {"session_id", Text("s")},
                                                 {"locality", Text("LOCAL")},
                                                 {"ownership", Text("kvcr")}}));
  EXPECT_EQ(event.session_id, "s");
  EXPECT_EQ(event.locality, "LOCAL");
  EXPECT_EQ(event.ownership, "kvcr");
}

TEST_F(DecoderFormsTest, OfAFieldNamedTwiceTheLastCounts) {
  EXPECT_EQ(DecodeOne(StoreMap({{"medium", Text("CPU")}, {"medium", Text("DISK")}})).medium,
            "DISK");
  EXPECT_EQ(DecodeOne(StoreMap({{"medium", Text("CPU")}, {"medium", Nil()}})).medium, "");
}

TEST_F(DecoderFormsTest, KeysThatAreNoTextAreSkipped) {
  MsgpackWriter out;
  out.Map(3).Unsigned(5).Nil().Text("type").Text("AllBlocksCleared").Array(0).Bool(true);
  ASSERT_TRUE(DecodeBytes(BatchOf(1, out.bytes())).ok());
  ASSERT_EQ(batch_.events.size(), 1u);
  EXPECT_EQ(batch_.events[0].kind, EngineEvent::Kind::kCleared);
}

TEST_F(DecoderFormsTest, IgnoredIsAnEventOfItsOwn) {
  EXPECT_EQ(DecodeOne(Array({Text("Ignored")})).kind, EngineEvent::Kind::kIgnored);
}

TEST_F(DecoderFormsTest, PlaceholderWithoutContentIsDecoded) {
  const EngineEvent& event = DecodeOne(Map({{"type", Text("BlockStored")},
                                            {"block_hashes", Numbers({1, 2})},
                                            {"parent_block_hash", Nil()},
                                            {"token_ids", Numbers({})},
                                            {"block_size", Number(0)},
                                            {"lora_id", Nil()},
                                            {"medium", Text("CPU")},
                                            {"lora_name", Nil()}}));
  EXPECT_EQ(event.hashes.size(), 2u);
  EXPECT_TRUE(event.tokens.empty());
  EXPECT_EQ(event.block_size, 0u);
}

TEST_F(DecoderFormsTest, ParentZeroIsAParent) {
  const EngineEvent& event =
      DecodeOne(Array({Text("BlockStored"), Numbers({7}), Number(0), Numbers({1}), Number(1)}));
  ASSERT_TRUE(event.parent.has_value());
  EXPECT_EQ(event.parent->value, 0u);
}

// ---- Tails of tuples ----

TEST_F(DecoderFormsTest, FixedTailHasLocalityAndOwnership) {
  const EngineEvent& event =
      DecodeOne(StoreTuple({Nil(), Text("GPU"), Nil(), Nil(), Number(1), Text("sliding_window"),
                            Number(128), Text("REMOTE"), Text("kvcr")}));
  EXPECT_EQ(event.group, 1u);
  EXPECT_EQ(event.spec_kind, "sliding_window");
  EXPECT_EQ(event.sliding_window, 128u);
  EXPECT_EQ(event.locality, "REMOTE");
  EXPECT_EQ(event.ownership, "kvcr");
}

TEST_F(DecoderFormsTest, FixedTailGoesByPlaceWhereValuesAreNil) {
  const EngineEvent& event =
      DecodeOne(StoreTuple({Nil(), Nil(), Nil(), Nil(), Nil(), Nil(), Number(64), Text("LOCAL")}));
  EXPECT_FALSE(event.group.has_value());
  EXPECT_EQ(event.spec_kind, "");
  EXPECT_EQ(event.sliding_window, 64u);
  EXPECT_EQ(event.locality, "LOCAL");
}

TEST_F(DecoderFormsTest, LegacyTailBeginsWithMultimodalObjects) {
  const Write infos =
      Array({Nil(), Map({{"mm_objects", Array({Map({{"mm_hash", Number(42)},
                                                    {"offsets", Array({Numbers({0, 4})})}})})}})});
  const EngineEvent& event = DecodeOne(StoreTuple(
      {Nil(), Nil(), Nil(), Nil(), infos, Number(2), Text("full_attention"), Number(77)}));
  EXPECT_EQ(event.group, 2u);
  EXPECT_EQ(event.spec_kind, "full_attention");
  EXPECT_EQ(event.sliding_window, 77u);
  ASSERT_EQ(event.multimodal.size(), 2u);
  EXPECT_TRUE(event.multimodal[0].empty());
  EXPECT_EQ(event.multimodal[1][0], 42u);
}

TEST_F(DecoderFormsTest, LegacyTailWithoutObjectsIsToldByItsTypes) {
  const EngineEvent& event = DecodeOne(
      StoreTuple({Nil(), Nil(), Nil(), Nil(), Nil(), Number(3), Text("mla_attention"), Nil()}));
  EXPECT_EQ(event.group, 3u);
  EXPECT_EQ(event.spec_kind, "mla_attention");
  EXPECT_FALSE(event.sliding_window.has_value());
}

TEST_F(DecoderFormsTest, ValueOfAWrongTypeInATailIsIgnored) {
  MsgpackWriter out;
  out.Array(7).Text("BlockRemoved").Array(1).Unsigned(7).Text("GPU");
  out.Unsigned(4).Text("mamba").Bool(true).Text("LOCAL");
  ASSERT_TRUE(DecodeBytes(BatchOf(1, out.bytes())).ok());
  ASSERT_EQ(batch_.events.size(), 1u);
  EXPECT_EQ(batch_.events[0].group, 4u);
  EXPECT_EQ(batch_.events[0].spec_kind, "mamba");
  EXPECT_EQ(batch_.events[0].locality, "LOCAL");
}

TEST_F(DecoderFormsTest, RemovalsHaveTheSameTail) {
  const EngineEvent& event =
      DecodeOne(Array({Text("BlockRemoved"), Numbers({7}), Text("GPU"), Number(5),
                       Text("full_attention"), Nil(), Text("REMOTE")}));
  EXPECT_EQ(event.group, 5u);
  EXPECT_EQ(event.locality, "REMOTE");
}

TEST_F(DecoderFormsTest, OwnershipIsDecodedInTuplesAndMaps) {
  EXPECT_EQ(DecodeOne(Array({Text("AllBlocksCleared"), Text("kvcr")})).ownership, "kvcr");
  EXPECT_EQ(
      DecodeOne(Map({{"type", Text("AllBlocksCleared")}, {"ownership", Text("kvcr")}})).ownership,
      "kvcr");
  EXPECT_EQ(DecodeOne(RemoveMap({{"ownership", Text("other")}})).ownership, "other");
  EXPECT_EQ(DecodeOne(StoreMap({{"ownership", Text("")}})).ownership, "");
}

TEST_F(DecoderFormsTest, LocalityAndMediumStayAsSpelled) {
  const EngineEvent& event =
      DecodeOne(StoreMap({{"locality", Text("Local")}, {"medium", Text("gpu")}}));
  EXPECT_EQ(event.locality, "Local");
  EXPECT_EQ(event.medium, "gpu");
}

// ---- Components of hybrid models (SGLang) ----

// Before they were known, a list at the place of the adapter's name cost every store its event.
TEST_F(DecoderFormsTest, ListOfComponentsAtTheEighthPlaceIsNoAdapter) {
  const EngineEvent& event =
      DecodeOne(StoreTuple({Nil(), Text("GPU"), Array({Text("full"), Text("swa")})}));
  EXPECT_EQ(event.kind, EngineEvent::Kind::kStored);
  EXPECT_EQ(event.medium, "GPU");
  EXPECT_EQ(event.lora_name, "");
  EXPECT_EQ(event.component_form, ComponentForm::kSnapshot);
  EXPECT_EQ(event.components, kComponentFull | kComponentSwa);
}

TEST_F(DecoderFormsTest, WithoutComponentsNothingIsSaidOfThem) {
  for (const Write& event :
       {StoreMap(), StoreMap({{"component_types", Nil()}, {"component_type", Nil()}}), StoreTuple(),
        StoreTuple({Nil(), Text("GPU"), Nil()}), RemoveMap(),
        RemoveMap({{"component_type", Nil()}})}) {
    EXPECT_EQ(DecodeOne(event).component_form, ComponentForm::kNone);
    EXPECT_EQ(batch_.events[0].components, 0);
  }
}

TEST_F(DecoderFormsTest, SnapshotOfComponentsIsTheSetOfItsLabels) {
  const auto components_of = [&](const Write& labels) -> int {
    const EngineEvent& event = DecodeOne(StoreMap({{"component_types", labels}}));
    EXPECT_EQ(event.component_form, ComponentForm::kSnapshot);
    return event.components;
  };
  EXPECT_EQ(components_of(Array({Text("full")})), kComponentFull);
  EXPECT_EQ(components_of(Array({Text("mamba"), Text("swa"), Text("mamba")})),
            kComponentSwa | kComponentMamba);
  EXPECT_EQ(components_of(Array({Text("full"), Text("c128"), Text("auxiliary_swa")})),
            kComponentFull | kComponentUnknown);
  EXPECT_EQ(components_of(Array({Text("SWA")})), kComponentUnknown);
  EXPECT_EQ(components_of(Array({Text("")})), kComponentUnknown);
  EXPECT_EQ(components_of(Array({})), 0);
}

TEST_F(DecoderFormsTest, OneComponentOfAStoreAndOfARemoval) {
  for (const auto& [label, bit] : {std::pair<std::string_view, uint8_t>{"full", kComponentFull},
                                   {"swa", kComponentSwa},
                                   {"mamba", kComponentMamba},
                                   {"c128", kComponentUnknown}}) {
    for (const Write& event : {StoreMap({{"component_type", Text(label)}}),
                               RemoveMap({{"component_type", Text(label)}})}) {
      EXPECT_EQ(DecodeOne(event).component_form, ComponentForm::kOne);
      EXPECT_EQ(batch_.events[0].components, bit);
    }
  }
}

TEST_F(DecoderFormsTest, OneComponentGoesBeforeASnapshot) {
  const EngineEvent& event = DecodeOne(
      StoreMap({{"component_type", Text("swa")}, {"component_types", Array({Text("full")})}}));
  EXPECT_EQ(event.component_form, ComponentForm::kOne);
  EXPECT_EQ(event.components, kComponentSwa);
}

TEST_F(DecoderFormsTest, LabelAtTheEighthPlaceIsAnAdapterWhereItHasANumber) {
  const EngineEvent& component = DecodeOne(StoreTuple({Nil(), Text("GPU"), Text("swa")}));
  EXPECT_EQ(component.component_form, ComponentForm::kOne);
  EXPECT_EQ(component.components, kComponentSwa);
  EXPECT_EQ(component.lora_name, "");
  const EngineEvent& adapter = DecodeOne(StoreTuple({Number(1), Text("GPU"), Text("swa")}));
  EXPECT_EQ(adapter.component_form, ComponentForm::kNone);
  EXPECT_EQ(adapter.lora_name, "swa");
  EXPECT_EQ(DecodeOne(StoreTuple({Nil(), Text("GPU"), Text("c128")})).lora_name, "c128");
}

TEST_F(DecoderFormsTest, LabelBehindTheMediumOfARemovalIsItsComponent) {
  const EngineEvent& event = DecodeOne(Array(
      {Text("BlockRemoved"), Numbers({7}), Text("GPU"), Text("mamba"), Number(3), Text("mamba")}));
  EXPECT_EQ(event.component_form, ComponentForm::kOne);
  EXPECT_EQ(event.components, kComponentMamba);
  EXPECT_EQ(event.group, 3u);
  EXPECT_EQ(event.spec_kind, "mamba");
  const EngineEvent& of_vllm =
      DecodeOne(Array({Text("BlockRemoved"), Numbers({7}), Text("GPU"), Number(3), Text("mamba")}));
  EXPECT_EQ(of_vllm.component_form, ComponentForm::kNone);
  EXPECT_EQ(of_vllm.spec_kind, "mamba");
}

TEST_F(DecoderFormsTest, ComponentsMayStandInTheMetadata) {
  const EngineEvent& event =
      DecodeOne(StoreTuple({Nil(), Text("GPU"),
                            Map({{"cache_salt", Text("t")},
                                 {"component_types", Array({Text("full"), Text("mamba")})}})}));
  EXPECT_EQ(event.cache_salt, "t");
  EXPECT_EQ(event.component_form, ComponentForm::kSnapshot);
  EXPECT_EQ(event.components, kComponentFull | kComponentMamba);
}

TEST_F(DecoderFormsTest, ComponentsThatCannotBeReadCostTheirEvent) {
  for (const Write& types : {Text("full"), Number(1), Map({}), Array({Number(0)}), Array({Nil()}),
                             Array({Text("full"), Bytes("swa")})}) {
    ExpectRefused(StoreMap({{"component_types", types}}), Refusal::kMalformed);
    ExpectRefused(RemoveMap({{"component_types", types}}), Refusal::kMalformed);
  }
  for (const Write& type : {Array({Text("full")}), Number(1), Bytes("swa")}) {
    ExpectRefused(StoreMap({{"component_type", type}}), Refusal::kMalformed);
    ExpectRefused(RemoveMap({{"component_type", type}}), Refusal::kMalformed);
    EXPECT_EQ(batch_.lost_before, 1u);
  }
  ExpectRefused(StoreTuple({Nil(), Text("GPU"), Numbers({1})}), Refusal::kMalformed);
  EXPECT_EQ(
      DecodeOne(Map({{"type", Text("AllBlocksCleared")}, {"component_type", Number(1)}})).kind,
      EngineEvent::Kind::kCleared);
}

// ---- Which chunk of the tokens a hash is (vLLM) ----

TEST_F(DecoderFormsTest, OffsetsOfBlocksAreAsSaid) {
  const EngineEvent& event = DecodeOne(StoreMap(
      {{"block_offsets", Numbers({200, 0, 0xffffffff})}, {"block_hashes", Numbers({7, 8, 9})}}));
  EXPECT_EQ(std::vector<uint32_t>(event.block_offsets.begin(), event.block_offsets.end()),
            (std::vector<uint32_t>{200, 0, 0xffffffff}));
  EXPECT_EQ(event.hashes.size(), 3u);
  EXPECT_TRUE(DecodeOne(StoreMap()).block_offsets.empty());
  EXPECT_TRUE(DecodeOne(StoreMap({{"block_offsets", Nil()}})).block_offsets.empty());
  EXPECT_TRUE(DecodeOne(StoreMap({{"block_offsets", Numbers({})}, {"block_hashes", Numbers({})}}))
                  .block_offsets.empty());
}

TEST_F(DecoderFormsTest, OffsetsOfOtherBlocksCostTheStore) {
  for (const Write& offsets :
       {Numbers({}), Numbers({0, 1}), Numbers({-1}), Numbers({0x100000000}), Array({Nil()}),
        Array({Text("0")}), Array({Numbers({0})}), Number(0), Text("0"), Map({})}) {
    ExpectRefused(StoreMap({{"block_offsets", offsets}}), Refusal::kMalformed);
    EXPECT_FALSE(batch_.lost_before.has_value());
    EXPECT_EQ(DecodeOne(RemoveMap({{"block_offsets", offsets}})).block_offsets.size(), 0u);
  }
  ExpectRefused(StoreMap({{"block_offsets", Numbers(std::vector<int64_t>(1000, 1))}}),
                Refusal::kTooLarge, {.memory_bytes_max = 2048});
}

// ---- Namespaces and keys ----

TEST_F(DecoderFormsTest, SaltOfSglangInItsMapAndInItsMetadata) {
  EXPECT_EQ(DecodeOne(StoreMap({{"cache_salt", Text("t")}})).cache_salt, "t");
  EXPECT_EQ(DecodeOne(StoreMap({{"cache_salt", Text("")}})).cache_salt, "");
  EXPECT_FALSE(DecodeOne(StoreMap({{"cache_salt", Nil()}})).cache_salt.has_value());
  const EngineEvent& event = DecodeOne(StoreTuple(
      {Nil(), Text("GPU"),
       Map({{"cache_salt", Text("t")}, {"lora_name", Text("a")}, {"medium", Text("CPU")}}), Nil(),
       Number(0)}));
  EXPECT_EQ(event.cache_salt, "t");
  EXPECT_EQ(event.lora_name, "a");
  EXPECT_EQ(event.medium, "GPU");
  EXPECT_EQ(event.group, 0u);
}

TEST_F(DecoderFormsTest, ExtraKeysStayAsTheyAre) {
  const std::string digest(64, 'a');
  const EngineEvent& event = DecodeOne(StoreMap(
      {{"extra_keys", Array({Array({Text(digest), Text("dynamo-cache-salt:t"), Bytes("\x01"),
                                    Number(-5), Array({Text("id"), Number(-3), Text("later")})}),
                             Nil(), Array({})})}}));
  ASSERT_EQ(event.extra_keys.size(), 3u);
  const std::span<const ExtraKey> keys = event.extra_keys[0];
  ASSERT_EQ(keys.size(), 5u);
  EXPECT_EQ(keys[0].kind, ExtraKey::Kind::kText);
  EXPECT_EQ(keys[0].text, digest);
  EXPECT_EQ(keys[1].text, "dynamo-cache-salt:t");
  EXPECT_EQ(keys[2].kind, ExtraKey::Kind::kBytes);
  EXPECT_EQ(keys[2].text, "\x01");
  EXPECT_EQ(keys[3].kind, ExtraKey::Kind::kNumber);
  EXPECT_EQ(keys[3].offset, -5);
  EXPECT_EQ(keys[4].kind, ExtraKey::Kind::kTextAt);
  EXPECT_EQ(keys[4].offset, -3);
  EXPECT_TRUE(event.extra_keys[1].empty());
  EXPECT_TRUE(event.extra_keys[2].empty());
}

TEST_F(DecoderFormsTest, ExtraKeyThatNobodyKnowsCostsItsEvent) {
  // If it counted as none, the block would be found under the wrong content.
  ExpectRefused(StoreMap({{"extra_keys", Array({Array({Nil()})})}}), Refusal::kMalformed);
  ExpectRefused(StoreMap({{"extra_keys", Array({Array({Map({})})})}}), Refusal::kMalformed);
  ExpectRefused(StoreMap({{"extra_keys", Array({Text("id")})}}), Refusal::kMalformed);
  ExpectRefused(StoreMap({{"cache_salt", Bytes("t")}}), Refusal::kMalformed);
  ExpectRefused(StoreMap({{"lora_name", Number(1)}}), Refusal::kMalformed);
}

TEST_F(DecoderFormsTest, MultimodalKeysOfTensorRt) {
  const std::string digest = "0123456789abcdef" + std::string(48, '0');
  const EngineEvent& event =
      DecodeOne(StoreMap({{"mm_keys", Array({Array({}), Array({Map({{"type", Text("mm_key")},
                                                                    {"hash", Text(digest)},
                                                                    {"start_offset", Number(3)},
                                                                    {"uuid", Text("u")}})})})}}));
  ASSERT_EQ(event.multimodal.size(), 2u);
  ASSERT_EQ(event.multimodal[1].size(), 1u);
  EXPECT_EQ(event.multimodal[1][0], 0x0123456789abcdefu);
}

TEST_F(DecoderFormsTest, MultimodalObjectsOfDynamo) {
  const Write infos =
      Array({Map({{"mm_objects",
                   Array({Map({{"mm_hash", Number(-1)}}), Map({{"mm_hash", Number(5)}})})}}),
             Nil()});
  const EngineEvent& event = DecodeOne(StoreMap({{"block_mm_infos", infos}}));
  ASSERT_EQ(event.multimodal.size(), 2u);
  ASSERT_EQ(event.multimodal[0].size(), 2u);
  EXPECT_EQ(event.multimodal[0][0], UINT64_MAX);
  EXPECT_EQ(event.multimodal[0][1], 5u);
  EXPECT_TRUE(DecodeOne(StoreMap({{"block_mm_infos", Array({Nil(), Nil()})}})).multimodal.empty());
}

TEST_F(DecoderFormsTest, MultimodalObjectWithoutANameCostsItsEvent) {
  ExpectRefused(StoreMap({{"mm_keys", Array({Array({Map({{"start_offset", Number(3)}})})})}}),
                Refusal::kMalformed);
  ExpectRefused(StoreMap({{"mm_keys", Array({Array({Map({{"hash", Text("")}})})})}}),
                Refusal::kMalformed);
}

// ---- Hashes ----

TEST_F(DecoderFormsTest, NegativeHashIsItsBits) {
  const EngineEvent& event = DecodeOne(RemoveMap({{"block_hashes", Numbers({-1})}}));
  EXPECT_EQ(event.hashes[0], (EngineBlockHash{.value = UINT64_MAX, .bytes = {}}));
}

TEST_F(DecoderFormsTest, HexadecimalHashesAreTheirBytes) {
  const EngineEvent& event =
      DecodeOne(RemoveMap({{"block_hashes", Array({Text("7b0bf7bf7fd01682"), Text("0xFfe"),
                                                   Text("aa00000000000000000000000000000001")})}}));
  EXPECT_EQ(event.hashes[0].value, 0x7b0bf7bf7fd01682u);
  EXPECT_EQ(event.hashes[0].bytes, FromHex("7b0bf7bf7fd01682"));
  EXPECT_EQ(event.hashes[1].value, 0xffeu);
  EXPECT_EQ(event.hashes[1].bytes, FromHex("0ffe"));
  EXPECT_EQ(event.hashes[2].value, 1u);
  EXPECT_EQ(event.hashes[2].bytes.size(), 17u);
}

TEST_F(DecoderFormsTest, BytesHashesOfAnyLength) {
  const EngineEvent& event = DecodeOne(RemoveMap(
      {{"block_hashes", Array({Bytes("\x01\x02\x03\x04\x05\x06\x07\x08"), Bytes("\x01\x02"),
                               Bytes("ABCDEFGH\x01\x02\x03\x04\x05"
                                     "\x06\x07\x08")})}}));
  EXPECT_EQ(event.hashes[0].value, 0x0102030405060708u);
  EXPECT_EQ(event.hashes[1].value, 0x0102u);
  EXPECT_EQ(event.hashes[2].value, 0x0102030405060708u);
  EXPECT_EQ(event.hashes[2].FirstBytes(), 0x4142434445464748u);
}

TEST_F(DecoderFormsTest, WhatIsNoHashCostsItsEvent) {
  for (const Write& hash :
       {Text("xyz"), Text(""), Text("0x"), Bytes(""), Nil(), Array({}), Map({})}) {
    ExpectRefused(RemoveMap({{"block_hashes", Array({Number(1), hash})}}), Refusal::kMalformed);
  }
  ExpectRefused(RemoveMap({{"block_hashes", Number(1)}}), Refusal::kMalformed);
  ExpectRefused(StoreMap({{"parent_block_hash", Text("root")}}), Refusal::kMalformed);
}

// ---- Tokens ----

TEST_F(DecoderFormsTest, BigramsAreWindowsOfOneStream) {
  const EngineEvent& event =
      DecodeOne(StoreMap({{"token_ids", Array({Numbers({10, 11}), Numbers({11, 12}),
                                               Numbers({12, 13}), Numbers({13, 14})})},
                          {"block_size", Number(2)}}));
  EXPECT_EQ(event.look_ahead, 1u);
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{10, 11, 12, 13, 14}));
}

TEST_F(DecoderFormsTest, BlocksThatSayWhatTokenFollowsThemAreBigrams) {
  const EngineEvent& event = DecodeOne(StoreMap({{"lookahead_token_ids", Array({Numbers({5})})}}));
  EXPECT_EQ(event.look_ahead, 1u);
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3, 4, 5}));
}

TEST_F(DecoderFormsTest, AllTokensThatFollowABlockAreKept) {
  const EngineEvent& event =
      DecodeOne(StoreMap({{"lookahead_token_ids", Array({Numbers({5, 6, 7})})}}));
  EXPECT_EQ(event.look_ahead, 3u);
  EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(DecoderFormsTest, WhatElseIsSaidOfTokensThatFollowIsIgnored) {
  for (const Write& lookahead :
       {Nil(), Numbers({5}), Array({}), Array({Numbers({})}), Array({Numbers({-1})}),
        Array({Numbers({5}), Numbers({6})}), Array({Array({Text("5")})}), Text("5"),
        Numbers({5, 6}), Array({Numbers({5, -1})}),
        Array({Numbers(std::vector<int64_t>(32, 5))})}) {
    const EngineEvent& event = DecodeOne(StoreMap({{"lookahead_token_ids", lookahead}}));
    EXPECT_EQ(event.look_ahead, 0u);
    EXPECT_EQ(Tokens(event), (std::vector<TokenId>{1, 2, 3, 4}));
  }
}

TEST_F(DecoderFormsTest, BigramsThatDoNotOverlapAreOpaque) {
  const EngineEvent& event =
      DecodeOne(StoreMap({{"token_ids", Array({Numbers({10, 11}), Numbers({12, 13})})}}));
  EXPECT_TRUE(event.tokens_opaque);
  EXPECT_TRUE(event.tokens.empty());
}

TEST_F(DecoderFormsTest, TokensMixedWithStringsAreOpaque) {
  const EngineEvent& event =
      DecodeOne(StoreMap({{"token_ids", Array({Number(1), Text("9f0a"), Number(3)})}}));
  EXPECT_TRUE(event.tokens_opaque);
  EXPECT_TRUE(event.tokens.empty());
  EXPECT_EQ(event.hashes.size(), 1u);
}

TEST_F(DecoderFormsTest, TokensBeyond32BitsAreOpaque) {
  EXPECT_TRUE(DecodeOne(StoreMap({{"token_ids", Numbers({1, 0x100000000})}})).tokens_opaque);
  EXPECT_TRUE(DecodeOne(StoreMap({{"token_ids", Numbers({1, -1})}})).tokens_opaque);
  const EngineEvent& widest = DecodeOne(StoreMap({{"token_ids", Numbers({0, 0xffffffff})}}));
  EXPECT_FALSE(widest.tokens_opaque);
  EXPECT_EQ(Tokens(widest), (std::vector<TokenId>{0, 0xffffffff}));
}

TEST_F(DecoderFormsTest, NilTokensAndNoTokensAreNone) {
  EXPECT_TRUE(DecodeOne(StoreMap({{"token_ids", Nil()}})).tokens.empty());
  EXPECT_TRUE(DecodeOne(StoreMap({{"token_ids", Numbers({})}})).tokens.empty());
  const EngineEvent& without = DecodeOne(Map(
      {{"type", Text("BlockStored")}, {"block_hashes", Numbers({7})}, {"block_size", Number(4)}}));
  EXPECT_TRUE(without.tokens.empty());
  EXPECT_FALSE(without.tokens_opaque);
}

TEST_F(DecoderFormsTest, WhatIsNoTokenCostsItsEvent) {
  for (const Write& tokens :
       {Array({Number(1), Nil()}), Array({Number(1), Numbers({1, 2})}), Text("1 2 3"), Number(5),
        Array({Numbers({1, 2}), Number(3)}), Array({Numbers({1, 2, 3})}), Array({Numbers({1})})}) {
    ExpectRefused(StoreMap({{"token_ids", tokens}}), Refusal::kMalformed);
  }
}

TEST_F(DecoderFormsTest, TokensOfEveryWidthInListsOfEveryLength) {
  std::vector<int64_t> tokens;
  std::vector<TokenId> expected;
  for (TokenId i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(Tokens(DecodeOne(StoreMap({{"token_ids", Numbers(tokens)}}))), expected);
    const TokenId token = (i * 2654435761u) >> (i * 7 % 32);
    tokens.push_back(token);
    expected.push_back(token);
  }
}

TEST_F(DecoderFormsTest, OpaqueTokensDoNotHarmARemoval) {
  EXPECT_EQ(DecodeOne(RemoveMap({{"token_ids", Text("what?")}, {"extra_keys", Number(1)}})).kind,
            EngineEvent::Kind::kRemoved);
}

// ---- Mooncake's envelope ----

TEST_F(DecoderFormsTest, EnvelopeOfRfc1527) {
  const Pairs pairs = {{"event_id", Number(1)},
                       {"timestamp", Number(1700000000000)},
                       {"event_type", Text("stored")},
                       {"model_name", Text("m")},
                       {"block_size", Number(4)},
                       {"additional_salt", Text("s")},
                       {"lora_name", Text("a")},
                       {"tenant_id", Text("t")},
                       {"backend_id", Text("b")},
                       {"medium", Text("disk")},
                       {"dp_rank", Number(3)},
                       {"seq_hashes", Numbers({11, 12})},
                       {"base_block_idx", Number(9)},
                       {"parent_hash", Number(10)},
                       {"token_ids", Numbers({1, 2, 3, 4, 5, 6, 7, 8})}};
  const EngineEvent& event = DecodeOne(Map(pairs));
  EXPECT_TRUE(event.envelope);
  EXPECT_EQ(event.model_name, "m");
  EXPECT_EQ(event.additional_salt, "s");
  EXPECT_EQ(event.lora_name, "a");
  EXPECT_EQ(event.tenant_id, "t");
  EXPECT_EQ(event.backend_id, "b");
  EXPECT_EQ(event.medium, "disk");
  EXPECT_EQ(event.rank, 3);
  EXPECT_EQ(event.base_block, 9u);
  ASSERT_TRUE(event.parent.has_value());
  EXPECT_EQ(event.parent->value, 10u);
  ASSERT_EQ(event.hashes.size(), 2u);
  EXPECT_EQ(event.hashes[1].value, 12u);
  EXPECT_EQ(event.tokens.size(), 8u);
}

TEST_F(DecoderFormsTest, EnvelopeRemovesAndClears) {
  const EngineEvent& removed = DecodeOne(Map({{"event_type", Text("removed")},
                                              {"type", Text("BlockRemoved")},
                                              {"seq_hashes", Numbers({5})},
                                              {"base_block_idx", Nil()}}));
  EXPECT_EQ(removed.kind, EngineEvent::Kind::kRemoved);
  EXPECT_FALSE(removed.base_block.has_value());
  const EngineEvent& cleared = DecodeOne(
      Map({{"event_type", Text("cleared")}, {"tenant_id", Text("t")}, {"medium", Nil()}}));
  EXPECT_EQ(cleared.kind, EngineEvent::Kind::kCleared);
  EXPECT_EQ(cleared.tenant_id, "t");
}

TEST_F(DecoderFormsTest, BlockHashesGoBeforeSequenceHashes) {
  const EngineEvent& both = DecodeOne(Map({{"event_type", Text("removed")},
                                           {"seq_hashes", Numbers({5})},
                                           {"block_hashes", Numbers({-5})}}));
  EXPECT_EQ(both.hashes[0].value, static_cast<uint64_t>(-5));
  const EngineEvent& none_of_its_own = DecodeOne(Map({{"event_type", Text("removed")},
                                                      {"seq_hashes", Numbers({5})},
                                                      {"block_hashes", Numbers({})}}));
  EXPECT_EQ(none_of_its_own.hashes[0].value, 5u);
}

TEST_F(DecoderFormsTest, EnvelopeWithoutHashesNamesNoBlock) {
  const EngineEvent& event = DecodeOne(Map({{"event_type", Text("stored")},
                                            {"block_size", Nil()},
                                            {"object_key", Text("some/object")},
                                            {"seq_hashes", Numbers({})},
                                            {"block_hashes", Numbers({})}}));
  EXPECT_TRUE(event.hashes.empty());
}

// ---- Refusals ----

TEST_F(DecoderFormsTest, UnknownTagCostsItselfAlone) {
  ExpectRefused(Array({Text("BlockInactive"), Numbers({1})}), Refusal::kUnknownTag);
  ExpectRefused(Map({{"type", Text("BlockInactive")}}), Refusal::kUnknownTag);
  ExpectRefused(Map({{"event_type", Text("updated")}, {"type", Text("BlockStored")}}),
                Refusal::kUnknownTag);
}

TEST_F(DecoderFormsTest, MissingFieldsCostTheirEventAlone) {
  ExpectRefused(Array({Text("BlockStored")}), Refusal::kMissingField);
  ExpectRefused(Array({Text("BlockStored"), Numbers({1}), Nil(), Numbers({1})}),
                Refusal::kMissingField);
  ExpectRefused(Array({Text("BlockRemoved"), Nil()}), Refusal::kMissingField);
  ExpectRefused(Map({{"type", Text("BlockRemoved")}, {"medium", Text("GPU")}}),
                Refusal::kMissingField);
  ExpectRefused(StoreMap({{"block_size", Nil()}}), Refusal::kMissingField);
}

TEST_F(DecoderFormsTest, WhatIsNoEventCostsItselfAlone) {
  ExpectRefused(Text("AllBlocksCleared"), Refusal::kMalformed);
  ExpectRefused(Nil(), Refusal::kMalformed);
  ExpectRefused(Number(1), Refusal::kMalformed);
  ExpectRefused(Array({}), Refusal::kMalformed);
  ExpectRefused(Array({Number(1), Numbers({1})}), Refusal::kMalformed);
  ExpectRefused(Map({}), Refusal::kMalformed);
  ExpectRefused(Map({{"type", Number(1)}, {"block_hashes", Numbers({1})}}), Refusal::kMalformed);
}

TEST_F(DecoderFormsTest, FieldsOfWrongTypesCostTheirEventAlone) {
  for (const std::string_view key : {"medium", "locality", "ownership", "group_idx",
                                     "kv_cache_spec_kind", "model_name", "dp_rank"}) {
    SCOPED_TRACE(key);
    ExpectRefused(StoreMap({{key, Array({})}}), Refusal::kMalformed);
    ExpectRefused(RemoveMap({{key, Array({})}}), Refusal::kMalformed);
  }
  ExpectRefused(StoreMap({{"block_size", Number(-1)}}), Refusal::kMalformed);
  ExpectRefused(StoreMap({{"block_size", Text("16")}}), Refusal::kMalformed);
}

TEST_F(DecoderFormsTest, ClearNeedsNothingButItsTag) {
  EXPECT_EQ(DecodeOne(Map({{"type", Text("AllBlocksCleared")},
                           {"medium", Array({Text("GPU"), Text("CPU")})}}))
                .kind,
            EngineEvent::Kind::kCleared);
}

TEST_F(DecoderFormsTest, LongHashIsTooLarge) {
  const std::string hash(40, 'h');
  const DecoderOptions options = {.hash_bytes_max = 32};
  ExpectRefused(RemoveMap({{"block_hashes", Array({Bytes(hash)})}}), Refusal::kTooLarge, options);
  ExpectRefused(StoreMap({{"parent_block_hash", Text(std::string(66, 'a'))}}), Refusal::kTooLarge,
                options);
  Decode({RemoveMap({{"block_hashes", Array({Bytes(hash.substr(0, 32))})}})}, options);
  EXPECT_TRUE(batch_.refused.empty());
}

TEST_F(DecoderFormsTest, EventBeyondTheMemoryIsTooLargeAndTheNextOneFits) {
  const DecoderOptions options = {.memory_bytes_max = 2048};
  ExpectRefused(StoreMap({{"token_ids", Numbers(std::vector<int64_t>(1000, 1))}}),
                Refusal::kTooLarge, options);
  ExpectRefused(RemoveMap({{"block_hashes", Numbers(std::vector<int64_t>(100, 1))}}),
                Refusal::kTooLarge, options);
}

TEST_F(DecoderFormsTest, RefusedEventsGiveTheirMemoryBack) {
  const Write unknown =
      Map({{"type", Text("BlockInactive")}, {"token_ids", Numbers(std::vector<int64_t>(1000, 1))}});
  std::vector<Write> events(100, unknown);
  events.push_back(StoreMap());
  Decode(events, {.memory_bytes_max = 8192});
  EXPECT_EQ(batch_.refused, std::vector<Refusal>(100, Refusal::kUnknownTag));
  EXPECT_EQ(batch_.events.size(), 1u);
}

}  // namespace
}  // namespace kvatlas
