#include "indexer/net/http_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvatlas {
namespace {

class HttpHostTest : public ::testing::Test {
 protected:
  ~HttpHostTest() override { SetHttpNames({}); }
};

TEST_F(HttpHostTest, NamesThatNoStrangerOwnsAreOwn) {
  for (const char* const host :
       {"", "127.0.0.1", "127.0.0.1:8090", "10.1.2.3:80", "[::1]", "[::1]:8090", "[fe80::1]:80",
        "localhost", "LocalHost:8000", "localhost.:80", "app.localhost", "kvatlas", "kvatlas:8000",
        "leaf.example:80", "LEAF.example"}) {
    EXPECT_TRUE(IsOwnHost(host, "leaf.example")) << host;
  }
}

TEST_F(HttpHostTest, OthersAreNot) {
  for (const char* const host :
       {"evil.example", "evil.example:8090", "EVIL.example.", "127.0.0.1.evil.example",
        "localhost.evil.example", "notlocalhost.example", "1.2.3.4.5", "a.b",
        "leaf.example.evil.example"}) {
    EXPECT_FALSE(IsOwnHost(host, "leaf.example")) << host;
  }
}

TEST_F(HttpHostTest, NamesOfTheFlagAreOwn) {
  SetHttpNames({"api.example.org"});
  EXPECT_TRUE(IsOwnHost("API.example.org:443", "127.0.0.1"));
  EXPECT_FALSE(IsOwnHost("evil.example.org", "127.0.0.1"));
  SetHttpNames({"*"});
  EXPECT_TRUE(IsOwnHost("evil.example.org", "127.0.0.1"));
}

TEST_F(HttpHostTest, ARefusedOneIsToldWhatToDo) {
  EXPECT_THAT(NotOwnHost("evil.example:80"), ::testing::HasSubstr("--http_names=evil.example"));
}

}  // namespace
}  // namespace kvatlas
