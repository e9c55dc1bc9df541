// No answer may say that it is exact and be too much. Events that cannot be read, unknown kinds,
// groups that turn out to be others, several streams of one rank, an index without room: doubtful
// blocks are degraded, and go or become certain again.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::UnorderedElementsAre;
using Write = std::function<void(MsgpackWriter*)>;

// ---- Events as an engine writes them ----

// Blocks of 4 tokens, the first one named `hash`, tokens from 4 * hash on.
Write Stores(uint64_t hash) {
  return [hash](MsgpackWriter* out) {
    out->Map(5).Text("type").Text("BlockStored").Text("block_hashes").Array(1).Unsigned(hash);
    out->Text("parent_block_hash").Nil().Text("block_size").Unsigned(4);
    out->Text("token_ids").Array(4);
    for (uint64_t token = 0; token < 4; ++token) out->Unsigned(4 * hash + token);
  };
}
std::vector<TokenId> TokensOf(uint64_t hash) { return Tokens(4, static_cast<TokenId>(4 * hash)); }

// An event with this tag, and one field more.
Write Tagged(std::string_view tag, std::string_view key, const Write& value) {
  return [=](MsgpackWriter* out) {
    out->Map(2).Text("type").Text(tag).Text(key);
    value(out);
  };
}
Write Number(uint64_t number) {
  return [=](MsgpackWriter* out) { out->Unsigned(number); };
}
Write Text(std::string_view text) {
  return [=](MsgpackWriter* out) { out->Text(text); };
}

std::string Payload(const std::vector<Write>& events, const Write& rank = Number(0)) {
  MsgpackWriter out;
  out.Array(3).Float(1.5).Array(events.size());
  for (const Write& event : events) event(&out);
  rank(&out);
  return out.bytes();
}

class DoubtTest : public testing::Test {
 protected:
  void Apply(const std::string& payload) {
    ASSERT_TRUE(decoder_.Decode(payload, &batch_).ok());
    worker_->Apply(0, batch_, worker_.now());
  }
  // Applies an event between two stores: checks blocks held before it, of the first store and of
  // the second.
  void Between(const Write& event) {
    Apply(Payload({Stores(1)}));
    Apply(Payload({Stores(2), event, Stores(3)}));
    EXPECT_EQ(worker_.Reach(TokensOf(2)), 1);
    EXPECT_EQ(worker_.Reach(TokensOf(3)), 1) << "its siblings are applied";
  }
  void ExpectALoss(const Write& event) {
    Between(event);
    EXPECT_EQ(worker_.trust(), Trust::kDegraded);
    EXPECT_EQ(worker_.RankStats().suspects, 2) << "what was said behind it is certain";
    worker_.Advance(seconds(30));
    EXPECT_EQ(worker_.Reach(TokensOf(1)), 0);
    EXPECT_EQ(worker_.Reach(TokensOf(2)), 0);
    EXPECT_EQ(worker_.Reach(TokensOf(3)), 1);
    EXPECT_EQ(worker_.trust(), Trust::kDegraded);
    worker_.Apply({ClearEvent()});
    EXPECT_EQ(worker_.trust(), Trust::kExact);
  }
  void ExpectNoDoubt(const Write& event, Refusal refusal) {
    Between(event);
    EXPECT_EQ(worker_.Refused(refusal), 1);
    EXPECT_EQ(worker_.trust(), Trust::kExact);
    EXPECT_EQ(worker_.RankStats().suspects, 0);
  }

  EngineDecoder decoder_;
  EngineBatch batch_;
  TestWorker worker_{{.repair_timeout = seconds(30)}};
};

TEST_F(DoubtTest, AnEventThatIsNoneMayHaveBeenARemoval) { ExpectALoss(Number(7)); }

TEST_F(DoubtTest, AnEventWithoutATagMayHaveBeenARemoval) {
  ExpectALoss([](MsgpackWriter* out) { out->Map(1).Text("block_hashes").Array(1).Unsigned(1); });
}

TEST_F(DoubtTest, ARemovalWhoseHashesCannotBeReadIsALoss) {
  ExpectALoss(Tagged("BlockRemoved", "block_hashes", Text("one")));
}

