// Who registers an engine at a leaf says what the leaf connects to: may it reach files, ports and
// machines that way?

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The whole answer; empty: none within a minute.
std::string Post(const Address& to, const std::string& path, const std::string& body) {
  return HttpPost(to, path, body, seconds(60));
}

std::string Registration(int instance, const std::string& endpoint, const std::string& more = "") {
  return "{\"instance_id\":" + std::to_string(instance) + ",\"endpoint\":\"" + endpoint +
         "\",\"model_name\":\"m\",\"block_size\":16" + more + "}";
}

std::string MooncakeRegistration(int instance, const std::string& endpoint,
                                 const std::string& more = "") {
  return "{\"instance_id\":\"pod-" + std::to_string(instance) + "\",\"endpoint\":\"" + endpoint +
         "\",\"type\":\"vLLM\",\"modelname\":\"m\",\"block_size\":16" + more + "}";
}

// A file that another program needs.
class PreciousFile {
 public:
  explicit PreciousFile(const std::string& name) {
    const char* const folder = std::getenv("TEST_TMPDIR");
    path_ = std::string(folder == nullptr ? "/tmp" : folder) + "/" + name;
    std::ofstream(path_) << "precious";
  }
  const std::string& path() const { return path_; }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  std::string path_;
};

TEST(RegistrationTest, NoFileIsTouched) {
  Siege siege({.program = kLeaf, .args = {"--mooncake_http=127.0.0.1:0"}});
  ASSERT_TRUE(siege.ok());
  const PreciousFile bound("bound"), connected("connected"), replayed("replayed");
  const auto refused = AllOf(HasSubstr(" 400 "), HasSubstr("tcp://"), HasSubstr("--workers"));
  EXPECT_THAT(
      Post(siege.http(), "/register", Registration(1, "ipc://" + bound.path(), ",\"bind\":true")),
      refused);
  EXPECT_THAT(Post(siege.http(), "/register", Registration(2, "ipc://" + connected.path())),
              refused);
  EXPECT_THAT(Post(siege.http(), "/register",
                   Registration(3, "tcp://127.0.0.1:1",
                                ",\"replay_endpoint\":\"ipc://" + replayed.path() + "\"")),
              refused);
  EXPECT_THAT(Post(siege.http(), "/register", Registration(4, "inproc://kvatlas-monitor-1")),
              refused);
  EXPECT_THAT(
      Post(siege.Of("mooncake"), "/register", MooncakeRegistration(5, "ipc://" + connected.path())),
      refused);
  siege.Watch(10);
  EXPECT_EQ(bound.Text(), "precious");
  EXPECT_EQ(connected.Text(), "precious");
  EXPECT_EQ(replayed.Text(), "precious");
  siege.ExpectUnharmed();
}

TEST(RegistrationTest, NoListenerIsOpened) {
  Siege siege({.program = kLeaf});
  ASSERT_TRUE(siege.ok());
  const size_t descriptors = siege.Descriptors();
  for (const char* endpoint :
       {"tcp://0.0.0.0:0", "tcp://127.0.0.1:0", "tcp://*:0", "tcp://lo:0", "tcp://[::]:0"}) {
    EXPECT_THAT(Post(siege.http(), "/register", Registration(1, endpoint, ",\"bind\":true")),
                AllOf(HasSubstr(" 400 "), HasSubstr("--workers")))
        << endpoint;
  }
  siege.ExpectUnharmed();
  // A ZeroMQ listener would be some more; the neighbour's and the prober's connections come and go.
  EXPECT_LE(siege.Descriptors(), descriptors + 12);
  EXPECT_THAT(HttpGet(siege.http(), "/workers", seconds(60)).value_or(""), HasSubstr("\r\n\r\n[]"));
}

