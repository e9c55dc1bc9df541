#include "indexer/kv_events/endpoint_probe.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

constexpr auto kTimeout = std::chrono::seconds(10);

// A port of this machine on which it may listen.
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    number_ = ntohs(address.sin_port);
  }
  ~Port() { close(fd_); }
  void Listen() { EXPECT_EQ(listen(fd_, 8), 0); }
  std::string number() const { return std::to_string(number_); }

 private:
  const int fd_;
  uint16_t number_ = 0;
};

absl::StatusOr<std::vector<std::string>> ToLoopback(const std::string& name) {
  if (name == "engine") return std::vector<std::string>{"127.0.0.1"};
  return absl::UnavailableError(name + ": Name or service not known");
}

absl::Status Probe(const std::string& endpoint) {
  return ProbeEndpoint(endpoint, ToLoopback, kTimeout);
}

TEST(EndpointProbeTest, SaysWhetherSomethingListens) {
  Port port;
  EXPECT_THAT(Probe("tcp://127.0.0.1:" + port.number()).ToString(),
              HasSubstr("Connection refused"));
  EXPECT_THAT(Probe("tcp://engine:" + port.number()).ToString(), HasSubstr("Connection refused"));
  port.Listen();
  EXPECT_TRUE(Probe("tcp://127.0.0.1:" + port.number()).ok());
  EXPECT_TRUE(Probe("tcp://engine:" + port.number()).ok());
}

TEST(EndpointProbeTest, SaysThatANameHasNoAddress) {
  EXPECT_THAT(Probe("tcp://elsewhere:5557").ToString(), HasSubstr("Name or service not known"));
}

TEST(EndpointProbeTest, SaysThatAFileIsNotThere) {
  EXPECT_THAT(Probe("ipc:///nowhere/at/all").ToString(), HasSubstr("No such file or directory"));
}

TEST(EndpointProbeTest, TriesNothingElse) {
  EXPECT_TRUE(absl::IsUnimplemented(Probe("inproc://a")));
  EXPECT_TRUE(absl::IsUnimplemented(Probe("tcp://eth0;engine:1")));
}

}  // namespace
}  // namespace kvatlas