TEST_F(DoubtTest, ARemovalWhoseMediumCannotBeReadIsALoss) {
  ExpectALoss([](MsgpackWriter* out) {
    out->Map(3).Text("type").Text("BlockRemoved").Text("block_hashes").Array(1).Unsigned(1);
    out->Text("medium").Unsigned(7);
  });
}

TEST_F(DoubtTest, ARemovalWithoutHashesIsALoss) {
  ExpectALoss(Tagged("BlockRemoved", "medium", Text("GPU")));
}

TEST_F(DoubtTest, AStoreThatCannotBeReadIsMissedAndNothingIsInDoubt) {
  ExpectNoDoubt(Tagged("BlockStored", "block_hashes", Text("one")), Refusal::kMalformed);
}

TEST_F(DoubtTest, KindsThatRemoveNothingHarmNothing) {
  for (const std::string_view tag : {"BlockInactive", "created", "BlockStoredWithMetadata"}) {
    SCOPED_TRACE(tag);
    Apply(Payload({Tagged(tag, "block_hashes", Number(1))}));
    EXPECT_EQ(batch_.refused, std::vector<Refusal>{Refusal::kUnknownTag});
    EXPECT_FALSE(batch_.unknown_before.has_value() || batch_.lost_before.has_value());
  }
}

TEST_F(DoubtTest, AnUnknownKindPutsInDoubtWhatWasHeldUntilThatIsGoneOrSaidAgain) {
  Between(Tagged("BlockForgotten", "blocks", Number(1)));
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  EXPECT_EQ(worker_.RankStats().suspects, 2);
  for (int i = 0; i < 100; ++i) worker_.Advance(seconds(10));
  EXPECT_EQ(worker_.Reach(TokensOf(1)), 1) << "no time drops it";
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  worker_.Apply({RemoveEvent({1})});
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  // A copy that was seen since does not make the older one certain.
  Apply(Payload({Stores(2)}));
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  worker_.Apply({RemoveEvent({2})});
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.trust(), Trust::kDegraded) << "one copy is left, perhaps the older one";
  worker_.Apply({RemoveEvent({2})});
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.trust(), Trust::kExact);
  EXPECT_EQ(worker_.Reach(TokensOf(3)), 1);
}

TEST_F(DoubtTest, AGapThatIsRepairedDoesNotAnswerForAnUnknownKind) {
  Between(Tagged("BlockForgotten", "blocks", Number(1)));
  worker_->Lost(0, worker_.now());
  worker_->Repaired(0);
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  worker_.Advance(seconds(31));
  EXPECT_EQ(worker_.Reach(TokensOf(1)), 1) << "nor does it drop what it put in doubt";
}

TEST_F(DoubtTest, WhatIsCutOffMayHaveBeenARemoval) {
  Apply(Payload({Stores(1)}));
  const std::string whole = Payload({Stores(2), Stores(3)});
  Apply(whole.substr(0, whole.size() - 4));
  EXPECT_EQ(batch_.events.size(), 1u);
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.Holdings().size(), 0u);
}

TEST_F(DoubtTest, EventsOfARankThatCannotBeReadAreInDoubtThemselves) {
  Apply(Payload({Stores(1)}));
  Apply(Payload({Stores(2)}, Text("3")));
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.Holdings().size(), 0u) << "block 2 may be another rank's";
}

TEST_F(DoubtTest, RanksThatNobodyCanHaveAreNotTakenForOthers) {
  Apply(Payload({Stores(1)}, Number(uint64_t{1} << 32)));
  EXPECT_EQ(worker_.Refused(Refusal::kMalformed), 1);
  EXPECT_EQ(worker_.Reach(TokensOf(1)), 0);
}

// A replay repairs what was missing, not what was there and could not be read.
TEST_F(DoubtTest, ARepairDoesNotForgiveWhatTheReplayCouldNotRead) {
  Apply(Payload({Stores(1)}));
  worker_->Lost(0, worker_.now());
  Apply(Payload({Stores(2), Number(7)}));
  worker_->Repaired(0);
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.Holdings().size(), 0u);
}

// The clear ends the gap's loss; what the replay then could not read is another one.
TEST_F(DoubtTest, ARepairDoesNotForgiveWhatCameBehindAClear) {
  Apply(Payload({Stores(1)}));
  worker_->Lost(0, worker_.now());
  worker_.Apply({ClearEvent()});
  Apply(Payload({Stores(2)}));
  worker_->Unreadable(0, worker_.now());
  worker_->Repaired(0);
  EXPECT_EQ(worker_.trust(), Trust::kDegraded);
  worker_.Advance(seconds(30));
  EXPECT_EQ(worker_.Holdings().size(), 0u);
}

