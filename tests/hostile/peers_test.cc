// A replica that a starting leaf asks what it knew (`--peers`) is the attacker's: what does the
// leaf do with what it is told?

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "indexer/base/mutex.h"
#include "indexer/net/http_server.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

// The most memory that a process ever had.
uint64_t PeakRssBytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) << 10;
  return 0;
}

uint64_t PeakRssBytesOfALeafWithoutPeers() {
  Siege siege({.program = kLeaf});
  return siege.ok() ? PeakRssBytes(siege.pid()) : 0;
}

// A peer of Dynamo's kind; /snapshot is 404 there.
class PeersTest : public testing::Test {
 protected:
  void Answer(const char* path, std::string body) {
    peer_.Handle({.method = "GET", .path = path, .handler = [body](const HttpRequest&) {
                    return HttpResponse{.body = body};
                  }});
  }
  void AnswerInPieces(const char* path, std::function<bool(std::string*)> more) {
    peer_.Handle({.method = "GET", .path = path, .handler = [more](const HttpRequest&) {
                    return HttpResponse{.more = more};
                  }});
  }

  // A leaf that starts with the peer knows nothing from it, says why, and serves.
  void ExpectRefused(const std::string& reason, const std::vector<std::string>& args = {}) {
    ASSERT_TRUE(peer_.Start().ok());
    const uint64_t usual = PeakRssBytesOfALeafWithoutPeers();
    std::vector<std::string> all = {"--peers=http://" + peer_.address().ToString()};
    all.insert(all.end(), args.begin(), args.end());
    Siege siege({.program = kLeaf, .args = all, .watch_when_ready = true});
    ASSERT_TRUE(siege.ok());
    EXPECT_LE(PeakRssBytes(siege.pid()), usual + (64 << 20));
    EXPECT_EQ(siege.HttpStatus("/ready"), 200);
    const std::string workers = HttpGet(siege.http(), "/workers", seconds(60)).value_or("");
    EXPECT_TRUE(workers.ends_with("\r\n\r\n[]")) << workers;
    const std::string log = siege.LogTail(10000);
    EXPECT_NE(log.find("a peer cannot be recovered from"), std::string::npos) << log;
    EXPECT_NE(log.find(reason), std::string::npos) << log;
    EXPECT_NE(log.find("starts without a peer"), std::string::npos) << log;
    siege.ExpectUnharmed();
  }

  // What a drip waits before its next byte.
  void Wait() {
    MutexLock lock(&mutex_);
    wake_.WaitFor(&mutex_, std::chrono::milliseconds(200));
  }

  Mutex mutex_;
  CondVar wake_;
  HttpServer peer_{{.listen = {"127.0.0.1", 0}}};
};

TEST_F(PeersTest, ADumpThatIsDrippedDoesNotKeepALeafFromStarting) {
  Answer("/workers", "[]");
  AnswerInPieces("/dump", [this, begun = false](std::string* piece) mutable {
    Wait();
    *piece += begun ? " " : "{";
    begun = true;
    return true;
  });
  ExpectRefused("in time", {"--peer_timeout=3s"});
}

TEST_F(PeersTest, ASnapshotThatIsDrippedDoesNotKeepALeafFromStarting) {
  AnswerInPieces("/snapshot", [this](std::string* piece) {
    Wait();
    *piece += "K";
    return true;
  });
  ExpectRefused("peer cannot be recovered from", {"--peer_timeout=3s"});
}

TEST_F(PeersTest, AKeyOf200MebibytesCostsNoMemory) {
  Answer("/workers", "[]");
  AnswerInPieces("/dump", [sent = uint64_t{0}](std::string* piece) mutable {
    if (sent == 0) *piece += "{\"";
    piece->append(1 << 20, 'a');
    sent += 1 << 20;
    if (sent < (200 << 20)) return true;
    *piece += "\":{}}";
    return false;
  });
  ExpectRefused("key");
}

TEST_F(PeersTest, ThousandsOfWorkersAreNotRegistered) {
  std::string workers;
  for (int i = 0; i < 3000; ++i) {
    workers += (i == 0 ? "[" : ",");
    workers += R"({"instance_id":)" + std::to_string(i) +
               R"(,"model_name":"m","routing_group":"default","block_size":16,"endpoints":{"0":)" +
               R"("tcp://127.0.0.1:1"}})";
  }
  Answer("/workers", workers + "]");
  Answer("/dump", "{}");
  ExpectRefused("--peer_workers_max");
}

// Each takes 30 times its text as a document in memory.
TEST_F(PeersTest, AListOfEmptyObjectsCostsNoMemory) {
  AnswerInPieces("/workers", [sent = uint64_t{0}](std::string* piece) mutable {
    if (sent == 0) *piece += "[{}";
    for (int i = 0; i < (1 << 18); ++i) *piece += ",{}";
    sent += 3 << 18;
    if (sent < (60 << 20)) return true;
    *piece += "]";
    return false;
  });
  ExpectRefused("peer cannot be recovered from");
}

// Workers that /workers did not tell of, made up by names in /dump.
TEST_F(PeersTest, ADumpOfThousandsOfWorkersIsNotTaken) {
  Answer("/workers", "[]");
  std::string events;
  for (int i = 0; i < 3000; ++i) {
    events += (i == 0 ? "" : ",");
    events += R"({"worker_id":)" + std::to_string(i) +
              R"(,"storage_tier":"device","residency_domain":"worker","event":{"event_id":0,)" +
              R"("data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{)" +
              R"("block_hash":1,"tokens_hash":2}]}},"dp_rank":0}})";
  }
  Answer("/dump", R"({"m:default":{"block_size":16,"events":[)" + events + "]}}");
  ExpectRefused("--peer_workers_max");
}

}  // namespace
}  // namespace kvatlas
