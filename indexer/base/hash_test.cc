#include "indexer/base/hash.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvatlas {
namespace {

std::vector<TokenId> Tokens(TokenId count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0u);
  return tokens;
}

std::vector<uint64_t> Locals(const std::vector<TokenId>& tokens, Blocking blocking,
                             CacheNamespace ns = {},
                             std::vector<std::vector<uint64_t>> multimodal = {}) {
  std::vector<uint64_t> raw;
  for (LocalHash local : LocalHashes(tokens, blocking, BlockSeed(ns), multimodal))
    raw.push_back(Raw(local));
  return raw;
}

std::vector<uint64_t> Chain(const std::vector<uint64_t>& locals) {
  std::vector<LocalHash> typed;
  for (uint64_t local : locals) typed.push_back(LocalHash{local});
  std::vector<uint64_t> raw;
  for (SequenceHash hash : SequenceHashes(typed)) raw.push_back(Raw(hash));
  return raw;
}

using U64s = std::vector<uint64_t>;

const CacheNamespace kLora{.lora_name = "adapter-a", .cache_salt = {}};
const CacheNamespace kSalt{.lora_name = {}, .cache_salt = "tenant-a"};
const CacheNamespace kBoth{.lora_name = "adapter-a", .cache_salt = "tenant-a"};

TEST(HashTest, Xxh3MatchesThePinnedVector) {
  EXPECT_EQ(Xxh3("test data", 1337), 13226331709069118873u);
}

TEST(HashTest, BlocksOfFourTokens) {
  const U64s locals = Locals(Tokens(16), {.block_size = 4});
  EXPECT_EQ(locals, (U64s{9143094415614847814u, 12124091508212882195u, 1088361764653601668u,
                          16024980976528976948u}));
  EXPECT_EQ(Chain(locals), (U64s{9143094415614847814u, 9510318385840434533u, 16998148715716822651u,
                                 16790386768269814709u}));
}

TEST(HashTest, BlocksOfSixteenTokens) {
  const U64s locals = Locals(Tokens(64), {.block_size = 16});
  EXPECT_EQ(locals, (U64s{15310707395893867146u, 15292316782987903195u, 5532946206955930018u,
                          14928757266181269122u}));
  EXPECT_EQ(Chain(locals), (U64s{15310707395893867146u, 13769157705258532664u,
                                 11879827756109914528u, 3888788807566526800u}));
}

TEST(HashTest, ChainOfGivenLocals) {
  EXPECT_EQ(Chain({11, 22, 33}), (U64s{11, 750553365844651409u, 3257565445809651757u}));
  EXPECT_EQ(Chain({11, 12, 13}), (U64s{11, 10497221074644697006u, 8340346278797266542u}));
  EXPECT_EQ(Chain({1, 2, 3, 4, 5}), (U64s{1, 16740963408272063728u, 5417695437591212399u,
                                          15413681679220706959u, 16713516116484648481u}));
}

TEST(HashTest, LoraAndSaltEnterTheSeed) {
  EXPECT_EQ(BlockSeed(kLora), 8842669519798868182u);
  EXPECT_EQ(BlockSeed(kSalt), 1948188790972764086u);
  EXPECT_EQ(BlockSeed(kBoth), 10790858310771630931u);
  EXPECT_EQ(BlockSeed({.lora_name = "tenant-a", .cache_salt = {}}), 7159698576361520314u);
  const Blocking four{.block_size = 4};
  EXPECT_EQ(Locals(Tokens(4), four, kLora), U64s{6665157333201000639u});
  EXPECT_EQ(Locals(Tokens(4), four, kSalt), U64s{17009624042690211646u});
  EXPECT_EQ(Locals(Tokens(4), four, kBoth), U64s{8269515957840517240u});
  EXPECT_EQ(Locals(Tokens(4), four, {.lora_name = "tenant-a", .cache_salt = {}}),
            U64s{582854293518545300u});
}

TEST(HashTest, LoraAndSaltOfLongerChains) {
  const Blocking sixteen{.block_size = 16};
  const U64s lora = Locals(Tokens(64), sixteen, kLora);
  EXPECT_EQ(lora, (U64s{17429507120064042683u, 1723388133915243822u, 3872641501775461725u,
                        16230340526259248858u}));
  EXPECT_EQ(Chain(lora), (U64s{17429507120064042683u, 4583864956845344433u, 11664870012742997872u,
                               12264960597671718000u}));
  const U64s salt = Locals(Tokens(64), sixteen, kSalt);
  EXPECT_EQ(salt, (U64s{2130915519417463704u, 14342547135021016991u, 11634673069974245442u,
                        3876172088424304685u}));
  EXPECT_EQ(Chain(salt), (U64s{2130915519417463704u, 13676355973429745432u, 5254782175510064001u,
                               6993337185294030064u}));
  const U64s both = Locals(Tokens(64), sixteen, kBoth);
  EXPECT_EQ(both, (U64s{6489352321440148776u, 17468414546969206908u, 17108323725510623205u,
                        2014239304833052018u}));
  EXPECT_EQ(Chain(both), (U64s{6489352321440148776u, 7326002458079553078u, 10178400665003407455u,
                               9537429325745920030u}));
}

