// Bodies that are cheap to make: what do very many keys cost, at each path that reads JSON?

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/net/grpc_channel.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);
constexpr size_t kKeys = 50'000;
// Ten times the keys may cost so many times as much, of what is more than the least that can be
// told apart. Quadratic, it is a hundred.
constexpr double kTimesMax = 40;
constexpr double kLeastSeconds = 0.05;

std::string Keys(size_t count) {
  std::string keys;
  for (size_t i = 0; i < count; ++i) absl::StrAppend(&keys, i == 0 ? "" : ",", "\"k", i, "\":0");
  return keys;
}

// `body` with so many keys in it, where it says so.
std::string With(const std::string& body, size_t count) {
  const size_t at = body.find("KEYS");
  return absl::StrCat(body.substr(0, at), Keys(count), body.substr(at + 4));
}

struct Path {
  Address at;
  std::string path;
  std::string body;
};

void ExpectNearlyLinear(pid_t pid, const std::vector<Path>& paths) {
  for (const Path& path : paths) {
    const auto cost = [&](size_t keys) {
      const double before = CpuSecondsOf(pid);
      EXPECT_GE(HttpStatusIn(HttpPost(path.at, path.path, With(path.body, keys), kLong)), 200)
          << path.path;
      return CpuSecondsOf(pid) - before;
    };
    const double few = std::max(cost(kKeys / 10), kLeastSeconds);
    EXPECT_LE(cost(kKeys), kTimesMax * few) << path.path << " " << path.body;
  }
}

TEST(BodiesTest, VeryManyKeysAtALeaf) {
  Siege siege({.program = kLeaf});
  ASSERT_TRUE(siege.ok());
  const std::string query = R"({"token_ids":[1],"model_name":"m",KEYS})";
  ExpectNearlyLinear(
      siege.pid(),
      {{siege.http(), "/query", query},
       {siege.http(), "/query", R"({"queries":[{"token_ids":[1],"model_name":"m",KEYS}]})"},
       {siege.http(), "/query_by_hash", R"({"block_hashes":[1],"model_name":"m","x":{KEYS}})"},
       {siege.http(), "/register", R"({"instance_id":1,"endpoint":"x","model_name":"m",KEYS})"},
       {siege.http(), "/unregister", R"({"instance_id":1,"model_name":"m",KEYS})"},
       {siege.http(), "/register_peer", R"({"url":"http://127.0.0.1:1",KEYS})"},
       {siege.http(), "/explain", query},
       {siege.http(), "/ui/explain", query}});
  siege.ExpectUnharmed();
}

TEST(BodiesTest, VeryManyKeysAtAFrontend) {
  const TestEngine engine([](TestSocket& connection) {
    while (!connection.ReadMessage().empty())
      connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  });
  Siege siege(
      {.program = kFrontend, .args = {"--proxy=127.0.0.1:0", "--engines=own/0=" + engine.url()}});
  ASSERT_TRUE(siege.ok());
  const Address proxy = siege.Of("proxy");
  const std::string chat = R"({"model":"m","messages":[{"role":"user","content":"x"}],KEYS})";
  const std::string kwargs =
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{KEYS}})";
  ExpectNearlyLinear(siege.pid(),
                     {{proxy, "/v1/chat/completions", chat},
                      {proxy, "/v1/chat/completions", kwargs},
                      {proxy, "/v1/responses", R"({"model":"m","input":"x",KEYS})"},
                      {proxy, "/v1/messages", chat},
                      {proxy, "/generate", R"({"text":"x","sampling_params":{KEYS}})"},
                      {proxy, "/inference/v1/generate", R"({"model":"m","token_ids":[1],KEYS})"},
                      {siege.http(), "/route", R"({"model":"m","token_ids":[1],KEYS})"},
                      {siege.http(), "/route/chat", chat},
                      {siege.http(), "/report", R"({"decision_id":"1",KEYS})"}});
  siege.ExpectUnharmed();
}

// Of a field that is none, and of the tokens.
TEST(BodiesTest, ABodyTakesTheMemoryOfItsBytes) {
  constexpr size_t kBytes = 8 << 20;
  Siege siege({.program = kFrontend});
  ASSERT_TRUE(siege.ok());
  for (const auto& [begin, one] : {std::pair(R"({"model":"m","x":[)", "[],"),
                                   std::pair(R"({"model":"m","allowed_workers":[)", R"("",)"),
                                   std::pair(R"({"model":"m","tokens":[)", "1,")}) {
    const uint64_t before = siege.RssPeakBytes();
    std::string body = begin;
    while (body.size() < kBytes) body += one;
    body.pop_back();
    HttpPost(siege.http(), "/route", body + "]}", kLong);
    EXPECT_LE(siege.RssPeakBytes() - before, 10 * kBytes) << begin;
  }
  siege.ExpectUnharmed();
}

// Of gRPC: 8 MiB of parts without anything, which would be fifty times as much.
TEST(BodiesTest, AMessageOfVeryManyPartsIsNotRead) {
  constexpr size_t kParts = 4 << 20;
  std::string parts;
  for (size_t i = 0; i < kParts; ++i) parts += std::string("\x12\x00", 2);  // field 2
  std::string batch("\x12\x80\x80\x80\x04", 5);                             // field 2, of 8 MiB
  for (const auto& [program, method, message] :
       {std::tuple(kLeaf, "/kvatlas.v1.Leaf/FindOverlapsStream", parts),
        std::tuple(kLeaf, "/kvatlas.v1.Holdings/Stream", batch + parts),
        std::tuple(kHierarchy, "/kvatlas.v1.Hierarchy/FindCellsStream", parts),
        std::tuple(kHierarchy, "/kvatlas.v1.Holdings/Stream", batch + parts)}) {
    Siege siege({.program = program});
    ASSERT_TRUE(siege.ok());
    const uint64_t before = siege.RssPeakBytes();
    grpc::GenericStub stub(MakeChannel(siege.grpc().ToString(), {.own_connection = true}));
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(message);
    const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::Status status;
    grpc::ByteBuffer answer;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    EXPECT_FALSE(status.ok()) << method;
    EXPECT_LE(siege.RssPeakBytes() - before, 6 * message.size()) << method;
    siege.ExpectUnharmed();
  }
}

TEST(BodiesTest, VeryManyKeysAtARelay) {
  Process relay({.name = "relay",
                 .binary = "publisher/kvatlas-relay",
                 .args = {"--http=127.0.0.1:0", "--leaves=127.0.0.1:1", "--exit_with_parent=true"},
                 .log = std::string(std::getenv("TEST_TMPDIR")) + "/relay.log"});
  const absl::Status started = relay.Start(kLong);
  ASSERT_TRUE(started.ok()) << started;
  const Address http = *Address::Parse(relay.address("http"));
  ExpectNearlyLinear(
      relay.pid(),
      {{http, "/register", R"({"instance_id":1,"endpoint":"x","model_name":"m",KEYS})"},
       {http, "/unregister", R"({"instance_id":1,"model_name":"m",KEYS})"}});
}

}  // namespace
}  // namespace kvatlas