// ---- Attention groups ----

OwnedEvent InGroup(OwnedEvent event, uint32_t group, std::string_view kind = "") {
  event.event.group = group;
  event.event.spec_kind = kind;
  return event;
}

TEST(GroupTest, AGroupThatTurnsOutToBeAnotherKindIsNeededNoLonger) {
  TestWorker worker;
  worker.Apply({InGroup(StoreEvent({1, 2}, Tokens(8)), 0),
                InGroup(StoreEvent({1}, Tokens(4)), 1, "full_attention")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1) << "both are needed";
  worker.Apply({InGroup(StoreEvent({7}, Tokens(4, 50)), 0, "cross_attention"),
                InGroup(StoreEvent({2}, Tokens(4, 4), 1), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2) << "the other one alone";
  EXPECT_EQ(worker.RankStats().blocks[0], 2);
  EXPECT_EQ(worker.RankStats().aliases, 2);
  worker.Apply({InGroup(RemoveEvent({1, 2}), 1)});
  EXPECT_EQ(worker.Holdings().size(), 0u);
  worker.Apply({InGroup(StoreEvent({8}, Tokens(4)), 0)});
  EXPECT_EQ(worker.Holdings().size(), 0u);
}

TEST(GroupTest, BlocksOfAGroupThatTurnsOutToBeAnotherKindGo) {
  TestWorker worker;
  worker.Apply({InGroup(StoreEvent({1}, Tokens(4)), 0)});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1);
  worker.Apply({InGroup(StoreEvent({2}, Tokens(4, 4)), 0, "cross_attention")});
  EXPECT_EQ(worker.Holdings().size(), 0u) << "their removals are not for us";
}

TEST(GroupTest, ARemovalCountsWhateverItSaysOfItsKind) {
  TestWorker worker;
  worker.Apply({InGroup(StoreEvent({1}, Tokens(4)), 0)});
  worker.Apply({InGroup(RemoveEvent({1}), 0, "cross_attention")});
  EXPECT_EQ(worker.Holdings().size(), 0u);
}

TEST(GroupTest, AGroupBeyondTheBoundIsRefusedSinceItsRemovalsWouldBe) {
  TestWorker worker;
  for (uint32_t group = 100; group < 1200; ++group)
    worker.Apply({InGroup(StoreEvent({7}, Tokens(4)), group, "cross_attention")});
  worker.Apply({InGroup(StoreEvent({1}, Tokens(4)), 5, "full_attention")});
  EXPECT_EQ(worker.Holdings().size(), 0u);
  EXPECT_EQ(worker.Refused(Refusal::kUnlearnedGroup), 1);
}

// ---- Names ----

TEST(NamesTest, OnlySoManyLengthsOfNamesAreKept) {
  TestWorker worker;
  for (size_t length = 1; length <= 100; ++length) {
    OwnedEvent event = StoreEvent({}, Tokens(4, static_cast<TokenId>(4 * length)));
    event.digests = {std::string(length, 'd')};
    worker.Apply({event});
  }
  EXPECT_EQ(worker.RankStats().aliases, 8);
  EXPECT_EQ(worker.Refused(Refusal::kTooLarge), 92);
  EngineAlias alias{.hash = HashOf(std::string(200, 'e')), .block = SequenceHash{5}, .copies = {1}};
  EXPECT_EQ(worker->Restore(alias).message(), "names of too many lengths");
  const std::string long_name(kEngineHashBytesMax + 1, 'e');
  alias.hash = HashOf(long_name);
  EXPECT_EQ(worker->Restore(alias).message(), "a name is too long");
}

// ---- Several streams ----

TEST(StreamsTest, ALossOfAnyOfThemConcernsTheRankThatBothName) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4))}, 5, /*stream_rank=*/0);
  worker.Apply({StoreEvent({2}, Tokens(4, 4))}, 5, /*stream_rank=*/1);
  EXPECT_EQ(worker.RankStats(5).stream_rank, 0);
  EXPECT_EQ(worker.RankStats(5).streams, 2);
  worker->Lost(0, worker.now());
  EXPECT_EQ(worker.trust(5), Trust::kDegraded) << "though the other one came last";
  worker->Repaired(0);
  EXPECT_EQ(worker.trust(5), Trust::kExact);
  worker.Apply({StoreEvent({3}, Tokens(4, 8))}, 5, /*stream_rank=*/0);
  EXPECT_EQ(worker.RankStats(5).stream_rank, 0);
}

