// Too many connections, silent ones and half-sent ones: what does it cost the others?

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "indexer/base/address.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

class ConnectionsTest : public testing::TestWithParam<const char*> {};

TEST_P(ConnectionsTest, SilentOnesBeyondAllDescriptorsAtGrpc) {
  Siege siege({.program = GetParam(), .descriptors_soft = 64});
  ASSERT_TRUE(siege.ok());
  {
    const std::vector<RawSocket> silent = OpenMany(siege.grpc(), 200);
    EXPECT_EQ(silent.size(), 200u);
    siege.Watch(20);
  }
  siege.ExpectUnharmed();
}

TEST_P(ConnectionsTest, SilentOnesBeyondAThousandDescriptorsAtGrpc) {
  Siege siege({.program = GetParam(), .descriptors_soft = 1024});
  ASSERT_TRUE(siege.ok());
  const std::vector<RawSocket> silent = OpenMany(siege.grpc(), 1100);
  EXPECT_EQ(silent.size(), 1100u);
  siege.Watch(20);
  siege.ExpectUnharmed();
}

TEST_P(ConnectionsTest, TheSoftLimitOfDescriptorsIsRaised) {
  Siege siege({.program = GetParam(), .descriptors_soft = 256, .descriptors_hard = 1024});
  ASSERT_TRUE(siege.ok());
  const std::vector<RawSocket> silent = OpenMany(siege.grpc(), 400);
  EXPECT_EQ(silent.size(), 400u);
  siege.Watch(20);
  EXPECT_GT(siege.Descriptors(), 400u);
  siege.ExpectUnharmed();
}

TEST_P(ConnectionsTest, IdleOnesBeyondTheLimitAtHttp) {
  Siege siege({.program = GetParam()});
  ASSERT_TRUE(siege.ok());
  const std::vector<RawSocket> silent = OpenMany(siege.http(), 4200);
  EXPECT_EQ(silent.size(), 4200u);
  siege.Watch(20);
  siege.ExpectUnharmed();
}

TEST_P(ConnectionsTest, HalfSentHeadersAtHttp) {
  Siege siege({.program = GetParam()});
  ASSERT_TRUE(siege.ok());
  std::vector<RawSocket> half = OpenMany(siege.http(), 300);
  for (RawSocket& socket : half) socket.Send("GET /healthz HTTP/1.1\r\nHost: a\r\nX");
  siege.Watch(50);
  siege.ExpectUnharmed();
  for (RawSocket& socket : half) EXPECT_TRUE(socket.WaitEnd(seconds(60)));
}

TEST_P(ConnectionsTest, SilentOnesBeyondAllDescriptorsAtHttp) {
  Siege siege({.program = GetParam(), .descriptors_soft = 64});
  ASSERT_TRUE(siege.ok());
  const std::vector<RawSocket> silent = OpenMany(siege.http(), 200);
  siege.Watch(20);
  siege.ExpectUnharmed();
}

TEST_P(ConnectionsTest, AnnouncedBodiesAtHttp) {
  Siege siege({.program = GetParam()});
  ASSERT_TRUE(siege.ok());
  std::vector<RawSocket> announced = OpenMany(siege.http(), 128);
  for (RawSocket& socket : announced) {
    socket.Send(
        "POST /query HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        "Content-Length: 8388608\r\n\r\n");
  }
  siege.Watch(20);
  siege.ExpectUnharmed();
}

INSTANTIATE_TEST_SUITE_P(All, ConnectionsTest, testing::Values(kLeaf, kHierarchy, kFrontend),
                         [](const auto& info) {
                           const std::string program = info.param;
                           return program.substr(program.find('-') + 1);
                         });

}  // namespace
}  // namespace kvatlas
