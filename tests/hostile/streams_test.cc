// Calls that are begun and given up, and calls that say nothing: what do they cost the others?

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

constexpr char kMethod[] = "/kvatlas.v1.Leaf/FindOverlaps";
constexpr char kStreamMethod[] = "/kvatlas.v1.Leaf/FindOverlapsStream";

// Sends `bytes` and drops what comes back, so that neither side waits for the other; false: the connection has ended.
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

TEST(StreamsTest, SilentCallsOnOneConnectionAreBounded) {
  Siege siege({.program = kLeaf});
  ASSERT_TRUE(siege.ok());
  RawSocket socket(siege.grpc());
  socket.Send(H2Hello());
  bool open = true;
  for (uint32_t call = 0; call < 50'000 && open; ++call)
    open = SendAndDrop(socket, H2Request(2 * call + 1, kStreamMethod));
  siege.Watch(20);
  siege.ExpectUnharmed();
}

TEST(StreamsTest, RapidResetsAreBounded) {
  Siege siege({.program = kLeaf});
  ASSERT_TRUE(siege.ok());
  for (int connection = 0; connection < 3; ++connection) {
    RawSocket socket(siege.grpc());
    socket.Send(H2Hello());
    bool open = true;
    for (uint32_t call = 0; call < 26'000 && open; ++call) {
      open = SendAndDrop(socket, H2Request(2 * call + 1, kMethod) + H2Reset(2 * call + 1));
    }
  }
  siege.Watch(20);
  siege.ExpectUnharmed();
}

}  // namespace
}  // namespace kvatlas
