#include "indexer/base/address.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(AddressTest, ReadsWhatItWrites) {
  for (const char* text :
       {"127.0.0.1:7410", "leaf-3.example:0", "[::1]:65535", "[fe80::1%eth0]:1"}) {
    const absl::StatusOr<Address> address = Address::Parse(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_EQ(*Address::Parse("[::1]:80"), (Address{"::1", 80}));
}

TEST(AddressTest, RefusesAnythingElseByName) {
  for (const char* text :
       {"", ":", ":80", "host", "host:", "host:65536", "host:-1", "host:+1", "host: 1", "host:1x",
        "host:99999999999", "::1:80", "[]:80", "a b:80", "http://host:80", "[::1]80", "a,b:1"}) {
    const absl::StatusOr<Address> address = Address::Parse(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(address.status().message().find(text), absl::string_view::npos) << address.status();
  }
}

}  // namespace
}  // namespace kvatlas