TEST(StreamsTest, ARestartOfOneOfThemPutsTheRankInDoubt) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4))}, 5, /*stream_rank=*/0);
  worker.Apply({StoreEvent({2}, Tokens(4, 4))}, 5, /*stream_rank=*/1);
  worker->Restarted(0, worker.now());
  EXPECT_EQ(worker.Holdings(5).size(), 2u) << "whose is whose is not known";
  EXPECT_EQ(worker.trust(5), Trust::kDegraded);
  worker.Advance(seconds(30));
  EXPECT_EQ(worker.Holdings(5).size(), 0u);
}

TEST(StreamsTest, AStreamThatGoesTakesTheRanksThatItAlonePublished) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4))}, 5, /*stream_rank=*/0);
  worker.Apply({StoreEvent({1}, Tokens(4))}, 6, /*stream_rank=*/0);
  worker.Apply({StoreEvent({1}, Tokens(4))}, 6, /*stream_rank=*/1);
  worker.Apply({StoreEvent({1}, Tokens(4))}, 7, /*stream_rank=*/1);
  EXPECT_THAT(worker->RemoveStream(0, worker.now()), UnorderedElementsAre(0, 5));
  EXPECT_EQ(worker.Holdings(5).size(), 0u);
  EXPECT_EQ(worker.Holdings(6).size(), 1u);
  EXPECT_EQ(worker.trust(6), Trust::kDegraded);
  EXPECT_EQ(worker.trust(7), Trust::kExact);
  worker->RemoveRank(5);
  EXPECT_THAT(worker->RemoveStream(1, worker.now()), UnorderedElementsAre(1, 6, 7));
}

TEST(StreamsTest, WhereNobodyKnowsWhenceARankCameEveryLossConcernsIt) {
  TestWorker worker;
  const EngineAlias alias{.rank = 5, .hash = HashOf(1), .block = SequenceHash{9}, .copies = {1}};
  ASSERT_TRUE(worker->Restore(alias).ok());
  EXPECT_EQ(worker.trust(5), Trust::kExact);
  worker->Lost(0, worker.now());
  EXPECT_EQ(worker.trust(5), Trust::kDegraded);
  worker->Restarted(5, worker.now());
  EXPECT_EQ(worker.trust(5), Trust::kExact) << "its own stream's restart is its own";
  EXPECT_EQ(worker.Holdings(5).size(), 0u);
}

// ---- An index without room ----

