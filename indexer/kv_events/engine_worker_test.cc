// The meaning of engines' events: content, namespaces, copies, tiers, groups.

#include "indexer/kv_events/engine_worker.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/kv_events/engine_content.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

using Kind = ExtraKey::Kind;

constexpr TierMask kDevice = Tier::kDevice;
constexpr TierMask kHost = Tier::kHost;

// ---- Content ----

TEST(EngineWorkerTest, TokensAreHashedAgainWhateverTheEngineCallsThem) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2, 3, 4}, Tokens(16))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4);
  EXPECT_EQ(worker.Reach(Tokens(16, 1)), 0);
  // Dynamo's contract: tokens 0..15 in blocks of 4.
  EXPECT_EQ(worker.Holdings().count(16790386768269814709u), 1);
}

TEST(EngineWorkerTest, StoresChainOverBatches) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  worker.Apply({StoreEvent({3, 4}, Tokens(8, 8), 2)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4);
}

TEST(EngineWorkerTest, RanksOfOtherNamesMatchByContentAndGoByTheirOwnNames) {
  TestWorker worker;
  worker.Apply({StoreEvent({101, 102}, Tokens(8))}, 0);
  worker.Apply({StoreEvent({301, 302}, Tokens(8))}, 1);
  EXPECT_EQ(worker.Reach(Tokens(8), {.rank = 1}), 2);
  worker.Apply({RemoveEvent({302})}, 1);
  EXPECT_EQ(worker.Reach(Tokens(8), {.rank = 1}), 1);
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  worker.Apply({RemoveEvent({101, 102})}, 0);
  worker.Apply({StoreEvent({303}, Tokens(4, 4), 301)}, 1);
  EXPECT_EQ(worker.Reach(Tokens(8), {.rank = 1}), 2);
}

TEST(EngineWorkerTest, ARemovedMiddleBlockStoredAgainMakesTheDeeperOnesCount) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2, 3, 4}, Tokens(16))});
  worker.Apply({RemoveEvent({3})});
  EXPECT_EQ(worker.Reach(Tokens(16)), 2);
  worker.Apply({StoreEvent({3}, Tokens(4, 8), 2)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4);
}

TEST(EngineWorkerTest, TwoStoresNeedTwoRemovals) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), StoreEvent({1, 2}, Tokens(8))});
  EXPECT_EQ(worker->Stats().copies, 2);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Refused(Refusal::kUnknownRemoved), 1);
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
}

// vLLM with kv_cache_report_mode "full" announces hits again.
TEST(EngineWorkerTest, WithoutCountingCopiesTheFirstRemovalTakesTheBlock) {
  TestWorker worker({.counts_copies = false});
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), StoreEvent({1, 2}, Tokens(8))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  worker.Apply({RemoveEvent({2})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1);
  worker.Apply({StoreEvent({2}, Tokens(4, 4), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
}

TEST(EngineWorkerTest, FewerTokensThanBlocksCountTheLeadingOnes) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2, 3, 4}, Tokens(10))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 2);
  EXPECT_EQ(worker.Refused(Refusal::kNotDense), 2);
}

// Hybrid models leave blocks out of the hashes: which tokens belong to which block cannot be known.
TEST(EngineWorkerTest, MoreTokensThanBlocksCountNothing) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(16))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 0);
  EXPECT_EQ(worker.Refused(Refusal::kNotDense), 2);
}

TEST(EngineWorkerTest, AnotherBlockSizeIsLoud) {
  TestWorker worker;
  OwnedEvent event = StoreEvent({1, 2}, Tokens(16));
  event.event.block_size = 8;
  worker.Apply({event, StoreEvent({3}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 1);
  EXPECT_EQ(worker.Refused(Refusal::kBlockSize), 2);
  EXPECT_NE(worker->Stats().last_refusal.find("block size is 8"), std::string::npos);
}

TEST(EngineWorkerTest, OpaqueTokensCountNothing) {
  TestWorker worker;
  OwnedEvent event = StoreEvent({1}, Tokens(4));
  event.event.tokens_opaque = true;
  worker.Apply({event});
  EXPECT_EQ(worker.Reach(Tokens(4)), 0);
  EXPECT_EQ(worker.Refused(Refusal::kOpaqueTokens), 1);
}

TEST(EngineWorkerTest, AHashTwiceInAnEventCutsItThere) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2, 1, 3}, Tokens(16))});
  EXPECT_EQ(worker.Reach(Tokens(16)), 2);
  EXPECT_EQ(worker.Refused(Refusal::kSelfReference), 2);
}