TEST(RegistrationTest, NothingOutsideTheRangesIsDialled) {
  Siege siege(
      {.program = kLeaf, .args = {"--engine_addresses=10.0.0.0/8", "--mooncake_http=127.0.0.1:0"}});
  ASSERT_TRUE(siege.ok());
  TestEngine internal([](TestSocket& connection) { connection.ReadToEnd(); });
  const std::string port = ":" + std::to_string(internal.address().port);
  const auto refused = AllOf(HasSubstr(" 400 "), HasSubstr("--engine_addresses"));
  int instance = 0;
  for (const std::string host : {"127.0.0.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0"}) {
    EXPECT_THAT(Post(siege.http(), "/register", Registration(++instance, "tcp://" + host + port)),
                refused)
        << host;
    EXPECT_THAT(Post(siege.Of("mooncake"), "/register",
                     MooncakeRegistration(++instance, "tcp://" + host + port)),
                refused)
        << host;
    EXPECT_THAT(Post(siege.http(), "/register",
                     Registration(++instance, "tcp://10.255.255.1:1",
                                  ",\"replay_endpoint\":\"tcp://" + host + port + "\"")),
                refused)
        << host;
  }
  // libzmq's own extras: a source address before the destination, and a device.
  for (const std::string& endpoint :
       {"tcp://[::1]:0;127.0.0.1" + port, "tcp://10.0.0.1:0;127.0.0.1" + port,
        "tcp://lo;127.0.0.1" + port, "tcp://10.0.0.1:1;127.0.0.1" + port}) {
    EXPECT_THAT(Post(siege.http(), "/register", Registration(++instance, endpoint)),
                HasSubstr(" 400 "))
        << endpoint;
  }
  // Names, and numbers that only a resolver understands, are known for what they are when they are
  // resolved.
  std::vector<int> named;
  for (const std::string host : {"localhost", "127.1", "2130706433", "0x7f000001"}) {
    named.push_back(++instance);
    EXPECT_THAT(Post(siege.http(), "/register", Registration(instance, "tcp://" + host + port)),
                HasSubstr(" 201 "))
        << host;
  }
  for (int waited = 0; waited < 500; ++waited) {
    const std::string workers = HttpGet(siege.http(), "/workers", seconds(60)).value_or("");
    size_t said = 0;  // instances of which it is said, however often
    constexpr char kInstance[] = "\"instance_id\":";
    for (size_t at = workers.find(kInstance); at != std::string::npos;) {
      const size_t next = workers.find(kInstance, at + 1);
      if (workers.substr(at, next - at).find("outside --engine_addresses") != std::string::npos)
        ++said;
      at = next;
    }
    if (said == named.size()) break;
    ASSERT_LT(waited, 499) << workers;
    siege.Watch(1);
  }
  siege.ExpectUnharmed();
  EXPECT_EQ(internal.connections(), 0u);
}

TEST(RegistrationTest, MetadataServicesAreNeverDialled) {
  Siege siege({.program = kLeaf, .args = {"--engine_addresses=0.0.0.0/0,::/0"}});
  ASSERT_TRUE(siege.ok());
  int instance = 0;
  for (const std::string host :
       {"169.254.169.254", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "100.100.100.200",
        "[fd00:ec2::254]", "[::ffff:100.100.100.200]", "[64:ff9b::169.254.169.254]"}) {
    EXPECT_THAT(Post(siege.http(), "/register", Registration(++instance, "tcp://" + host + ":80")),
                AllOf(HasSubstr(" 400 "), HasSubstr("metadata")))
        << host;
  }
  EXPECT_THAT(HttpGet(siege.http(), "/workers", seconds(60)).value_or(""), HasSubstr("\r\n\r\n[]"));
  siege.ExpectUnharmed();
}

// Each name waits for the system's resolver, whatever that takes; nothing else does.
TEST(RegistrationTest, NamesWithoutAddressesHoldUpNobody) {
  Siege siege({.program = kLeaf});
  ASSERT_TRUE(siege.ok());
  for (int i = 0; i < 300; ++i) {
    const std::string host = "engine-" + std::to_string(i) + ".invalid";
    ASSERT_THAT(Post(siege.http(), "/register", Registration(i, "tcp://" + host + ":5557")),
                HasSubstr(" 201 "));
  }
  TestEngine engine([](TestSocket& connection) { connection.ReadToEnd(); });
  EXPECT_THAT(
      Post(siege.http(), "/register", Registration(1000, "tcp://" + engine.address().ToString())),
      HasSubstr(" 201 "));
  while (engine.connections() == 0) siege.Watch(1);
  EXPECT_THAT(Post(siege.http(), "/unregister", R"({"instance_id":7,"model_name":"m"})"),
              HasSubstr(" 200 "));
  siege.ExpectUnharmed();
}

}  // namespace
}  // namespace kvatlas
