// Calls that are begun and given up, and calls that say nothing: what do they cost the others?

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "indexer/base/clock.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

constexpr char kMethod[] = "/kvatlas.v1.Leaf/FindOverlaps";
constexpr char kStreamMethod[] = "/kvatlas.v1.Leaf/FindOverlapsStream";
constexpr uint32_t kInOneWrite = 64;
// Long enough for the memory of what was cut off to go back to the system.
constexpr uint32_t kWatched = 100;
// At any time, in which one connection's calls are being cut off and the next one's have begun. A
// call takes 12 KB once it is read and twice that while it is cancelled, so a connection that is
// cut off at its 1,280 calls takes 30 MiB. The rest is for calls that are read while the thread
// that cuts off waits for a processor: 74 MiB in all in ten rounds of `ComeAgain`, on two cores
// that nine other threads wanted too.
constexpr uint64_t kPeakGrowthMax = uint64_t{128} << 20;

// Sends `bytes` and drops what comes back, so that neither side waits for the other; false: the
// connection has ended.
bool SendAndDrop(RawSocket& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t sent = socket.SendSome(bytes);
    bytes.remove_prefix(sent);
    bool ended = false;
    socket.ReadSome(std::chrono::milliseconds(sent > 0 ? 0 : 1), &ended);
    if (ended) return false;
  }
  return true;
}

// Begins calls number `from` up to `to` and resets them if so told; which one is next when all are
// sent or the connection ends.
uint32_t BeginCalls(RawSocket& socket, uint32_t to, const char* method, bool reset,
                    uint32_t from = 0) {
  uint32_t sent = from;
  while (sent < to) {
    std::string bytes;
    for (uint32_t i = 0; i < kInOneWrite && sent < to; ++i, ++sent) {
      bytes += H2ShortRequest(2 * sent + 1, method, sent == 0);
      if (reset) bytes += H2Reset(2 * sent + 1);
    }
    if (!SendAndDrop(socket, bytes)) break;
  }
  return sent;
}

class StreamsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(siege_.ok()); }

  RawSocket Connect(bool acknowledges) {
    RawSocket socket(siege_.grpc());
    socket.Send(H2Hello() + (acknowledges ? H2Acknowledge() : ""));
    return socket;
  }

  // Forty connections, each cut off because of its calls.
  void ComeAgain() {
    for (int connection = 0; connection < 20; ++connection) {
      for (const bool reset : {false, true}) {
        RawSocket socket = Connect(/*acknowledges=*/false);
        BeginCalls(socket, 50'000, kMethod, reset);
        EXPECT_TRUE(socket.WaitEnd(std::chrono::seconds(5)));
      }
    }
  }

  void ExpectUnharmed() {
    siege_.ExpectUnharmed();
    EXPECT_LE(siege_.RssPeakBytes(), siege_.rss_before() + kPeakGrowthMax);
  }

  Siege siege_{{.program = kLeaf}};
};