TEST(EngineWorkerTest, ABlockThatIsItsOwnParentIsDroppedAndStateStays) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  worker.Apply({StoreEvent({2, 3}, Tokens(8, 8), 2), StoreEvent({5}, Tokens(4, 16), 5)});
  EXPECT_EQ(worker.Refused(Refusal::kSelfReference), 3);
  EXPECT_EQ(worker.Reach(Tokens(16)), 2);
}

// llm-d's simulator writes 0 where others write nil.
TEST(EngineWorkerTest, AParentOfZeroIsTheRootUntilSomethingIsNamedZero) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8), 0)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  worker.Apply({StoreEvent({0}, Tokens(4, 100))});
  worker.Apply({StoreEvent({7}, Tokens(4, 104), 0)});
  EXPECT_EQ(worker.Reach(Tokens(8, 100)), 2);
  worker.Apply({RemoveEvent({0, 7})});
  worker.Apply({StoreEvent({7}, Tokens(4, 104), 0)});
  EXPECT_EQ(worker.Reach(Tokens(4, 104)), 0);
  EXPECT_EQ(worker.RankStats().parked, 1);
}

TEST(EngineWorkerTest, BigramsAreFoundUnderLookAheadHashes) {
  TestWorker worker({.block_size = 2});
  EXPECT_FALSE(worker->look_aheads());
  OwnedEvent event = StoreEvent({1, 2}, Tokens(5, 10));
  event.event.block_size = 2;
  event.event.look_ahead = 1;
  worker.Apply({event});
  EXPECT_EQ(worker.Reach(Tokens(5, 10), {.eagle = true}), 2);
  EXPECT_EQ(worker.Reach(Tokens(5, 10)), 0);
  OwnedEvent more = StoreEvent({3}, Tokens(3, 14), 2);
  more.event.block_size = 2;
  more.event.look_ahead = 1;
  worker.Apply({more});
  EXPECT_EQ(worker.Reach(Tokens(7, 10), {.eagle = true}), 3);
  EXPECT_TRUE(worker->look_aheads());
  EXPECT_TRUE(worker.RankStats().eagle);
}

TEST(EngineWorkerTest, DigestsAreComparedWhole) {
  TestWorker worker;
  const std::string tail = "same last 8 bytes...";
  OwnedEvent event = StoreEvent({}, Tokens(8));
  event.digests = {"aaaaaaaaaaaa" + tail, "bbbbbbbbbbbb" + tail};
  worker.Apply({event});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  OwnedEvent child = StoreEvent({}, Tokens(4, 8));
  child.digests = {"cccccccccccc" + tail};
  child.parent_digest = "bbbbbbbbbbbb" + tail;
  worker.Apply({child});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  OwnedEvent removed = RemoveEvent({});
  removed.digests = {"bbbbbbbbbbbb" + tail};
  worker.Apply({removed});
  EXPECT_EQ(worker.Reach(Tokens(12)), 1);
}

// ---- Namespaces ----

TEST(EngineWorkerTest, AdaptersAndSaltsNeverMatchAnothers) {
  TestWorker worker;
  OwnedEvent lora = StoreEvent({1, 2}, Tokens(8));
  lora.event.lora_name = "x";
  OwnedEvent salt = StoreEvent({11}, Tokens(4));
  salt.event.cache_salt = "x";
  worker.Apply({lora, salt, StoreEvent({21, 22, 23}, Tokens(12))});
  EXPECT_EQ(worker.Reach(Tokens(12), {.lora_name = "x"}), 2);
  EXPECT_EQ(worker.Reach(Tokens(12), {.cache_salt = "x"}), 1);
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  EXPECT_EQ(worker.Reach(Tokens(12), {.lora_name = "y"}), 0);
  // What any of its blocks is under.
  EXPECT_TRUE(worker->HoldsNamespace("x", ""));
  EXPECT_TRUE(worker->HoldsNamespace("", "x"));
  EXPECT_TRUE(worker->HoldsNamespace("", ""));
  EXPECT_FALSE(worker->HoldsNamespace("x", "x"));
  worker.Apply({RemoveEvent({11})});
  EXPECT_FALSE(worker->HoldsNamespace("", "x"));
}

TEST(EngineWorkerTest, AnAdapterKnownByNumberAloneHasANamespaceOfItsOwn) {
  TestWorker worker;
  OwnedEvent event = StoreEvent({1}, Tokens(4));
  event.event.lora_id = 7;
  OwnedEvent none = StoreEvent({2}, Tokens(4, 50));
  none.event.lora_id = 0;
  worker.Apply({event, none});
  EXPECT_EQ(worker.Reach(Tokens(4), {.lora_name = "id:7"}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4)), 0);
  EXPECT_EQ(worker.Reach(Tokens(4, 50)), 1);
}

