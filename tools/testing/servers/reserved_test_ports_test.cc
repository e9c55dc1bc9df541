#include "tools/testing/servers/reserved_test_ports.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvatlas {
namespace {

// A TCP socket, as servers make theirs; bound to any port of this host, or to that one.
class Socket {
 public:
  explicit Socket(uint16_t port = 0) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in at = At(port);
    socklen_t size = sizeof(at);
    bound_ = bind(fd_, reinterpret_cast<sockaddr*>(&at), size) == 0;
    getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    address_ = {"127.0.0.1", ntohs(at.sin_port)};
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool Listen() { return bound_ && listen(fd_, 8) == 0; }
  const Address& address() const { return address_; }

  static bool Connects(const Address& to) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in at = At(to.port);
    const bool connects = connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
    close(fd);
    return connects;
  }

 private:
  static sockaddr_in At(uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }

  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool bound_ = false;
  Address address_;
};

TEST(HeldPortsTest, AProcessThatNamesAHeldPortListensOnItAgainAndAgain) {
  ReservedTestPorts held;
  const Socket
      kept;  // so that no other process gets it between the first listener and what is tested
  const Address address = kept.address();
  {
    Socket first(address.port);
    ASSERT_TRUE(first.Listen());
    EXPECT_FALSE(held.Hold(address)) << "it is not free yet";
  }
  ASSERT_TRUE(held.Hold(address));
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(Socket::Connects(address));
    Socket again(address.port);
    ASSERT_TRUE(again.Listen());
    EXPECT_TRUE(Socket::Connects(address));
    EXPECT_TRUE(held.Hold(address)) << "as before";
  }
}

TEST(HeldPortsTest, AnyPortThatWasFreeIsHeldBeforeItsFirstListener) {
  ReservedTestPorts held;
  const Address address = held.HoldAny();
  EXPECT_NE(held.HoldAny(), address);
  EXPECT_TRUE(held.Hold(address)) << "as it is";
  EXPECT_FALSE(Socket::Connects(address));
  Socket listener(address.port);
  ASSERT_TRUE(listener.Listen());
  EXPECT_TRUE(Socket::Connects(address));
}

// Of some 28,000: one that is free would most likely be among them.
TEST(HeldPortsTest, ARequestForAnyPortIsNotGivenIt) {
  ReservedTestPorts held;
  Address address;
  do {
    address = Socket().address();
  } while (!held.Hold(address));
  for (int i = 0; i < 40'000; ++i) ASSERT_NE(Socket().address().port, address.port);
}

TEST(HeldPortsTest, WhatIsNoPortOfIpv4IsNotHeld) {
  ReservedTestPorts held;
  EXPECT_FALSE(held.Hold({"127.0.0.1", 0}));
  EXPECT_FALSE(held.Hold({"::1", 7410}));
  EXPECT_FALSE(held.Hold({"localhost", 7410}));
}

}  // namespace
}  // namespace kvatlas
