// The decoder on whole batches: times, ranks, shapes, cuts, bounds.

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

using DecoderBatchesTest = DecoderFormsTest;

TEST_F(DecoderBatchesTest, TimesOfEveryKind) {
  const auto time_of = [&](std::string_view hex) {
    EXPECT_TRUE(DecodeBytes(FromHex("92" + std::string(hex) + "90")).ok());
    return batch_.time_s;
  };
  EXPECT_EQ(time_of("cb41d954fc40200000"), 1700000000.5);
  EXPECT_EQ(time_of("ca3fc00000"), 1.5);
  EXPECT_EQ(time_of("ce6553f100"), 1700000000);
  EXPECT_EQ(time_of("cf0000018bcfe56801"), 1700000000.001);
  EXPECT_EQ(time_of("c0"), 0);
  EXPECT_EQ(time_of("a3782d79"), 0);
  EXPECT_EQ(time_of("cb7ff8000000000000"), 0);
}

TEST_F(DecoderBatchesTest, RanksOfEveryKind) {
  const auto rank_of = [&](std::string_view hex) {
    EXPECT_TRUE(DecodeBytes(FromHex("93c090" + std::string(hex))).ok());
    return batch_.rank;
  };
  EXPECT_EQ(rank_of("03"), 3);
  EXPECT_EQ(rank_of("ff"), -1);
  EXPECT_EQ(rank_of("c0"), std::nullopt);
  EXPECT_EQ(rank_of("a130"), std::nullopt);
  EXPECT_EQ(rank_of("05 c3 c3"), 5);
}

TEST_F(DecoderBatchesTest, BatchesOfTwoThreeAndMoreElements) {
  const std::string clear = "91 91 b0416c6c426c6f636b73436c6561726564";
  for (const std::string& payload :
       {"92 c0" + clear, "93 c0" + clear + "07", "95 c0" + clear + "07 c0 a3475055",
        "92 c0" + clear + "ffff"}) {
    ASSERT_TRUE(DecodeBytes(FromHex(payload)).ok());
    EXPECT_EQ(batch_.events.size(), 1u);
    EXPECT_TRUE(batch_.refused.empty());
  }
}

TEST_F(DecoderBatchesTest, EmptyBatchHasNoEvents) {
  ASSERT_TRUE(DecodeBytes(BatchOf(0, "")).ok());
  EXPECT_TRUE(batch_.events.empty());
  EXPECT_EQ(batch_.rank, 0);
}

TEST_F(DecoderBatchesTest, BatchMayBeAMap) {
  MsgpackWriter out;
  out.Map(4).Text("data_parallel_rank").Unsigned(2).Text("news").Nil();
  out.Text("events").Array(1);
  StoreMap()(&out);
  out.Text("ts").Float(1.5);
  ASSERT_TRUE(DecodeBytes(out.bytes()).ok());
  EXPECT_EQ(batch_.rank, 2);
  EXPECT_EQ(batch_.time_s, 1.5);
  EXPECT_EQ(batch_.events.size(), 1u);
}

TEST_F(DecoderBatchesTest, WhatIsNoBatchIsInvalid) {
  for (const std::string_view hex : {"", "c0", "90", "91c0", "92c0c0", "92c001", "80", "81a2747301",
                                     "c1", "92c0", "92c0dc00", "a3616263", "ddffffffffc090"}) {
    SCOPED_TRACE(hex);
    EXPECT_EQ(DecodeBytes(FromHex(hex)).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(batch_.events.empty());
  }
}

TEST_F(DecoderBatchesTest, FrameCutOffKeepsWhatIsBeforeTheCut) {
  MsgpackWriter out;
  StoreMap()(&out);
  RemoveMap()(&out);
  const std::string whole = BatchOf(2, out.bytes());
  ASSERT_TRUE(DecodeBytes(whole.substr(0, whole.size() - 2)).ok());
  EXPECT_EQ(batch_.events.size(), 1u);
  EXPECT_EQ(batch_.refused, std::vector<Refusal>{Refusal::kMalformed});
  // Only the rank is missing: said, since the events may be another rank's.
  ASSERT_TRUE(DecodeBytes(whole.substr(0, whole.size() - 1)).ok());
  EXPECT_EQ(batch_.events.size(), 2u);
  EXPECT_EQ(batch_.refused, std::vector<Refusal>{Refusal::kMalformed});
}

TEST_F(DecoderBatchesTest, BoundsRefuseTheWholeFrame) {
  const std::string payload = BatchOf(3, FromHex("c0c0c0"));
  EXPECT_EQ(DecodeBytes(payload, {.events_max = 2}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(DecodeBytes(payload, {.payload_bytes_max = payload.size() - 1}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(DecodeBytes(payload, {.payload_bytes_max = payload.size(), .events_max = 3}).ok());
}

TEST_F(DecoderBatchesTest, BatchIsOverwrittenAndItsViewsLastUntilTheNext) {
  EngineDecoder decoder;
  EngineBatch batch;
  MsgpackWriter many;
  for (int i = 0; i < 500; ++i) {
    StoreMap({{"token_ids", Numbers(std::vector<int64_t>(300, i))}})(&many);
  }
  const std::string first = BatchOf(500, many.bytes());
  ASSERT_TRUE(decoder.Decode(first, &batch).ok());
  ASSERT_EQ(batch.events.size(), 500u);
  for (TokenId i = 0; i < 500; ++i) {
    EXPECT_EQ(Tokens(batch.events[i]), std::vector<TokenId>(300, i));
  }
  const std::string second = FromHex("92c090");
  ASSERT_TRUE(decoder.Decode(second, &batch).ok());
  EXPECT_TRUE(batch.events.empty());
  EXPECT_FALSE(batch.rank.has_value());
  EXPECT_EQ(batch.time_s, 0);
}

}  // namespace
}  // namespace kvatlas