TEST(EngineWorkerTest, ARegistrationsAdapterIsTheDefault) {
  TestWorker worker({.lora_name = "registered", .additional_salt = "pepper"});
  OwnedEvent other = StoreEvent({2}, Tokens(4));
  other.event.lora_name = "said";
  worker.Apply({StoreEvent({1}, Tokens(4)), other});
  EXPECT_EQ(worker.Reach(Tokens(4), {.lora_name = "registered", .cache_salt = "pepper"}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4), {.lora_name = "said", .cache_salt = "pepper"}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4)), 0);
}

TEST(EngineWorkerTest, AnOrdinaryVllmSaltIsolatesItsWholeChain) {
  TestWorker worker;
  OwnedEvent root = StoreEvent({1, 2}, Tokens(8));
  root.extra_keys = {{{Kind::kText, "tenant-a"}}, {}};
  worker.Apply({root, StoreEvent({3}, Tokens(4, 8), 2)});
  EXPECT_EQ(worker.Reach(Tokens(12), {.cache_salt = "tenant-a"}), 3);
  EXPECT_EQ(worker.Reach(Tokens(12)), 0);
}

TEST(EngineWorkerTest, SaltsComeAfterAdapterAndObjects) {
  TestWorker worker;
  OwnedEvent event = StoreEvent({1, 2}, Tokens(8));
  event.event.lora_name = "my-lora";
  event.extra_keys = {{{Kind::kText, "my-lora"}, {Kind::kTextAt, "image-1"}, {Kind::kText, "salt"}},
                      {{Kind::kText, "my-lora"}, {Kind::kTextAt, "image-1"}}};
  worker.Apply({event});
  const std::vector<std::vector<uint64_t>> objects(2, {MultimodalHash("image-1")});
  EXPECT_EQ(worker.Reach(Tokens(8),
                         {.lora_name = "my-lora", .cache_salt = "salt", .multimodal = objects}),
            2);
  EXPECT_EQ(worker.Reach(Tokens(8), {.lora_name = "my-lora", .cache_salt = "salt"}), 0);
  EXPECT_EQ(worker.Reach(Tokens(8), {.lora_name = "my-lora", .multimodal = objects}), 0);
}

TEST(EngineWorkerTest, ATaggedSaltIsAskedWithoutItsTagAndASaidOneGoesFirst) {
  TestWorker worker;
  OwnedEvent tagged = StoreEvent({1}, Tokens(4));
  tagged.event.lora_name = "dynamo-cache-salt:a";
  tagged.extra_keys = {
      {{Kind::kText, "dynamo-cache-salt:a"}, {Kind::kText, "dynamo-cache-salt:a"}}};
  OwnedEvent both = StoreEvent({2}, Tokens(4));
  both.event.cache_salt = "said";
  both.extra_keys = {{{Kind::kText, "dynamo-cache-salt:tagged"}, {Kind::kText, "plain"}}};
  worker.Apply({tagged, both});
  EXPECT_EQ(worker.Reach(Tokens(4), {.lora_name = "dynamo-cache-salt:a", .cache_salt = "a"}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = "said"}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = "tagged"}), 0);
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = "plain"}), 0);
}

TEST(EngineWorkerTest, AHexSaltIsNoImageAndAPaddedIdentifierIsNoSalt) {
  TestWorker worker;
  const std::string hex(64, 'a');
  const std::string padded = "0123456789abcdef" + std::string(48, '0');
  OwnedEvent salted = StoreEvent({1}, Tokens(4));
  salted.extra_keys = {{{Kind::kText, hex}}};
  OwnedEvent image = StoreEvent({2}, Tokens(4));
  image.extra_keys = {{{Kind::kText, padded}}};
  worker.Apply({salted, image});
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = hex}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4), {.multimodal = {{0x0123456789abcdef}}}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4)), 0);
}

TEST(EngineWorkerTest, ObjectsNamedByTheEngineGoBeforeExtraKeys) {
  TestWorker worker({.block_size = 2});
  OwnedEvent event = StoreEvent({1, 2}, Tokens(4));
  event.event.block_size = 2;
  event.multimodal = {{7, 3, 7}, {}};
  event.extra_keys = {{{Kind::kTextAt, "the same"}}, {}};
  worker.Apply({event});
  EXPECT_EQ(worker.Reach(Tokens(4), {.multimodal = {{3, 7, 7}}}), 2);
  EXPECT_EQ(worker.Holdings().count(9546817908625117111u), 1);
}

// ---- Images in the place of their tokens ----

constexpr TokenId kImage = 9;
constexpr TokenId kPadOf7 = 1'000'007;
constexpr TokenId kPadOf8 = 1'000'008;

