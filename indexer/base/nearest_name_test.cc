#include "indexer/base/nearest_name.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

const std::vector<std::string> kNames = {
    "parents", "parents_overlap", "cell", "lease_ttl", "grpc", "http", "index", "index_shards"};

TEST(NearestNameTest, SlipsOfTheKeyboardAreUnderstood) {
  EXPECT_EQ(NearestName("parrents", kNames), "parents");
  EXPECT_EQ(NearestName("parnets", kNames), "parents");
  EXPECT_EQ(NearestName("parent", kNames), "parents");
  EXPECT_EQ(NearestName("cel", kNames), "cell");
  EXPECT_EQ(NearestName("leafs", {"leaves", "redis"}), "leaves");
  EXPECT_EQ(NearestName("lease_tll", kNames), "lease_ttl");
  EXPECT_EQ(NearestName("index_shard", kNames), "index_shards");
}

TEST(NearestNameTest, ABeginningIsUnderstoodWhereThereIsOneOfThem) {
  EXPECT_EQ(NearestName("lease", kNames), "lease_ttl");
  EXPECT_EQ(NearestName("grpc_address", kNames), "grpc");
  EXPECT_EQ(NearestName("par", kNames), std::nullopt);
}

TEST(NearestNameTest, WhatIsFarFromAllIsNoSlip) {
  EXPECT_EQ(NearestName("tokenizer", kNames), std::nullopt);
  EXPECT_EQ(NearestName("", kNames), std::nullopt);
  EXPECT_EQ(NearestName("x", {}), std::nullopt);
  EXPECT_EQ(NearestName(std::string(1 << 20, 'x'), kNames), std::nullopt);
}

TEST(NearestNameTest, TheSentenceNamesIt) {
  EXPECT_EQ(DidYouMean("parrents", kNames, "--"), "; did you mean --parents?");
  EXPECT_EQ(DidYouMean("zzz", kNames, "--"), "");
}

}  // namespace
}  // namespace kvatlas
