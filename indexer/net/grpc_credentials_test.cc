#include "indexer/net/grpc_credentials.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(CheckServerNamesTest, ASpiffeIdOfAServingRoleIsEnough) {
  for (const char* uri : {"spiffe://t/kvatlas/leaf/a/0", "spiffe://t/kvatlas/node/n",
                          "spiffe://t/kvatlas/frontend/f"}) {
    EXPECT_TRUE(CheckServerNames("10.0.0.1:7410", {uri}, {}, {}).ok()) << uri;
  }
}

TEST(CheckServerNamesTest, AWorkersKeyDoesNotServeWhateverElseItNames) {
  EXPECT_FALSE(
      CheckServerNames("localhost:7410", {"spiffe://t/kvatlas/worker/a/0"}, {"localhost"}, {})
          .ok());
  EXPECT_FALSE(
      CheckServerNames("localhost:7410", {"spiffe://t/other/leaf/a/0"}, {"localhost"}, {}).ok());
}

TEST(CheckServerNamesTest, WithoutASpiffeIdTheNameCounts) {
  EXPECT_TRUE(CheckServerNames("leaf.example:7410", {}, {"leaf.example"}, {}).ok());
  EXPECT_TRUE(CheckServerNames("dns:///LEAF.example:7410", {}, {"*.example"}, {}).ok());
  EXPECT_TRUE(CheckServerNames("127.0.0.1:7410", {}, {}, {"127.0.0.1"}).ok());
  EXPECT_TRUE(CheckServerNames("[::1]:7410", {}, {}, {"0:0:0:0:0:0:0:1"}).ok());
  EXPECT_FALSE(CheckServerNames("leaf.example:7410", {}, {"other.example"}, {}).ok());
  EXPECT_FALSE(CheckServerNames("a.b.example:7410", {}, {"*.example"}, {}).ok());
  EXPECT_FALSE(CheckServerNames("127.0.0.1:7410", {}, {"127.0.0.1"}, {}).ok());
  EXPECT_FALSE(CheckServerNames("127.0.0.1:7410", {}, {}, {}).ok());
}

}  // namespace
}  // namespace kvatlas