// A root of four tokens.
OwnedEvent WithImages(uint64_t name, std::vector<TokenId> tokens, std::vector<uint64_t> objects) {
  OwnedEvent event = StoreEvent({name}, std::move(tokens));
  event.multimodal = {std::move(objects)};
  return event;
}

TEST(ImagesTest, PadValuesAreThoseOfTheField) {
  EXPECT_EQ(PadValue(9533257059414191570u), 49115154u);
  EXPECT_EQ(PadValue(0), 1'000'000u);
  EXPECT_EQ(PadValue(uint64_t{1} << 30 | 0xCAFE), 1'000'000u + 0xCAFE);
}

TEST(ImagesTest, ABlockWithAnImageIsWhatAFrontendAsksForWithPadsInItsPlace) {
  TestWorker worker({.image_token = kImage});
  OwnedEvent event = StoreEvent({1, 2}, {1, 2, kImage, kImage, kImage, 3, kImage, 4});
  // As vLLM tells them: by identifier, with where they begin.
  const std::string seven = "0000000000000007" + std::string(48, '0');
  const std::string eight = "0000000000000008" + std::string(48, '0');
  event.extra_keys = {{{Kind::kTextAt, seven}}, {{Kind::kTextAt, seven}, {Kind::kTextAt, eight}}};
  worker.Apply({event});
  const std::vector<TokenId> asked = {1, 2, kPadOf7, kPadOf7, kPadOf7, 3, kPadOf8, 4};
  EXPECT_EQ(worker.Reach(asked), 2);
  EXPECT_EQ(worker.Reach({1, 2, kPadOf8, kPadOf8}), 0) << "another image";
  EXPECT_EQ(worker.Reach(event.tokens), 0) << "an image is not its token";
  EXPECT_EQ(worker.Reach(event.tokens, {.multimodal = {{7}, {7, 8}}}), 0);
  EXPECT_EQ(worker.Reach({1, 2, kPadOf7, kPadOf7, kPadOf7, 3, kPadOf7, 4}), 1);
}

TEST(ImagesTest, RunsBehindTheLastObjectAreItsOwn) {
  TestWorker worker({.image_token = kImage});
  worker.Apply({WithImages(1, {kImage, 5, kImage, 5}, {7})});
  EXPECT_EQ(worker.Reach({kPadOf7, 5, kPadOf7, 5}), 1);
}

TEST(ImagesTest, WhereRunsDoNotTellObjectsApartTheObjectsDo) {
  TestWorker worker({.image_token = kImage});
  worker.Apply({WithImages(1, {kImage, kImage, 5, 6}, {7, 8}), WithImages(2, {1, 2, 3, 4}, {7})});
  EXPECT_EQ(worker.Reach({kPadOf7, kPadOf7, 5, 6}), 0) << "the second image would not count";
  EXPECT_EQ(worker.Reach({kImage, kImage, 5, 6}, {.multimodal = {{7, 8}}}), 1);
  EXPECT_EQ(worker.Reach({1, 2, 3, 4}), 0);
  EXPECT_EQ(worker.Reach({1, 2, 3, 4}, {.multimodal = {{7}}}), 1);
}

TEST(ImagesTest, PadsThatAnEnginePublishesAndTextStayWhatTheyAre) {
  TestWorker worker({.image_token = kImage});
  worker.Apply({StoreEvent({1}, {1, kPadOf7, kPadOf7, 2}), StoreEvent({2}, {1, kImage, 2, 3})});
  EXPECT_EQ(worker.Reach({1, kPadOf7, kPadOf7, 2}), 1);
  EXPECT_EQ(worker.Reach({1, kImage, 2, 3}), 1) << "the token without an object is text";
}

