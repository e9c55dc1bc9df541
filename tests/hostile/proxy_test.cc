// A client of the proxy, or a made-up worker: may it read others' prompts and credentials, or have
// one request taken for two?

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/mutex.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

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

// What a proxy chooses from: a leaf where any client registers workers.
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
    EXPECT_THAT(
        HttpPost(*Address::Parse(process_->address("http")), "/register", body, seconds(60)),
        HasSubstr(" 201 "));
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
  EXPECT_THAT(HttpGet(siege.http(), "/metrics", seconds(60)).value_or(""),
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
  for (const std::string host :
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
  for (const std::string host : {"169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]",
                                 "100.100.100.200", "0xa9fea9fe"})
    leaf.Register(++instance, "http://" + host);
  EXPECT_THAT(Ask(siege.Of("proxy"), Chat(kSecrets)), HasSubstr(" 503 "));
  EXPECT_THAT(siege.LogTail(1000), HasSubstr("metadata service"));
  siege.ExpectUnharmed();
}

// ---- One request taken for two ----

constexpr char kHidden[] = "GET /v1/models HTTP/1.1\r\nHost: hidden\r\n\r\n";

struct Form {
  const char* what;
  std::string head;  // between the request line and the end of the header
  std::string body;  // may hold, or be, another request
  const char* line = "POST /v1/embeddings HTTP/1.1\r\n";
};

// Each may be read in two ways, or is no HTTP.
std::vector<Form> SmugglingForms() {
  const std::string chunks = absl::StrCat("0\r\n\r\n", kHidden);
  const std::string length =
      absl::StrCat("Content-Length: ", std::string_view(kHidden).size(), "\r\n");
  const std::string host = "Host: fleet\r\n";
  return {
      {"chunked beside a length", host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
       chunks},
      {"a length beside chunked", host + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
       chunks},
      {"xchunked", host + "Transfer-Encoding: xchunked\r\n", chunks},
      {"chunkedx", host + "Transfer-Encoding: chunkedx\r\n", chunks},
      {"identity", host + "Transfer-Encoding: identity\r\n", kHidden},
      {"chunked, identity", host + "Transfer-Encoding: chunked, identity\r\n", chunks},
      {"identity, chunked", host + "Transfer-Encoding: identity, chunked\r\n", chunks},
      {"gzip, chunked", host + "Transfer-Encoding: gzip, chunked\r\n", chunks},
      {"chunked, chunked", host + "Transfer-Encoding: chunked, chunked\r\n", chunks},
      {"chunked twice", host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
       chunks},
      {"chunked, then identity",
       host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", chunks},
      {"identity, then chunked",
       host + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", chunks},
      {"an empty encoding", host + "Transfer-Encoding:\r\n", kHidden},
      {"chunked,", host + "Transfer-Encoding: chunked,\r\n", chunks},
      {",chunked", host + "Transfer-Encoding: ,chunked\r\n", chunks},
      {"a quoted encoding", host + "Transfer-Encoding: \"chunked\"\r\n", chunks},
      {"chunked with a parameter", host + "Transfer-Encoding: chunked;q=1\r\n", chunks},
      {"a folded encoding", host + "Transfer-Encoding:\r\n chunked\r\n", chunks},
      {"an encoding folded behind another field", host + "X: y\r\n Transfer-Encoding: chunked\r\n",
       chunks},
      {"a tab that folds", host + "X: y\r\n\tTransfer-Encoding: chunked\r\n" + length, kHidden},
      {"a blank before the colon", host + "Transfer-Encoding : chunked\r\n", chunks},
      {"a tab before the colon", host + "Transfer-Encoding\t: chunked\r\n", chunks},
      {"a vertical tab before the value", host + "Transfer-Encoding:\vchunked\r\n", chunks},
      {"a form feed behind the value", host + "Transfer-Encoding: chunked\f\r\n", chunks},
      {"a zero behind the name", host + std::string("Transfer-Encoding\0: chunked\r\n", 29),
       chunks},
      {"a bare line feed", host + "X: y\nTransfer-Encoding: chunked\r\n", chunks},
      {"a bare carriage return", host + "X: y\rTransfer-Encoding: chunked\r\n", chunks},
      {"HTTP/1.0 with chunks", host + "Transfer-Encoding: chunked\r\n", chunks,
       "POST /v1/embeddings HTTP/1.0\r\n"},
      {"two lengths", host + "Content-Length: 0\r\n" + length, kHidden},
      {"two lengths, the same", host + length + length, kHidden},
      {"a list of lengths", host + "Content-Length: 0, 0\r\n", kHidden},
      {"a length with a sign", host + "Content-Length: +0\r\n", kHidden},
      {"a negative length", host + "Content-Length: -1\r\n", kHidden},
      {"a hexadecimal length", host + "Content-Length: 0x0\r\n", kHidden},
      {"a length with a blank within", host + "Content-Length: 0 0\r\n", kHidden},
      {"an empty length", host + "Content-Length:\r\n", kHidden},
      {"a length beyond 64 bits", host + "Content-Length: 18446744073709551616\r\n", kHidden},
      {"a blank before the length's colon", host + "Content-Length : 0\r\n", kHidden},
      {"no Host", "Content-Length: 0\r\n", kHidden},
      {"two Hosts", host + "Host: other\r\nContent-Length: 0\r\n", kHidden},
      {"two Hosts, the same", host + host + "Content-Length: 0\r\n", kHidden},
      {"an empty name", host + ": x\r\nContent-Length: 0\r\n", kHidden},
      {"a line without a colon", host + "Content-Length\r\n", kHidden},
      {"a blank before the first field", " " + host + "Content-Length: 0\r\n", kHidden},
      {"HTTP/2 in the request line", host + "Content-Length: 0\r\n", kHidden,
       "POST /v1/embeddings HTTP/2.0\r\n"},
      {"two blanks in the request line", host + "Content-Length: 0\r\n", kHidden,
       "POST  /v1/embeddings HTTP/1.1\r\n"},
      {"a bare line feed behind the request line", host + "Content-Length: 0\r\n", kHidden,
       "POST /v1/embeddings HTTP/1.1\n"},
      {"no version", host + "Content-Length: 0\r\n", kHidden, "POST /v1/embeddings\r\n"},
  };
}

// The header is right, and chunks are not.
std::vector<std::pair<const char*, std::string>> BadChunks() {
  return {{"a size that is none", absl::StrCat("z\r\n\r\n", kHidden)},
          {"a size with 0x", absl::StrCat("0x0\r\n\r\n", kHidden)},
          {"a size with a sign", absl::StrCat("+0\r\n\r\n", kHidden)},
          {"a negative size", absl::StrCat("-1\r\n\r\n", kHidden)},
          {"a blank before the size", absl::StrCat(" 0\r\n\r\n", kHidden)},
          {"a size beyond 64 bits", absl::StrCat("10000000000000000\r\n\r\n", kHidden)},
          {"an empty size", absl::StrCat("\r\n\r\n", kHidden)},
          {"data longer than said", absl::StrCat("1\r\nab\r\n0\r\n\r\n", kHidden)},
          {"data without its line end", absl::StrCat("1\r\na0\r\n\r\n", kHidden)},
          {"a bare line feed behind the size", absl::StrCat("1\na\r\n0\r\n\r\n", kHidden)},
          {"a bare line feed behind the data", absl::StrCat("1\r\na\n0\r\n\r\n", kHidden)},
          {"a bare line feed in an extension", absl::StrCat("1;x\ny\r\na\r\n0\r\n\r\n", kHidden)},
          {"a bare line feed in a quoted extension",
           absl::StrCat("1;x=\"\ny\"\r\na\r\n0\r\n\r\n", kHidden)},
          {"a quoted line end in an extension", absl::StrCat("1;x=\"\r\na\r\n0\r\n\r\n", kHidden)}};
}

TEST(ProxyAttackTest, NoRequestIsTakenForTwo) {
  RecordingEngine engine;
  Siege siege(
      // No question of its own is to be among what the engine gets.
      {.program = kFrontend,
       .args = {"--proxy=127.0.0.1:0", "--engines=w=" + engine.url(), "--engine_models_every=0"}});
  ASSERT_TRUE(siege.ok());
  const Address proxy = siege.Of("proxy");
  std::vector<std::pair<const char*, std::string>> requests;
  for (const Form& form : SmugglingForms())
    requests.emplace_back(form.what, absl::StrCat(form.line, form.head, "\r\n", form.body));
  for (const auto& [what, chunks] : BadChunks())
    requests.emplace_back(what, absl::StrCat("POST /v1/embeddings HTTP/1.1\r\nHost: fleet\r\n",
                                             "Transfer-Encoding: chunked\r\n\r\n", chunks));
  for (const auto& [what, request] : requests) {
    for (const bool in_pieces : {false, true}) {
      RawSocket client(proxy);
      if (in_pieces) {
        for (const char byte : request) client.Send(std::string_view(&byte, 1));
      } else {
        client.Send(request);
      }
      const std::string answer = client.ReadToEnd(seconds(10));
      EXPECT_THAT(answer, HasSubstr("HTTP/1.1 400 ")) << what;
      EXPECT_EQ(answer.find("HTTP/1.1 ", 1), std::string::npos) << what << ": " << answer;
    }
  }
  EXPECT_THAT(engine.got(), IsEmpty());
  // And what is right goes through, as it is, request by request.
  RawSocket client(proxy);
  client.Send(absl::StrCat(kHidden, kHidden,
                           "GET /v1/models HTTP/1.1\r\nHost: fleet\r\nConnection: close\r\n\r\n"));
  const std::string answers = client.ReadToEnd(seconds(10));
  size_t count = 0;
  for (size_t at = 0; (at = answers.find("HTTP/1.1 200 ", at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, 3u) << answers;
  // Each is asked of the engine for the fleet's list of models, and passed on as it is, since that
  // answer is no list.
  EXPECT_THAT(engine.got(), AllOf(SizeIs(6), Each(AllOf(StartsWith("GET /v1/models HTTP/1.1\r\n"),
                                                        EndsWith("\r\n\r\n")))));
  siege.ExpectUnharmed();
}

}  // namespace
}  // namespace kvatlas
