#include "indexer/transport/peer_address.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(PeerAddressTest, PortsOfOneHostAreOneAddress) {
  EXPECT_EQ(PeerAddress("ipv4:10.0.0.7:4711"), "10.0.0.7");
  EXPECT_EQ(PeerAddress("ipv4:10.0.0.7:4712"), "10.0.0.7");
}

TEST(PeerAddressTest, OfIpv6TheFirst64BitsCount) {
  EXPECT_EQ(PeerAddress("ipv6:%5B2001:db8:1:2::7%5D:80"), "2001:db8:1:2::/64");
  EXPECT_EQ(PeerAddress("ipv6:[2001:db8:1:2:3:4:5:6]:81"), "2001:db8:1:2::/64");
  EXPECT_EQ(PeerAddress("ipv6:%5Bfe80::1%25eth0%5D:80"), "fe80::/64");
  EXPECT_EQ(PeerAddress("ipv6:%5B::1%5D:80"), "::/64");
}

TEST(PeerAddressTest, AnIpv4AddressInsideIpv6IsThatAddress) {
  EXPECT_EQ(PeerAddress("ipv6:%5B::ffff:10.0.0.7%5D:80"), "10.0.0.7");
}

TEST(PeerAddressTest, WhatIsNeitherIsCutAtABound) {
  EXPECT_EQ(PeerAddress("unix:/run/leaf.sock"), "unix:/run/leaf.sock");
  EXPECT_EQ(PeerAddress("ipv6:nonsense"), "ipv6:nonsense");
  EXPECT_EQ(PeerAddress(std::string(1000, 'x')).size(), 128u);
}

}  // namespace
}  // namespace kvatlas