TEST(ImagesTest, AParkedBlockHasItsImageWhenItsParentComes) {
  TestWorker worker({.image_token = kImage});
  OwnedEvent child = StoreEvent({2}, {5, kImage, kImage, 6}, 1);
  child.multimodal = {{8}};
  worker.Apply({child, StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach({0, 1, 2, 3, 5, kPadOf8, kPadOf8, 6}), 2);
}

TEST(ImagesTest, UnderLookAheadObjectsAreHashed) {
  TestWorker worker({.image_token = kImage});
  OwnedEvent event = StoreEvent({1}, {1, kImage, 2, 3, kImage});
  event.event.look_ahead = 1;
  event.multimodal = {{7}};
  worker.Apply({event});
  EXPECT_EQ(worker.Reach(event.tokens, {.eagle = true, .multimodal = {{7}}}), 1);
}

TEST(ImagesTest, WithoutTheTokenKnownObjectsAreHashed) {
  TestWorker worker;
  worker.Apply({WithImages(1, {1, kImage, kImage, 2}, {7})});
  EXPECT_EQ(worker.Reach({1, kPadOf7, kPadOf7, 2}), 0);
  EXPECT_EQ(worker.Reach({1, kImage, kImage, 2}, {.multimodal = {{7}}}), 1);
}

TEST(EngineWorkerTest, EmbeddingsAndUnknownKeysAreNeverIndexed) {
  TestWorker worker;
  OwnedEvent event = StoreEvent({1, 2, 3}, Tokens(12));
  event.extra_keys = {{}, {{Kind::kBytes, "sha256 of embeddings"}}, {}};
  OwnedEvent number = StoreEvent({4}, Tokens(4, 50));
  number.extra_keys = {{{Kind::kNumber, "5"}}};
  worker.Apply({event, number});
  EXPECT_EQ(worker.Reach(Tokens(12)), 1);
  EXPECT_EQ(worker.Reach(Tokens(4, 50)), 0);
  EXPECT_EQ(worker.Refused(Refusal::kOpaqueTokens), 3);
}

TEST(EngineWorkerTest, ANameSeenInTwoNamespacesHasNoChildren) {
  TestWorker worker;
  OwnedEvent a = StoreEvent({1}, Tokens(4));
  a.event.cache_salt = "a";
  OwnedEvent b = StoreEvent({1}, Tokens(4));
  b.event.cache_salt = "b";
  worker.Apply({a, b, StoreEvent({2}, Tokens(4, 4), 1)});
  EXPECT_EQ(worker.Refused(Refusal::kAmbiguousNamespace), 1);
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = "a"}), 0);
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = "b"}), 1);
  // The mark outlives the block, a clear forgets it.
  worker.Apply({RemoveEvent({1}), a, StoreEvent({2}, Tokens(4, 4), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = "a"}), 1);
  worker.Apply({ClearEvent(), a, StoreEvent({2}, Tokens(4, 4), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = "a"}), 2);
}

TEST(EngineWorkerTest, AChildThatContradictsItsParentsNamespaceIsRefused) {
  TestWorker worker;
  OwnedEvent root = StoreEvent({1}, Tokens(4));
  root.event.lora_name = "a";
  OwnedEvent child = StoreEvent({2}, Tokens(4, 4), 1);
  child.event.lora_name = "b";
  OwnedEvent salted = StoreEvent({3}, Tokens(4, 4), 1);
  salted.event.cache_salt = "s";
  worker.Apply({root, child, salted});
  EXPECT_EQ(worker.Refused(Refusal::kAmbiguousNamespace), 2);
  EXPECT_EQ(worker.Reach(Tokens(8), {.lora_name = "a"}), 1);
}

// A removal forgets the salt: the name may come back in another namespace.
TEST(EngineWorkerTest, ARemovedNameIsFreeForAnotherNamespace) {
  TestWorker worker;
  OwnedEvent a = StoreEvent({1}, Tokens(4));
  a.event.cache_salt = "a";
  worker.Apply({a, RemoveEvent({1}), StoreEvent({1, 2}, Tokens(8))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  EXPECT_EQ(worker.Refused(Refusal::kAmbiguousNamespace), 0);
}

TEST(EngineWorkerTest, OtherContentUnderAKnownNameTakesItsPlace) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2, 3}, Tokens(12))});
  std::vector<TokenId> other = Tokens(12);
  other[5] = 999;
  // Only the middle block differs: so do all hashes behind it.
  worker.Apply({StoreEvent({1, 2, 3}, other)});
  EXPECT_EQ(worker.Reach(other), 3);
  EXPECT_EQ(worker.Reach(Tokens(12)), 1);
  worker.Apply({RemoveEvent({2, 3})});
  EXPECT_EQ(worker.Reach(other), 1);
  EXPECT_EQ(worker.Holdings().size(), 1);
}

TEST(EngineWorkerTest, ABlockOfTwoNamesStaysUntilBothAreGone) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  worker.Apply({StoreEvent({91, 92}, Tokens(8))});
  worker.Apply({RemoveEvent({1, 2})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  // The first name's memory means another chain now.
  worker.Apply({StoreEvent({1}, Tokens(4, 500)), StoreEvent({93}, Tokens(4, 8), 92)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  worker.Apply({RemoveEvent({92})});
  EXPECT_EQ(worker.Reach(Tokens(12)), 1);
  EXPECT_EQ(worker.Reach(Tokens(4, 500)), 1);
}

TEST(EngineWorkerTest, StoresAndRemovalsOfABatchAreHandedOverInOneCall) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2, 3, 4}, Tokens(16))});
  worker.ForgetSent();
  worker.Apply({RemoveEvent({4}), StoreEvent({5}, Tokens(4, 100)), RemoveEvent({3}),
                StoreEvent({6}, Tokens(4, 200)), RemoveEvent({5})});
  EXPECT_EQ(worker.calls(), 1);
  // Removals of earlier blocks go first, and together; a block stored meanwhile is removed behind
  // its store.
  ASSERT_EQ(worker.sent().size(), 4);
  EXPECT_EQ(std::get<Removed>(worker.sent()[0]).blocks.size(), 2);
  EXPECT_EQ(std::get<Removed>(worker.sent()[3]).blocks.size(), 1);
  EXPECT_EQ(worker.Reach(Tokens(16)), 2);
  EXPECT_EQ(worker.Reach(Tokens(4, 100)), 0);
  EXPECT_EQ(worker.Reach(Tokens(4, 200)), 1);
  EXPECT_EQ(worker.RankStats().blocks[0], 3);
}