// It never acknowledges the limit: this is what gRPC itself has no bound for.
TEST_F(StreamsTest, SilentCallsOnOneConnectionAreBounded) {
  RawSocket socket(siege_.grpc());
  socket.Send(H2Hello());
  bool open = true;
  for (uint32_t call = 0; call < 50'000 && open; ++call)
    open = SendAndDrop(socket, H2Request(2 * call + 1, kStreamMethod));
  EXPECT_FALSE(open);
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

TEST_F(StreamsTest, SilentUnaryCallsOnOneConnectionAreBounded) {
  RawSocket socket = Connect(/*acknowledges=*/false);
  BeginCalls(socket, 50'000, kMethod, /*reset=*/false);
  EXPECT_TRUE(socket.WaitEnd(std::chrono::seconds(5)));
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

TEST_F(StreamsTest, MoreCallsThanAcknowledgedEndTheConnection) {
  for (const char* const method : {kMethod, kStreamMethod}) {
    RawSocket socket = Connect(/*acknowledges=*/true);
    BeginCalls(socket, 50'000, method, /*reset=*/false);
    EXPECT_TRUE(socket.WaitEnd(std::chrono::seconds(5)));
  }
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

TEST_F(StreamsTest, AsManySilentCallsAsAreAllowedAreAffordable) {
  std::vector<RawSocket> sockets;
  for (const char* const method : {kMethod, kStreamMethod}) {
    sockets.push_back(Connect(/*acknowledges=*/true));
    EXPECT_EQ(BeginCalls(sockets.back(), 1'000, method, /*reset=*/false), 1'000u);
  }
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

TEST_F(StreamsTest, RapidResetsAreBounded) {
  for (int connection = 0; connection < 3; ++connection) {
    RawSocket socket = Connect(/*acknowledges=*/true);
    bool open = true;
    for (uint32_t call = 0; call < 26'000 && open; ++call) {
      open = SendAndDrop(socket, H2Request(2 * call + 1, kMethod) + H2Reset(2 * call + 1));
    }
  }
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

// The same in a sixth of the bytes, where more calls are read at once.
TEST_F(StreamsTest, ShortRapidResetsAreBounded) {
  RawSocket socket = Connect(/*acknowledges=*/true);
  BeginCalls(socket, 200'000, kMethod, /*reset=*/true);
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

TEST_F(StreamsTest, RapidResetsOfStreamsAreBounded) {
  RawSocket socket = Connect(/*acknowledges=*/true);
  BeginCalls(socket, 200'000, kStreamMethod, /*reset=*/true);
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

// As when something behind it is slow and its deadlines pass: 300 calls at once, again and again.
TEST_F(StreamsTest, AClientThatCancelsManyCallsIsNotCutOff) {
  RawSocket socket = Connect(/*acknowledges=*/true);
  for (uint32_t round = 0; round < 20; ++round) {
    const uint32_t from = 300 * round;
    BeginCalls(socket, from + 300, kMethod, /*reset=*/true, from);
    socket.Send(
        H2Frame(4, 0, 0, ""));  // SETTINGS, which the server acknowledges: it has read all before
    std::string answer;
    bool ended = false;
    while (!ended && answer.find(H2Acknowledge()) == answer.npos)
      answer += socket.ReadSome(std::chrono::seconds(10), &ended);
    ASSERT_FALSE(ended) << round;
    // Its deadlines leave time between: the neighbour's question waits behind what the calls have
    // left.
    siege_.Watch(1);
  }
  ExpectUnharmed();
}

TEST_F(StreamsTest, ComingAgainAfterBeingCutOffGainsNothing) {
  ComeAgain();
  siege_.Watch(kWatched);
  ExpectUnharmed();
}

TEST_F(StreamsTest, ComingAgainAllTheTimeGainsNoMemory) {
  for (int round = 0; round < 5; ++round) {
    ComeAgain();
    std::cout << "round " << round << ": " << (siege_.RssBytes() >> 20) << " MiB, peak "
              << (siege_.RssPeakBytes() >> 20) << " MiB\n";
  }
  const Time until = Clock::Real().Now() + std::chrono::seconds(30);
  while (siege_.RssBytes() > siege_.rss_before() + (32 << 20) && Clock::Real().Now() < until)
    siege_.Watch(5);
  ExpectUnharmed();
}

// Frames that HTTP/2 has everybody ignore; `grpc_bytes_test` has more.
TEST_F(StreamsTest, BytesBeforeAnyCallEndTheConnectionAndAreCounted) {
  RawSocket socket = Connect(/*acknowledges=*/true);
  const std::string ignored = H2Frame(/*type=*/0x55, 0, 0, std::string(10'000, '.'));
  for (int i = 0; i < 1'000 && SendAndDrop(socket, ignored); ++i) {
  }
  EXPECT_TRUE(socket.WaitEnd(std::chrono::seconds(60)));
  siege_.Watch(10);
  ExpectUnharmed();
  const auto metrics = HttpGet(siege_.http(), "/metrics", std::chrono::seconds(60));
  ASSERT_TRUE(metrics.has_value());
  EXPECT_NE(metrics->find("kvatlas_connections_ended_total{reason=\"bytes\"} 1\n"),
            std::string::npos);
}

}  // namespace
}  // namespace kvatlas