TEST(ShedTest, WhatWasShedDegradesUntilThereIsRoomForIt) {
  TestWorker worker({}, /*blocks_max=*/2);
  worker.Apply({StoreEvent({1}, Tokens(4)), StoreEvent({2}, Tokens(4, 4), 1),
                StoreEvent({9}, Tokens(4, 90))});
  EXPECT_GT(worker.Refused(Refusal::kShed), 0);
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Advance(seconds(1));
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Apply({RemoveEvent({9})});
  worker.Apply({RemoveEvent({1})});
  worker.Advance(seconds(1));
  worker.Advance(seconds(1));
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Apply({StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2) << "block 2 was offered again";
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Apply({RemoveEvent({1, 2})});
  EXPECT_EQ(worker.Holdings().size(), 0u);
}

TEST(ShedTest, AClearEndsIt) {
  TestWorker worker({}, /*blocks_max=*/2);
  worker.Apply({StoreEvent({1, 2, 3}, Tokens(12)), ClearEvent()});
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

// ---- Taken up again ----

TEST(RestoreDoubtTest, AnUnconfirmedNameUnconfirmsNoneBeforeIt) {
  TestWorker worker({.repair_timeout = seconds(30)});
  EngineAlias alias{.hash = HashOf(1), .block = SequenceHash{9}, .copies = {1}};
  ASSERT_TRUE(worker->Restore(alias).ok());
  alias.hash = HashOf(2);
  alias.block = SequenceHash{10};
  alias.suspect = true;
  ASSERT_TRUE(worker->Restore(alias).ok());
  alias.hash = HashOf(3);
  alias.block = SequenceHash{11};
  alias.suspect = false;
  ASSERT_TRUE(worker->Restore(alias).ok());
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  EXPECT_EQ(worker.RankStats().suspects, 1);
  worker.Advance(seconds(1));
  worker.Advance(seconds(30));
  EXPECT_EQ(worker.Holdings().size(), 2u);
  EXPECT_FALSE(worker.Holdings().contains(10));
}

// Puts everything that `from` knows into `to`.
void Carry(TestWorker* from, TestWorker* to) {
  (*from)->ForEachRank(
      [&](const EngineRankMark& mark) { ASSERT_TRUE((*to)->RestoreRank(mark).ok()); });
  (*from)->ForEachAlias([&](const EngineAlias& alias) { ASSERT_TRUE((*to)->Restore(alias).ok()); });
}

TEST(RestoreDoubtTest, WhatWasGivenUpIsGivenUpThereToo) {
  TestWorker from, to;
  from.Apply({StoreEvent({1}, Tokens(4))});
  from->Lost(0, from.now());
  from.Advance(seconds(31));
  from.Apply({StoreEvent({2}, Tokens(4))});
  Carry(&from, &to);
  EXPECT_EQ(to.trust(), Trust::kDegraded);
  EXPECT_EQ(to.RankStats().suspects, 0);
  to.Apply({ClearEvent()});
  EXPECT_EQ(to.trust(), Trust::kExact);
}

// A connector's chunk without extra keys is not told by its tokens where salts or objects are in
// use.
TEST(RestoreDoubtTest, ObjectsThatWereSeenAreRemembered) {
  const auto joins_by_tokens = [](TestWorker* worker) {
    worker->Apply({InGroup(StoreEvent({7}, Tokens(4, 50), std::nullopt, "CPU"), 0)});
    return worker->Reach(Tokens(4, 50)) == 1;
  };
  TestWorker plain, plain_copy;
  plain.Apply({StoreEvent({1}, Tokens(4))});
  Carry(&plain, &plain_copy);
  EXPECT_TRUE(joins_by_tokens(&plain_copy));

  TestWorker with_objects, copy, copy_of_names;
  OwnedEvent image = StoreEvent({1}, Tokens(4));
  image.multimodal = {{42}};
  with_objects.Apply({image});
  EXPECT_FALSE(joins_by_tokens(&with_objects));
  Carry(&with_objects, &copy);
  EXPECT_FALSE(joins_by_tokens(&copy));
  with_objects->ForEachAlias(
      [&](const EngineAlias& alias) { ASSERT_TRUE(copy_of_names->Restore(alias).ok()); });
  EXPECT_FALSE(joins_by_tokens(&copy_of_names)) << "who is not told cannot know";
}

TEST(RestoreDoubtTest, AGroupThatIsNeededAndHasNothingIsNeededThereToo) {
  TestWorker from, to;
  from.Apply({InGroup(StoreEvent({1}, Tokens(4)), 0, "full_attention"),
              InGroup(StoreEvent({1}, Tokens(4)), 1, "full_attention"),
              InGroup(RemoveEvent({1}), 1)});
  EXPECT_EQ(from.Reach(Tokens(4)), 0);
  Carry(&from, &to);
  EXPECT_EQ(to.Reach(Tokens(4)), 0);
  to.Apply({InGroup(StoreEvent({1}, Tokens(4)), 1)});
  EXPECT_EQ(to.Reach(Tokens(4)), 1);
}

TEST(RestoreDoubtTest, NamesOfTwoNamespacesHaveNoChildrenThereEither) {
  TestWorker from, to;
  OwnedEvent salted = StoreEvent({1}, Tokens(4));
  salted.event.cache_salt = "tenant";
  from.Apply({salted, StoreEvent({1}, Tokens(4))});
  Carry(&from, &to);
  for (TestWorker* worker : {&from, &to}) {
    worker->Apply({StoreEvent({2}, Tokens(4, 4), 1)});
    EXPECT_EQ(worker->Reach(Tokens(8)), 1);
    EXPECT_EQ(worker->Refused(Refusal::kAmbiguousNamespace), 1);
  }
}

}  // namespace
}  // namespace kvatlas