// When the writer says that the first block was there already, the rest waits behind it.
TEST(EngineWorkerTest, ASecondNameThatComesAndGoesInABatchLeavesItsBlock) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8))});
  worker.Apply({StoreEvent({11, 12}, Tokens(8)), StoreEvent({3}, Tokens(4, 100)), RemoveEvent({12}),
                StoreEvent({13}, Tokens(4, 100)), RemoveEvent({3, 11}),
                StoreEvent({4}, Tokens(4, 200)), RemoveEvent({13})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  EXPECT_EQ(worker.Reach(Tokens(4, 100)), 0);
  EXPECT_EQ(worker.Reach(Tokens(4, 200)), 1);
  EXPECT_EQ(worker.RankStats().blocks[0], 3);
  worker.Apply({RemoveEvent({2, 1, 4})});
  EXPECT_TRUE(worker.Holdings().empty());
  EXPECT_EQ(worker.RankStats().blocks[0], 0);
}

// Blocks that the other group has by itself are handed over in parts, and the first part shows that
// blocks have two names.
TEST(EngineWorkerTest, BlocksOfTwoNamesStayWhenAGroupTurnsOutToBeOfAnotherKind) {
  constexpr size_t kBlocks = 3 * kBatchBlocksMax;
  const auto of_group = [](OwnedEvent event, uint32_t group, std::string_view kind) {
    event.event.group = group;
    event.event.spec_kind = kind;
    return event;
  };
  std::vector<uint64_t> names(kBlocks), others(kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    names[i] = 1 + i;
    others[i] = 1000000 + i;
  }
  TestWorker worker;
  worker.Apply({of_group(StoreEvent({1}, Tokens(4)), 1, "full_attention")});
  worker.Apply({of_group(StoreEvent(names, Tokens(4 * kBlocks)), 0, "full_attention"),
                of_group(StoreEvent(others, Tokens(4 * kBlocks)), 0, "full_attention")});
  EXPECT_EQ(worker.Held(Tokens(4 * kBlocks)), 1);
  worker.Apply({of_group(StoreEvent({1}, Tokens(4)), 1, "sliding_window")});
  EXPECT_EQ(worker.Held(Tokens(4 * kBlocks)), kBlocks);
  EXPECT_EQ(worker.RankStats().blocks[0], kBlocks);
}

TEST(EngineWorkerTest, ABlockOfTwoNamesIsNeverOverCountedWhereTheSinkCannotTell) {
  TestWorker worker;
  worker.SetTells(false);
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), StoreEvent({91, 92}, Tokens(8))});
  worker.Apply({RemoveEvent({2, 92})});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1);
}

// ---- Tiers ----

TEST(EngineWorkerTest, MediaMapToTiersWithoutRegardToCase) {
  const std::vector<std::pair<std::string, Tier>> media = {
      {"", Tier::kDevice},           {"gpu", Tier::kDevice},       {"DEVICE", Tier::kDevice},
      {"CPU", Tier::kHost},          {"cpu_pinned", Tier::kHost},  {"CPU_TIER1", Tier::kHost},
      {"CPU_TIER2", Tier::kDisk},    {"disk", Tier::kDisk},        {"NVMe", Tier::kDisk},
      {"STORAGE", Tier::kDisk},      {"FS", Tier::kDisk},          {"OBJ", Tier::kExternal},
      {"EXTERNAL", Tier::kExternal}, {"Network", Tier::kExternal}, {"REMOTE", Tier::kExternal},
      {"SHARED", Tier::kExternal}};
  for (const auto& [medium, tier] : media) {
    TestWorker worker;
    worker.Apply({StoreEvent({1}, Tokens(4), std::nullopt, medium)});
    EXPECT_EQ(worker.Reach(Tokens(4), {.tiers = tier}), 1) << medium;
    EXPECT_EQ(worker.Holdings().begin()->second, TierMask(tier)) << medium;
  }
}

