// A client of the proxy, or a made-up worker: may it read others' prompts and credentials?

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "frontend/http/socket_test_util.h"
#include "indexer/base/mutex.h"
#include "indexer/service/address.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"
#include "tools/cluster/process.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// An engine that answers everything, and remembers what it got.
class RecordingEngine {
 public:
  explicit RecordingEngine(const std::string& host = "127.0.0.1")
      : engine_([this](TestSocket& connection) { Serve(connection); }, host) {}

  std::string url() const { return engine_.url(); }
  const Address& address() const { return engine_.address(); }
  size_t connections() { return engine_.connections(); }
  std::vector<std::string> got() {
    MutexLock lock(&mutex_);
    return got_;
  }

 private:
  void Serve(TestSocket& connection) {
    while (true) {
      std::string message = connection.ReadMessage();
      if (message.empty()) return;
      {
        MutexLock lock(&mutex_);
        got_.push_back(std::move(message));
      }
      connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
  }

  Mutex mutex_;
  std::vector<std::string> got_ ABSL_GUARDED_BY(mutex_);
  TestEngine engine_;
};

// What a proxy chooses from: a leaf where workers are registered by anybody.
class OpenLeaf {
 public:
  OpenLeaf() {
    const char* const folder = std::getenv("TEST_TMPDIR");
    process_ = std::make_unique<Process>(ProcessOptions{
        .name = "leaf",
        .binary = kLeaf,
        // A made-up worker has no stream; it stays in answers for the time of its lease.
        .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--lease_ttl=10m"},
        .log = std::string(folder == nullptr ? "/tmp" : folder) + "/open-leaf.log"});
    const absl::Status started = process_->Start(seconds(60));
    EXPECT_TRUE(started.ok()) << started;
  }
  std::string grpc() const { return process_->address("grpc"); }

  void Register(int instance, const std::string& url) {
    const std::string body = absl::StrCat(
        "{\"instance_id\":", instance,
        ",\"endpoint\":\"tcp://127.0.0.1:1\",\"model_name\":\"m\",\"block_size\":16,\"url\":\"",
        url, "\"}");
    RawSocket socket(*Address::Parse(process_->address("http")));
    socket.Send(absl::StrCat("POST /register HTTP/1.1\r\nHost: leaf\r\nConnection: close\r\n",
                             "Content-Type: application/json\r\nContent-Length: ", body.size(),
                             "\r\n\r\n", body));
    EXPECT_THAT(socket.ReadToEnd(seconds(5)), HasSubstr(" 201 "));
  }

 private:
  std::unique_ptr<Process> process_;
};

std::string Chat(std::string_view more = "") {
  const std::string body =
      R"({"model":"m","messages":[{"role":"user","content":"the secret prompt"}]})";
  return absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: fleet\r\n",
                      absl::string_view(more.data(), more.size()),
                      "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

constexpr char kSecrets[] =
    "Authorization: Bearer secret\r\nProxy-Authorization: Basic secret\r\nCookie: id=secret\r\n";

std::string Ask(const Address& to, const std::string& request) {
  TestSocket client(to);
  client.Send(request);
  return client.ReadMessage();
}

TEST(ProxyAttackTest, AMadeUpWorkerGetsNothing) {
  OpenLeaf leaf;
  RecordingEngine engine, attacker("127.0.0.2");
  Siege siege({.program = kFrontend,
               .args = {"--leaves=cell=" + leaf.grpc(), "--proxy=127.0.0.1:0",
                        "--engine_addresses=127.0.0.1"}});
  ASSERT_TRUE(siege.ok());
  const Address proxy = siege.Of("proxy");
  // Alone in the fleet: a clear error, and nothing of the request goes out.
  leaf.Register(1, attacker.url());
  EXPECT_THAT(Ask(proxy, Chat(kSecrets)), AllOf(HasSubstr(" 503 "), HasSubstr("engine_addresses")));
  EXPECT_THAT(attacker.got(), IsEmpty());
  // Beside a real one: that one gets everything.
  leaf.Register(2, engine.url());
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Ask(proxy, Chat(kSecrets)), HasSubstr(" 200 "));
  EXPECT_EQ(attacker.connections(), 0u);
  std::vector<std::string> chats;  // besides those that ask it for tokens
  for (const std::string& message : engine.got())
    if (message.starts_with("POST /v1/chat/completions ")) chats.push_back(message);
  EXPECT_THAT(chats, SizeIs(20));
  EXPECT_THAT(chats, Each(AllOf(HasSubstr("Bearer secret"), HasSubstr("id=secret"))));
  EXPECT_THAT(siege.LogTail(1000),
              AllOf(HasSubstr("outside --engine_addresses"), HasSubstr("worker=1 ")));
  EXPECT_THAT(HttpGet(siege.http(), "/metrics", seconds(5)).value_or(""),
              Not(HasSubstr("kvatlas_frontend_proxy_outside_total 0\n")));
  siege.ExpectUnharmed();
}

TEST(ProxyAttackTest, ANameThatLeadsOutsideGetsNothing) {
  OpenLeaf leaf;
  RecordingEngine internal;
  Siege siege({.program = kFrontend,
               .args = {"--leaves=cell=" + leaf.grpc(), "--proxy=127.0.0.1:0",
                        "--engine_addresses=10.0.0.0/8"}});
  ASSERT_TRUE(siege.ok());
  int instance = 0;
  const std::string port = ":" + std::to_string(internal.address().port);
  for (const std::string& host :
       {"localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "0.0.0.0"})
    leaf.Register(++instance, "http://" + host + port);
  for (int i = 0; i < 10; ++i)
    EXPECT_THAT(Ask(siege.Of("proxy"), Chat(kSecrets)), HasSubstr(" 503 "));
  EXPECT_EQ(internal.connections(), 0u);
  siege.ExpectUnharmed();
}

TEST(ProxyAttackTest, MetadataServicesAreNeverAsked) {
  OpenLeaf leaf;
  Siege siege({.program = kFrontend,
               .args = {"--leaves=cell=" + leaf.grpc(), "--proxy=127.0.0.1:0",
                        "--engine_addresses=0.0.0.0/0,::/0"}});
  ASSERT_TRUE(siege.ok());
  int instance = 0;
  for (const std::string& host : {"169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]",
                                  "100.100.100.200", "0xa9fea9fe"})
    leaf.Register(++instance, "http://" + host);
  EXPECT_THAT(Ask(siege.Of("proxy"), Chat(kSecrets)), HasSubstr(" 503 "));
  EXPECT_THAT(siege.LogTail(1000), HasSubstr("metadata service"));
  siege.ExpectUnharmed();
}

}  // namespace
}  // namespace kvatlas
