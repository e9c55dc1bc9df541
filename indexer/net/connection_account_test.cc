#include "indexer/net/connection_account.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

using Outcome = ConnectionListener::Outcome;

// A descriptor that is closed at the end.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Close(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

Fd Connect(const Address& to, const char* from = "127.0.0.1") {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, from, &address.sin_addr);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  inet_pton(AF_INET, to.host.c_str(), &address.sin_addr);
  address.sin_port = htons(to.port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// True: the other side has ended it, or does so soon: the kernel may tell later than `close`
// returns there.
bool Ends(const Fd& fd) {
  char byte;
  pollfd ready = {fd.get(), POLLIN, 0};
  return poll(&ready, 1, 60'000) > 0 && recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0;
}
bool Ended(const Fd& fd) {
  char byte;
  return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

class ConnectionAccountTest : public testing::Test {
 protected:
  void Listen(ConnectionListenerOptions options) {
    const absl::Status status = listener_.Listen({"127.0.0.1", 0}, options);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  // The next one that connects.
  ConnectionListener::Accepted Accept() {
    pollfd ready = {listener_.fd(), POLLIN, 0};
    poll(&ready, 1, 60'000);
    ConnectionListener::Accepted accepted;
    do {
      accepted = listener_.Accept(/*with_busy=*/true);
    } while (accepted.outcome == Outcome::kFull);
    return accepted;
  }

  // A client, and the outcome of its connection.
  std::pair<Fd, ConnectionListener::Accepted> Come(const char* from = "127.0.0.1") {
    Fd client = Connect(listener_.address(), from);
    return {std::move(client), Accept()};
  }

  ConnectionListener listener_;
};

TEST_F(ConnectionAccountTest, BeyondTheBoundTheLongestSilentOneGives) {
  Listen({.connections_max = 4});
  auto [first, a] = Come("127.0.0.2");
  auto [second, b] = Come("127.0.0.2");
  auto [other, c] = Come("127.0.0.3");
  const Fd owned[] = {Fd(a.fd), Fd(b.fd), Fd(c.fd)};
  ASSERT_EQ(c.outcome, Outcome::kAccepted);
  auto [fourth, d] = Come("127.0.0.3");
  const Fd fourth_owned(d.fd);
  ASSERT_EQ(d.outcome, Outcome::kAccepted);
  // It waits while all connections are new; then the first one is closed for it.
  auto [fifth, e] = Come("127.0.0.4");
  const Fd fifth_owned(e.fd);
  ASSERT_EQ(e.outcome, Outcome::kAccepted);
  EXPECT_TRUE(Ends(first));
  EXPECT_FALSE(Ended(second));
  EXPECT_FALSE(Ended(other));
  EXPECT_FALSE(Ended(fourth));
  EXPECT_EQ(listener_.counts().made_room, 1u);
}

TEST_F(ConnectionAccountTest, OnePeerLeavesAQuarterToOthers) {
  Listen({.connections_max = 4});
  std::vector<std::pair<Fd, ConnectionListener::Accepted>> of_one;
  for (int i = 0; i < 3; ++i) {
    of_one.push_back(Come("127.0.0.2"));
    ASSERT_EQ(of_one.back().second.outcome, Outcome::kAccepted);
    of_one.back().second.busy->store(true);
  }
  EXPECT_EQ(Come("127.0.0.2").second.outcome, Outcome::kShed);
  auto [other, accepted] = Come("127.0.0.3");
  EXPECT_EQ(accepted.outcome, Outcome::kAccepted);
  close(accepted.fd);
  for (auto& [client, taken] : of_one) close(taken.fd);
}

TEST_F(ConnectionAccountTest, ClosedOnesAreNotCounted) {
  Listen({.connections_max = 2});
  for (int i = 0; i < 100; ++i) {
    auto [client, accepted] = Come();
    ASSERT_EQ(accepted.outcome, Outcome::kAccepted);
    close(accepted.fd);
  }
  EXPECT_EQ(listener_.counts().made_room, 0u);
}

TEST_F(ConnectionAccountTest, OneThatIsClosedTwiceIsCountedOnce) {
  Listen({.connections_max = 2});
  auto [client, accepted] = Come("127.0.0.2");
  const Fd owned(accepted.fd);
  sockaddr_in own = {};
  socklen_t size = sizeof(own);
  ASSERT_EQ(getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  const Address peer{"127.0.0.2", ntohs(own.sin_port)};
  EXPECT_TRUE(CloseConnectionFrom(peer, EndedFor::kCalls));
  EXPECT_FALSE(CloseConnectionFrom(peer, EndedFor::kCalls));
  EXPECT_TRUE(Ends(client));
  EXPECT_EQ(Come("127.0.0.2").second.outcome, Outcome::kAccepted);
}

TEST_F(ConnectionAccountTest, WhatAClosedOneHasSentIsNotRead) {
  Listen({});
  auto [client, accepted] = Come("127.0.0.2");
  const Fd owned(accepted.fd);
  ASSERT_EQ(send(client.get(), "hello", 5, MSG_NOSIGNAL), 5);
  pollfd ready = {owned.get(), POLLIN, 0};
  poll(&ready, 1, 60'000);
  sockaddr_in own = {};
  socklen_t size = sizeof(own);
  ASSERT_EQ(getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
  EXPECT_TRUE(CloseConnectionFrom({"127.0.0.2", ntohs(own.sin_port)}, EndedFor::kCalls));
  EXPECT_TRUE(Ends(owned));
}

TEST_F(ConnectionAccountTest, BusyOnesStayAndTheReserveIsTaken) {
  Listen({.connections_max = 2, .reserve = 1});
  auto [first, a] = Come("127.0.0.2");
  auto [second, b] = Come("127.0.0.3");
  const Fd owned[] = {Fd(a.fd), Fd(b.fd)};
  a.busy->store(true);
  b.busy->store(true);
  auto [third, c] = Come("127.0.0.4");
  const Fd third_owned(c.fd);
  ASSERT_EQ(c.outcome, Outcome::kAccepted);
  EXPECT_TRUE(c.on_reserve);
  c.busy->store(true);
  EXPECT_EQ(Come("127.0.0.4").second.outcome, Outcome::kShed);
  EXPECT_FALSE(Ended(first));
}

TEST_F(ConnectionAccountTest, WithoutADescriptorConnectionsAreRefusedAndLaterTaken) {
  Listen({});
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  std::vector<Fd> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect(listener_.address()));
  std::vector<Fd> hoard;
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int fd = 0; fd >= 0;) {
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) hoard.emplace_back(fd);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Accept().outcome, Outcome::kShed);
  hoard.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  for (const Fd& client : clients) EXPECT_TRUE(Ends(client));
  auto [client, accepted] = Come();
  EXPECT_EQ(accepted.outcome, Outcome::kAccepted);
  close(accepted.fd);
}

TEST_F(ConnectionAccountTest, AConnectionIsClosedByItsPeersAddress) {
  Listen({});
  auto [client, accepted] = Come("127.0.0.2");
  const Fd owned(accepted.fd);
  sockaddr_in own = {};
  socklen_t size = sizeof(own);
  getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &size);
  const uint64_t before = ConnectionsEnded(EndedFor::kBytes);
  EXPECT_TRUE(CloseConnectionFrom({"127.0.0.2", ntohs(own.sin_port)}, EndedFor::kBytes));
  EXPECT_TRUE(Ends(client));
  EXPECT_FALSE(CloseConnectionFrom({"127.0.0.9", 1}, EndedFor::kBytes));
  EXPECT_EQ(ConnectionsEnded(EndedFor::kBytes), before + 1);
}

// In steps so large that the bytes which are free in a second do not matter.
TEST_F(ConnectionAccountTest, WhoSendsIsListedUntilItProgresses) {
  constexpr size_t kStep = 40'000;
  Listen({.may_send = 5});
  auto [client, accepted] = Come("127.0.0.2");
  const Fd owned(accepted.fd);
  const auto send_and_read = [&, fd = client.get()](int steps) {
    for (; steps > 0; --steps) {
      const std::string bytes(kStep, '.');
      ASSERT_EQ(send(fd, bytes.data(), kStep, MSG_NOSIGNAL), static_cast<ssize_t>(kStep));
      char buffer[kStep];
      size_t got = 0;
      for (pollfd ready = {owned.get(), POLLIN, 0}; got < kStep && poll(&ready, 1, 60'000) > 0;)
        got += static_cast<size_t>(recv(owned.get(), buffer, sizeof(buffer), 0));
      ASSERT_EQ(got, kStep);
    }
  };
  send_and_read(2);
  EXPECT_TRUE(listener_.Senders(2 * kStep).empty());
  send_and_read(1);
  std::vector<ConnectionListener::Sender> senders = listener_.Senders(2 * kStep);
  ASSERT_EQ(senders.size(), 1u);
  EXPECT_EQ(senders[0].peer.host, "127.0.0.2");
  EXPECT_EQ(senders[0].bytes, 3 * kStep);
  EXPECT_GT(senders[0].since, 2 * kStep);
  EXPECT_EQ(senders[0].may_send, 5u);
  senders[0].progress = 7;
  listener_.Progressed(senders[0], 6);
  send_and_read(3);
  EXPECT_TRUE(listener_.Senders(3 * kStep).empty());
  send_and_read(1);
  senders = listener_.Senders(3 * kStep);
  ASSERT_EQ(senders.size(), 1u);
  EXPECT_GT(senders[0].since, 3 * kStep);
  EXPECT_EQ(senders[0].may_send, 6u);
  EXPECT_EQ(senders[0].progress, 7);
}

// Bytes that wait in the system's buffer cost this process nothing, and its owner may be slow.
TEST_F(ConnectionAccountTest, WhatWasNotReadIsNotCounted) {
  Listen({});
  auto [client, accepted] = Come("127.0.0.2");
  const Fd owned(accepted.fd);
  const std::string bytes(40'000, '.');
  ASSERT_EQ(send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 40'000);
  pollfd ready = {owned.get(), POLLIN, 0};
  poll(&ready, 1, 60'000);
  EXPECT_TRUE(listener_.Senders(1).empty());
}

TEST_F(ConnectionAccountTest, AListenerThatDoesNotAcceptIsNamed) {
  Listen({.greeting_bytes = 9});
  const absl::Status status = CheckOwnListeners(std::chrono::milliseconds(50));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find(listener_.address().ToString()), std::string::npos);
}

}  // namespace
}  // namespace kvatlas