TEST(EngineWorkerTest, AnUnknownMediumIsRefusedAndItsSiblingsKept) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4), std::nullopt, "HBM"), StoreEvent({2}, Tokens(4, 50))});
  EXPECT_EQ(worker.Reach(Tokens(4)), 0);
  EXPECT_EQ(worker.Reach(Tokens(4, 50)), 1);
  EXPECT_EQ(worker.Refused(Refusal::kUnknownMedium), 1);
}

TEST(EngineWorkerTest, LocalityAndOwnershipFailClosedWithSiblingsKept) {
  TestWorker worker;
  OwnedEvent remote = StoreEvent({1}, Tokens(4));
  remote.event.locality = "REMOTE";
  OwnedEvent mixed = StoreEvent({2}, Tokens(4));
  mixed.event.locality = "Local";
  OwnedEvent owned = StoreEvent({3}, Tokens(4));
  owned.event.ownership = "kvcr";
  OwnedEvent local = StoreEvent({4}, Tokens(4, 50));
  local.event.locality = "LOCAL";
  worker.Apply({remote, mixed, owned, local});
  EXPECT_EQ(worker.Reach(Tokens(4)), 0);
  EXPECT_EQ(worker.Reach(Tokens(4, 50)), 1);
  EXPECT_EQ(worker.Refused(Refusal::kRemoteLocality), 1);
  EXPECT_EQ(worker.Refused(Refusal::kUnknownLocality), 1);
  EXPECT_EQ(worker.Refused(Refusal::kUnsupportedOwnership), 1);
  // Nor does another owner's clear clear ours.
  OwnedEvent clear = ClearEvent();
  clear.event.ownership = "kvcr";
  worker.Apply({clear});
  EXPECT_EQ(worker.Reach(Tokens(4, 50)), 1);
}

TEST(EngineWorkerTest, TiersEvictIndependently) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), StoreEvent({1, 2}, Tokens(8), std::nullopt, "CPU")});
  worker.Apply({RemoveEvent({1, 2}, "GPU")});
  EXPECT_EQ(worker.Reach(Tokens(8), {.tiers = kDevice}), 0);
  EXPECT_EQ(worker.Reach(Tokens(8), {.tiers = kHost}), 2);
  // The name lives on with its host copy: children find it.
  worker.Apply({StoreEvent({3}, Tokens(4, 8), 2)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  worker.Apply({RemoveEvent({2}, "DISK")});
  EXPECT_EQ(worker.Refused(Refusal::kUnknownRemoved), 1);
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
}

TEST(EngineWorkerTest, TiersInterleaveInOnePrompt) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), StoreEvent({3}, Tokens(4, 8), 2, "CPU"),
                StoreEvent({4}, Tokens(4, 12), 3)});
  EXPECT_EQ(worker.Reach(Tokens(16)), 4);
  EXPECT_EQ(worker.Reach(Tokens(16), {.tiers = kDevice}), 2);
}

// SGLang's pool; vLLM's connectors announce copies (engine_offload_test.cc).
TEST(EngineWorkerTest, HostPagesThatAreAnnouncedAgainGoWithOneRemoval) {
  TestWorker worker;
  for (int i = 0; i < 3; ++i)
    worker.Apply({StoreEvent({1, 2}, Tokens(8), std::nullopt, "CPU_PINNED")});
  worker.Apply({RemoveEvent({2}, "CPU_PINNED")});
  EXPECT_EQ(worker.Reach(Tokens(8)), 1);
}

