#include "indexer/base/engine_addresses.h"
#include "indexer/base/resolve_host.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>
#include <vector>

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineAddressesTest, LoopbackAndPrivateRangesAreTheDefault) {
  const EngineAddresses addresses;
  for (const char* within : {"127.0.0.1", "127.255.0.1", "::1", "10.0.0.1", "10.255.255.255",
                             "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fdff::1",
                             "::ffff:10.0.0.1", "::ffff:127.0.0.1", "fd00::1%eth0"}) {
    EXPECT_TRUE(addresses.Contains(within)) << within;
  }
  for (const char* outside :
       {"8.8.8.8", "0.0.0.0", "::", "172.15.255.255", "172.32.0.0", "169.254.1.1", "fe80::1",
        "fe80::1%eth0", "2001:db8::1", "::ffff:8.8.8.8", "100.64.0.1", "255.255.255.255",
        "localhost", "", "10.1", "0x0a000001", "10.0.0.1%eth0", "010.0.0.1", "[::1]"}) {
    EXPECT_FALSE(addresses.Contains(outside)) << outside;
  }
}

TEST(EngineAddressesTest, MetadataServicesAreNeverWithin) {
  const absl::StatusOr<EngineAddresses> all = EngineAddresses::Parse({"0.0.0.0/0", "::/0"});
  ASSERT_TRUE(all.ok()) << all.status();
  for (const char* never :
       {"169.254.169.254", "100.100.100.200", "fd00:ec2::254", "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe", "::ffff:100.100.100.200", "::169.254.169.254",
        "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::1", "169.254.170.2", "fd20:ce::254"}) {
    EXPECT_FALSE(all->Contains(never)) << never;
    EXPECT_THAT(std::string(all->CheckHost(never).message()), HasSubstr("metadata")) << never;
  }
  EXPECT_TRUE(all->Contains("169.254.169.253"));
  EXPECT_TRUE(all->Contains("64:ff9b::8.8.8.8"));
  EXPECT_FALSE(EngineAddresses::Parse({"169.254.169.254"})->Contains("169.254.169.254"));
}

TEST(EngineAddressesTest, RangesAreOfTheirFamilyAlone) {
  const EngineAddresses four = *EngineAddresses::Parse({"0.0.0.0/0"});
  EXPECT_TRUE(four.Contains("8.8.8.8"));
  EXPECT_TRUE(four.Contains("::ffff:8.8.8.8"));
  EXPECT_FALSE(four.Contains("2001:db8::1"));
  const EngineAddresses six = *EngineAddresses::Parse({"::/0"});
  EXPECT_TRUE(six.Contains("2001:db8::1"));
  EXPECT_FALSE(six.Contains("8.8.8.8"));
  EXPECT_FALSE(six.Contains("::ffff:8.8.8.8"));
  const EngineAddresses mapped = *EngineAddresses::Parse({"::ffff:10.0.0.0/104"});
  EXPECT_TRUE(mapped.Contains("10.9.9.9"));
  EXPECT_FALSE(mapped.Contains("11.0.0.0"));
}

TEST(EngineAddressesTest, PrefixesEndAnywhere) {
  const EngineAddresses odd = *EngineAddresses::Parse({"10.1.2.128/25", "192.0.2.7", "fd00::/9"});
  EXPECT_TRUE(odd.Contains("10.1.2.128"));
  EXPECT_TRUE(odd.Contains("10.1.2.255"));
  EXPECT_FALSE(odd.Contains("10.1.2.127"));
  EXPECT_TRUE(odd.Contains("192.0.2.7"));
  EXPECT_FALSE(odd.Contains("192.0.2.6"));
  EXPECT_TRUE(odd.Contains("fd7f::1"));
  EXPECT_FALSE(odd.Contains("fd80::1"));
  EXPECT_FALSE(EngineAddresses::Parse({})->Contains("127.0.0.1"));
}

TEST(EngineAddressesTest, WhatIsNoRangeIsRefusedByName) {
  for (const char* bad :
       {"", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0/8", "h/8", "10.0.0.0/-1", "10.0.0.0/8/8",
        "10.0.0.0/ 8", "::ffff:10.0.0.0/90", "fe80::%eth0/10"}) {
    const absl::Status status = EngineAddresses::Parse({"127.0.0.1", bad}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--engine_addresses"), HasSubstr(bad)));
  }
}

TEST(EngineAddressesTest, SocketAddressesAreTheSame) {
  const EngineAddresses addresses;
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  inet_pton(AF_INET, "10.0.0.1", &four.sin_addr);
  EXPECT_TRUE(addresses.Contains(reinterpret_cast<const sockaddr*>(&four)));
  inet_pton(AF_INET, "8.8.8.8", &four.sin_addr);
  EXPECT_FALSE(addresses.Contains(reinterpret_cast<const sockaddr*>(&four)));
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  inet_pton(AF_INET6, "::ffff:192.168.0.1", &six.sin6_addr);
  EXPECT_TRUE(addresses.Contains(reinterpret_cast<const sockaddr*>(&six)));
  inet_pton(AF_INET6, "2001:db8::1", &six.sin6_addr);
  EXPECT_FALSE(addresses.Contains(reinterpret_cast<const sockaddr*>(&six)));
  sockaddr other = {};
  other.sa_family = AF_UNIX;
  EXPECT_FALSE(addresses.Contains(&other));
}

TEST(EngineAddressesTest, OfANamesAddressesThoseWithinAreLeft) {
  const EngineAddresses addresses;
  EXPECT_THAT(*addresses.Within("engine", {"8.8.8.8", "10.0.0.1", "::1"}),
              ElementsAre("10.0.0.1", "::1"));
  const absl::Status outside = addresses.Within("engine", {"8.8.8.8"}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(outside));
  EXPECT_THAT(std::string(outside.message()),
              AllOf(HasSubstr("engine"), HasSubstr("8.8.8.8"), HasSubstr("10.0.0.0/8")));
  EXPECT_TRUE(addresses.CheckHost("engine").ok());
  EXPECT_TRUE(addresses.CheckHost("10.0.0.1").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(addresses.CheckHost("8.8.8.8")));
}

TEST(EngineAddressesTest, TheSystemResolvesNamesAndOddNumbers) {
  // The resolver takes every form that inet_aton takes; the address that comes out is what counts.
  EXPECT_THAT(*ResolveHost("127.1"), ElementsAre("127.0.0.1"));
  EXPECT_THAT(*ResolveHost("0xa9fea9fe"), ElementsAre("169.254.169.254"));
  const auto local = ResolveHost("localhost");
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_THAT(*EngineAddresses().Within("localhost", *local), ::testing::Not(::testing::IsEmpty()));
  EXPECT_TRUE(absl::IsUnavailable(ResolveHost("no-such-host.invalid").status()));
}

}  // namespace
}  // namespace kvatlas
