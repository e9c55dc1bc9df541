// Does a process live on without descriptors, whatever it is asked meanwhile, and serve again once
// there are some?

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);
constexpr int kRounds = 3;

std::string PathOf(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

// A process that may have so many descriptors and no more.
std::unique_ptr<Process> Bounded(const std::string& name, const std::string& binary,
                                 std::vector<std::string> args, int descriptors) {
  args.insert(args.begin(), {"-c",
                             absl::StrCat("ulimit -Sn ", descriptors, " && ulimit -Hn ",
                                          descriptors, " && exec \"$0\" \"$@\""),
                             binary});
  args.push_back("--exit_with_parent=true");
  (void)std::remove(PathOf(name + ".log").c_str());
  return std::make_unique<Process>(ProcessOptions{
      .name = name, .binary = "/bin/sh", .args = std::move(args), .log = PathOf(name + ".log")});
}

struct Target {
  std::string name;
  std::string binary;
  std::vector<std::string> args;
  std::vector<std::string> ports;     // as in the ready line
  std::vector<std::string> requests;  // of the last of them that speaks HTTP: METHOD PATH BODY
};

constexpr char kChat[] =
    R"(POST /v1/chat/completions {"model":"m","messages":[{"role":"user","content":"hello"}]})";

std::string RequestOf(const std::string& text) {
  const size_t method = text.find(' ');
  const size_t path = text.find(' ', method + 1);
  const std::string body = path == std::string::npos ? "" : text.substr(path + 1);
  return absl::StrCat(text.substr(0, path),
                      " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

class DescriptorsTest : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  Target TargetOf(const std::string& name) {
    const std::vector<std::string> http = {"GET /metrics", "GET /status", "GET /ready",
                                           "GET /nothing"};
    Target target{.name = name,
                  .binary = "",
                  .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0"},
                  .ports = {"grpc", "http"},
                  .requests = http};
    if (name == "leaf") {
      target.binary = kLeaf;
      for (int i = 0; i < 40; ++i) {
        target.requests.push_back(
            absl::StrCat("POST /register {\"instance_id\":", i, ",\"endpoint\":\"tcp://127.0.0.1:",
                         engine_.address().port, "\",\"model_name\":\"m\",\"block_size\":16}"));
        target.requests.push_back(
            absl::StrCat("POST /unregister {\"instance_id\":", i, ",\"model_name\":\"m\"}"));
      }
      target.requests.push_back("GET /dump");
      target.requests.push_back("POST /checkpoint");
      target.args.push_back("--checkpoint_dir=" + PathOf("checkpoints"));
    } else if (name == "hierarchy") {
      target.binary = kHierarchy;
    } else if (name == "frontend") {
      target.binary = kFrontend;
      target.args.insert(target.args.end(),
                         {"--proxy=127.0.0.1:0", "--engines=m/0=" + engine_.url(),
                          "--leaves=c=" + leaf_->address("grpc")});
      target.ports.push_back("proxy");
      target.requests = {kChat, "GET /v1/models"};
    } else if (name == "relay") {
      target.binary = "publisher/kvatlas-relay";
      target.args = {"--http=127.0.0.1:0", "--leaves=" + leaf_->address("grpc"), "--model_name=r",
                     "--block_size=16", "--workers=0=tcp://" + engine_.address().ToString()};
      target.ports = {"http"};
    } else {
      target.binary = "tools/kvatlas/kvatlas";
      target.args = {"serve",
                     "--listen=127.0.0.1:0",
                     "--http=127.0.0.1:0",
                     "--leaf_grpc=127.0.0.1:0",
                     "--leaf_http=127.0.0.1:0",
                     "--engine=" + engine_.url()};
      target.ports = {"leaf_grpc", "leaf_http", "http", "listen"};
      target.requests = {kChat, "GET /v1/models"};
    }
    return target;
  }

  void SetUp() override {
    leaf_ = std::make_unique<Process>(ProcessOptions{
        .name = "leaf",
        .binary = kLeaf,
        .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--cell=c", "--exit_with_parent=true"},
        .log = PathOf("other-leaf.log")});
    const absl::Status started = leaf_->Start(kLong);
    ASSERT_TRUE(started.ok()) << started;
  }

  TestEngine engine_{[](TestSocket& connection) {
    while (!connection.ReadMessage().empty())
      connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  }};
  std::unique_ptr<Process> leaf_;
};

TEST_P(DescriptorsTest, AProcessOutlivesTheWantOfThem) {
  const auto& [name, descriptors] = GetParam();
  const Target target = TargetOf(name);
  const std::unique_ptr<Process> process =
      Bounded(target.name, target.binary, target.args, descriptors);
  const absl::Status started = process->Start(kLong);
  if (descriptors == 64 && (name == std::string("serve") || name == std::string("frontend"))) {
    EXPECT_THAT(std::string(started.message()), testing::HasSubstr("raise the limit"));
    return;
  }
  ASSERT_TRUE(started.ok()) << started;
  std::vector<Address> ports;
  for (const std::string& port : target.ports)
    ports.push_back(*Address::Parse(process->address(port)));
  const auto log = [&] {
    std::ifstream file(PathOf(target.name + ".log"));
    return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  };
  const auto lives = [&] { return kill(process->pid(), 0) == 0; };
  for (int round = 0; round < kRounds; ++round) {
    std::vector<RawSocket> sockets;
    for (const Address& port : ports)
      for (RawSocket& socket : OpenMany(port, static_cast<size_t>(descriptors) + 20))
        sockets.push_back(std::move(socket));
    // Requests of connections that were there before and of new ones, beside those that are silent.
    for (size_t i = 0; i < sockets.size(); i += 2)
      sockets[i].SendSome(RequestOf(target.requests[i / 2 % target.requests.size()]));
    for (const std::string& request : target.requests) {
      RawSocket socket(ports.back());
      socket.SendSome(RequestOf(request));
      sockets.push_back(std::move(socket));
    }
    RawSocket last(ports.back());
    last.SendSome(RequestOf(target.requests.front()));
    last.ReadSome(std::chrono::milliseconds(300));
    ASSERT_TRUE(lives()) << log();
  }
  const Address http = *Address::Parse(process->address("http"));
  const bool serves = Await(
      [&] { return !lives() || HttpStatusIn(HttpGet(http, "/livez", kLong).value_or("")) == 200; },
      kLong);
  EXPECT_TRUE(serves && lives()) << log();
  EXPECT_TRUE(Await(
      [&] {
        RawSocket socket(ports.back());
        socket.Send(RequestOf(target.requests.front()));
        return HttpStatusIn(socket.ReadSome(kLong)) == 200;
      },
      kLong))
      << log();
  process->Stop(kLong);
  EXPECT_EQ(log().find("terminate called"), std::string::npos) << log();
}

INSTANTIATE_TEST_SUITE_P(All, DescriptorsTest,
                         testing::Combine(testing::Values("leaf", "hierarchy", "frontend", "relay",
                                                          "serve"),
                                          testing::Values(64, 256, 1024)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), std::get<1>(info.param));
                         });

}  // namespace
}  // namespace kvatlas