TEST(EngineWorkerTest, AClearReachesEveryTierOfItsRankAndNoOther) {
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4)), StoreEvent({1}, Tokens(4), std::nullopt, "CPU"),
                StoreEvent({9}, Tokens(4, 8), 8)});
  worker.Apply({StoreEvent({1}, Tokens(4))}, 1);
  worker.Apply({ClearEvent()});
  EXPECT_EQ(worker.Holdings().size(), 0);
  EXPECT_EQ(worker.RankStats().parked, 0);
  EXPECT_EQ(worker.RankStats().aliases, 0);
  EXPECT_EQ(worker.Reach(Tokens(4), {.rank = 1}), 1);
  worker.Apply({StoreEvent({1}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1);
}

TEST(EngineWorkerTest, MooncakesClearMayNameOneMedium) {
  TestWorker worker;
  worker.Apply({StoreEvent({1, 2}, Tokens(8)), StoreEvent({1}, Tokens(4), std::nullopt, "CPU")});
  OwnedEvent clear = ClearEvent();
  clear.event.envelope = true;
  clear.event.medium = "cpu";
  worker.Apply({clear});
  EXPECT_EQ(worker.Reach(Tokens(8), {.tiers = kHost}), 0);
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
}

// ---- Attention groups ----

OwnedEvent InGroup(OwnedEvent event, std::optional<uint32_t> group, std::string_view kind = "") {
  event.event.group = group;
  event.event.spec_kind = kind;
  return event;
}

TEST(EngineWorkerTest, OnlyMainAttentionIsIndexed) {
  for (const char* kind : {"full_attention", "mla_attention", "sink_full_attention"}) {
    TestWorker worker;
    worker.Apply({InGroup(StoreEvent({1}, Tokens(4)), 3, kind)});
    EXPECT_EQ(worker.Reach(Tokens(4)), 1) << kind;
  }
  for (const char* kind : {"unknown", "encoder_only_attention", "cross_attention"}) {
    TestWorker worker;
    worker.Apply({InGroup(StoreEvent({1}, Tokens(4)), 0, kind)});
    EXPECT_EQ(worker.Reach(Tokens(4)), 0) << kind;
    EXPECT_EQ(worker.Refused(Refusal::kNotMainAttention), 1) << kind;
  }
}

TEST(EngineWorkerTest, GroupsAreLearnedFromStoresPerRank) {
  TestWorker worker;
  worker.Apply(
      {InGroup(StoreEvent({1}, Tokens(4)), 0), InGroup(StoreEvent({2}, Tokens(4, 50)), 3)});
  EXPECT_EQ(worker.Reach(Tokens(4)), 1);
  EXPECT_EQ(worker.Reach(Tokens(4, 50)), 0);
  EXPECT_EQ(worker.Refused(Refusal::kUnlearnedGroup), 1);
  worker.Apply({InGroup(RemoveEvent({2}), 3, "full_attention")}, 1);
  worker.Apply({InGroup(StoreEvent({2}, Tokens(4, 50)), 3)}, 1);
  EXPECT_EQ(worker.Reach(Tokens(4, 50), {.rank = 1}), 0) << "removals do not teach";
  worker.Apply({InGroup(StoreEvent({2}, Tokens(4, 50)), 3, "full_attention"),
                InGroup(StoreEvent({4}, Tokens(4, 60)), 3)},
               1);
  EXPECT_EQ(worker.Reach(Tokens(4, 60), {.rank = 1}), 1);
  worker.Apply({InGroup(RemoveEvent({4}), 3)}, 1);
  EXPECT_EQ(worker.Reach(Tokens(4, 60), {.rank = 1}), 0);
}

TEST(EngineWorkerTest, ASlidingWindowGroupTakesNothingAwayOfWhatIsHeld) {
  TestWorker worker;
  worker.Apply({InGroup(StoreEvent({1, 2}, Tokens(8)), 0, "full_attention"),
                InGroup(StoreEvent({1, 2}, Tokens(8)), 1, "sliding_window")});
  worker.Apply({InGroup(RemoveEvent({1}), 1)});
  EXPECT_EQ(worker.Held(Tokens(8)), 2);
  worker.Apply({InGroup(RemoveEvent({2}), 0)});
  EXPECT_EQ(worker.Held(Tokens(8)), 1);
}

TEST(EngineWorkerTest, ABlockCountsWhenEveryMainGroupHasIt) {
  TestWorker worker;
  const auto full = [](OwnedEvent event, uint32_t group) {
    return InGroup(std::move(event), group, "full_attention");
  };
  worker.Apply({full(StoreEvent({1, 2}, Tokens(8)), 0), full(StoreEvent({1, 2}, Tokens(8)), 1)});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  worker.Apply({full(StoreEvent({3}, Tokens(4, 8), 2), 0)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 2);
  worker.Apply({full(StoreEvent({3}, Tokens(4, 8), 2), 1)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
  worker.Apply({InGroup(RemoveEvent({2}), 1)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 1);
  worker.Apply({InGroup(RemoveEvent({2}), 0)});
  worker.Apply({full(StoreEvent({2}, Tokens(4, 4), 1), 1)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 1);
  worker.Apply({full(StoreEvent({2}, Tokens(4, 4), 1), 0)});
  EXPECT_EQ(worker.Reach(Tokens(12)), 3);
}

TEST(EngineWorkerTest, RefusedEventsTeachNothing) {
  TestWorker worker;
  OwnedEvent remote = InGroup(StoreEvent({1}, Tokens(4)), 2, "full_attention");
  remote.event.locality = "REMOTE";
  OwnedEvent unknown =
      InGroup(StoreEvent({1}, Tokens(4), std::nullopt, "HBM"), 2, "full_attention");
  worker.Apply({remote, unknown, InGroup(StoreEvent({1}, Tokens(4)), 2)});
  EXPECT_EQ(worker.Reach(Tokens(4)), 0);
  EXPECT_EQ(worker.Refused(Refusal::kUnlearnedGroup), 1);
}

}  // namespace
}  // namespace kvatlas
