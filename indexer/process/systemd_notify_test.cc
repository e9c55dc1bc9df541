#include "indexer/process/systemd_notify.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace kvatlas {
namespace {

// systemd's end: a real datagram socket, at a path or an abstract name.
class SystemdNotifyTest : public ::testing::TestWithParam<bool> {
 protected:
  SystemdNotifyTest() {
    const bool abstract = GetParam();
    const std::string name = "/tmp/kvatlas-notify." + std::to_string(getpid());
    name_ = abstract ? "@" + name : name;
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, name_.data(), name_.size());
    if (abstract) at.sun_path[0] = '\0';
    unlink(name.c_str());
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&at), size), 0) << strerror(errno);
    setenv("NOTIFY_SOCKET", name_.c_str(), 1);
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
  }
  ~SystemdNotifyTest() override {
    close(socket_);
    if (!GetParam()) unlink(name_.c_str());
    unsetenv("NOTIFY_SOCKET");
  }

  // The next message; empty: none.
  std::string Read() {
    char buffer[512];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }

  std::string name_;
  int socket_ = -1;
};

TEST_P(SystemdNotifyTest, HearsEachState) {
  SystemdNotify systemd;
  EXPECT_FALSE(systemd.has_watchdog());
  systemd.Ready("grpc=127.0.0.1:1");
  EXPECT_EQ(Read(), "READY=1\nSTATUS=grpc=127.0.0.1:1");
  systemd.Reloading(std::chrono::seconds(3));
  EXPECT_EQ(Read(), "RELOADING=1\nMONOTONIC_USEC=3000000");
  systemd.Stopping();
  EXPECT_EQ(Read(), "STOPPING=1");
  EXPECT_EQ(Read(), "");
}

TEST_P(SystemdNotifyTest, WatchdogIsToldTwiceInItsTimeWhileTheProcessLives) {
  setenv("WATCHDOG_USEC", "3000000", 1);
  SystemdNotify systemd;
  ASSERT_TRUE(systemd.has_watchdog());
  const Time now = std::chrono::seconds(100);
  systemd.Watchdog(now, /*live=*/true);
  EXPECT_EQ(Read(), "WATCHDOG=1");
  EXPECT_EQ(systemd.watchdog_at(), now + std::chrono::milliseconds(1500));
  systemd.Watchdog(systemd.watchdog_at(), /*live=*/false);
  EXPECT_EQ(Read(), "");
}

TEST_P(SystemdNotifyTest, WatchdogOfAnotherProcessIsNotOurs) {
  setenv("WATCHDOG_USEC", "3000000", 1);
  setenv("WATCHDOG_PID", std::to_string(getpid() + 1).c_str(), 1);
  EXPECT_FALSE(SystemdNotify().has_watchdog());
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_TRUE(SystemdNotify().has_watchdog());
}

TEST_P(SystemdNotifyTest, SocketThatIsFullOrGoneCostsNothing) {
  SystemdNotify systemd;
  for (int i = 0; i < 100'000; ++i) systemd.Stopping();
  close(socket_);
  systemd.Stopping();
  socket_ = -1;
}

INSTANTIATE_TEST_SUITE_P(PathAndAbstract, SystemdNotifyTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Abstract" : "Path"; });

TEST(SystemdNotifyWithoutSocketTest, NothingIsSent) {
  unsetenv("NOTIFY_SOCKET");
  setenv("WATCHDOG_USEC", "3000000", 1);
  SystemdNotify systemd;
  EXPECT_FALSE(systemd.has_watchdog());
  systemd.Ready("");
  systemd.Stopping();
}

}  // namespace
}  // namespace kvatlas