TEST(HashTest, MultimodalHashesAreSortedAndAppended) {
  const Blocking two{.block_size = 2};
  EXPECT_EQ(Locals(Tokens(4), two), (U64s{10918435022357402928u, 10731123482949079648u}));
  EXPECT_EQ(Locals(Tokens(4), two, {}, {{42}}),
            (U64s{6100948656312251355u, 10731123482949079648u}));
  EXPECT_EQ(Locals(Tokens(4), two, {}, {{7, 3, 7}, {}}),
            (U64s{9546817908625117111u, 10731123482949079648u}));
}

TEST(HashTest, AnItemIsInEachBlockOfWhichItHasAToken) {
  using Blocks = std::vector<std::vector<uint64_t>>;
  EXPECT_EQ(ItemsByBlock({}, 100, 16), Blocks{});
  const std::vector<PromptItem> items = {{.offset = 15, .length = 18, .hash = 7},
                                         {.offset = 33, .length = 1, .hash = 8},
                                         {.offset = 64, .length = 16, .hash = 9}};
  EXPECT_EQ(ItemsByBlock(items, 100, 16), (Blocks{{7}, {7}, {7, 8}, {}, {9}}));
  // Tokens behind the prompt are not part of it.
  EXPECT_EQ(ItemsByBlock(items, 20, 16), (Blocks{{7}, {7}}));
  EXPECT_EQ(ItemsByBlock(items, 100, 0), Blocks{});
}

TEST(HashTest, MultimodalIdentifiers) {
  EXPECT_EQ(MultimodalHash("opaque-renderer-image-0"), 14437604544409538977u);
  const std::string hex = "0123456789abcdef";
  EXPECT_EQ(MultimodalHash(hex + hex + hex + hex), 0x0123456789abcdefu);
  EXPECT_EQ(MultimodalHash(""), 0u);
}

TEST(HashTest, EagleLooksOneTokenAhead) {
  EXPECT_EQ(Locals(Tokens(6), {.block_size = 2, .eagle = true}),
            (U64s{11646242937812223497u, 9948816348502404300u}));
  EXPECT_EQ(Locals(Tokens(6), {.block_size = 2}),
            (U64s{10918435022357402928u, 10731123482949079648u, 12189426826560619506u}));
  EXPECT_EQ(Locals(Tokens(64), {.block_size = 16, .eagle = true}),
            (U64s{11423441316381344367u, 6554946393898374776u, 6629656204900913084u}));
  EXPECT_EQ(Chain(Locals(Tokens(65), {.block_size = 16, .eagle = true})),
            (U64s{11423441316381344367u, 14166973624120985939u, 5245424631710714814u,
                  12591916315549086943u}));
}

TEST(HashTest, LargeBlocksReachEveryRegimeOfXxh3) {
  const U64s of32 = Locals(Tokens(64), {.block_size = 32});
  EXPECT_EQ(of32, (U64s{5756925433886871916u, 13958166640625465031u}));
  EXPECT_EQ(Chain(of32)[1], 16658382216643214443u);
  EXPECT_EQ(Locals(Tokens(64), {.block_size = 64}), U64s{3480597578098033343u});
  EXPECT_EQ(Locals(Tokens(128), {.block_size = 128}), U64s{9509643624113304476u});
  EXPECT_EQ(Locals(Tokens(256), {.block_size = 256}), U64s{13509048708924160886u});
}

TEST(HashTest, ExtremeTokenIds) {
  const U64s locals = Locals({4294967295u, 0, 1, 4294967295u}, {.block_size = 2});
  EXPECT_EQ(locals, (U64s{2890553148568790305u, 14187609823255642534u}));
  EXPECT_EQ(Chain(locals)[1], 10252905661108212608u);
}

TEST(HashTest, APartialTailIsNoBlock) {
  EXPECT_EQ(Locals(Tokens(31), {.block_size = 16}).size(), 1u);
  EXPECT_TRUE(Locals(Tokens(15), {.block_size = 16}).empty());
  EXPECT_TRUE(Locals({}, {.block_size = 16, .eagle = true}).empty());
  EXPECT_TRUE(Locals(Tokens(4), {.block_size = 0}).empty());
}

TEST(HashTest, AChainContinuesWhereItWasCut) {
  const std::vector<LocalHash> locals = LocalHashes(Tokens(64), {.block_size = 4}, BlockSeed({}));
  const std::vector<SequenceHash> whole = SequenceHashes(locals);
  const std::vector<SequenceHash> tail =
      SequenceHashesAfter(whole[5], std::span(locals).subspan(6));
  EXPECT_EQ(tail, std::vector<SequenceHash>(whole.begin() + 6, whole.end()));
}

TEST(HashTest, ContractsOfDifferentSeedsHaveDifferentIds) {
  EXPECT_EQ(HashContract{}.Id(), "xxh3-chain-1:1337");
  EXPECT_NE(HashContract{.seed = 7}.Id(), HashContract{}.Id());
}

}  // namespace
}  // namespace kvatlas
