// What do orchestrators hear of every process: does it live, may it get work? Real processes, their
// HTTP planes, gRPC's health service, and systemd's socket.

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/net/grpc_channel.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/mock_engine/engine.grpc.pb.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr seconds kLong(60);
constexpr char kLeaf[] = "indexer/leaf/kvatlas-leaf";
constexpr char kHierarchy[] = "hierarchy/kvatlas-hierarchy";
constexpr char kFrontend[] = "frontend/kvatlas-frontend";
constexpr char kRelay[] = "publisher/kvatlas-relay";
constexpr char kKvatlas[] = "tools/kvatlas/kvatlas";
constexpr char kEngine[] = "tools/testing/mock_engine/mock_engine";

std::string Ask(const Address& to, const std::string& path) {
  TestSocket socket(to);
  socket.Send("GET " + path + " HTTP/1.1\r\nHost: h\r\nconnection: close\r\n\r\n");
  return socket.ReadMessage();
}

// What gRPC's health service says of a name.
std::string CheckGrpc(const std::string& address, const std::string& name) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kLong);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(MakeChannel(address));
  // HealthCheckRequest{service = 1}.
  const std::string bytes = "\n" + std::string(1, static_cast<char>(name.size())) + name;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::Status status;
  grpc::ByteBuffer response;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return status.error_message();
  grpc::Slice said;
  EXPECT_TRUE(response.TrySingleSlice(&said).ok() || response.DumpToSingleSlice(&said).ok());
  // HealthCheckResponse{status = 1}: SERVING is 1.
  return said.size() == 2 && said.begin()[1] == 1 ? "SERVING" : "NOT_SERVING";
}

class HealthTest : public ::testing::Test {
 protected:
  Process& Start(const std::string& name, const std::string& binary,
                 std::vector<std::string> args) {
    args.push_back("--exit_with_parent=true");
    auto& process = processes_[name];
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    process = std::make_unique<Process>(
        ProcessOptions{.name = name,
                       .binary = binary,
                       .args = std::move(args),
                       .log = ::testing::TempDir() + "/" + test + "." + name + ".log"});
    const absl::Status started = process->Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
    return *process;
  }
  Process& StartPlain(const std::string& name, const std::string& binary,
                      std::vector<std::string> args) {
    args.insert(args.end(), {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0"});
    return Start(name, binary, std::move(args));
  }
  // A mock engine that streams to these leaves and holds two blocks.
  void StartEngine(const std::string& leaf) {
    Process& engine = Start(
        "engine", kEngine,
        {"--grpc=127.0.0.1:0", "--leaf=" + leaf, "--worker=w", "--capacity=60", "--block_size=16"});
    const auto stub = engine::v1::Engine::NewStub(MakeChannel(engine.address("grpc")));
    engine::v1::SubmitRequest request;
    request.set_id(1);
    request.set_prompt_tokens(32);
    request.add_blocks(1);
    request.add_blocks(2);
    engine::v1::StepResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub->Submit(&context, request, &response).ok());
    engine::v1::AdvanceRequest all;
    all.set_time_ms(EngineModel::kForever);
    grpc::ClientContext advance;
    EXPECT_TRUE(stub->Advance(&advance, all, &response).ok());
  }

  std::string Http(const Process& process, const std::string& path,
                   const std::string& plane = "http") {
    return Ask(*Address::Parse(process.address(plane)), path);
  }
  // The answer that came last.
  void AwaitHttp(const Process& process, const std::string& path, const std::string& status,
                 const std::string& plane = "http") {
    std::string last;
    const bool came =
        Await([&] { return (last = Http(process, path, plane)).starts_with("HTTP/1.1 " + status); },
              kLong);
    ASSERT_TRUE(came) << process.name() << " " << path << ": " << last;
  }

  // What is answered may be of before a process has looked at itself, the first time or after a
  // change.
  void AwaitSays(const Process& process, const std::string& path, const std::string& text,
                 const std::string& plane = "http") {
    std::string last;
    const bool came = Await(
        [&] { return (last = Http(process, path, plane)).find(text) != std::string::npos; }, kLong);
    EXPECT_TRUE(came) << process.name() << " " << path << " never says " << text << ": " << last;
  }
  void AwaitGrpc(const std::string& address, const std::string& name, const std::string& status) {
    std::string last;
    EXPECT_TRUE(Await([&] { return (last = CheckGrpc(address, name)) == status; }, kLong))
        << name << " is " << last;
  }

  std::map<std::string, std::unique_ptr<Process>> processes_;
};

TEST_F(HealthTest, LoadingProcessLivesAndIsNotReady) {
  Process& leaf = StartPlain("leaf", kLeaf, {"--min_initial_workers=1"});
  EXPECT_THAT(Http(leaf, "/livez"), StartsWith("HTTP/1.1 200 "));
  AwaitSays(leaf, "/ready", "0 of 1 workers");
  const std::string grpc = leaf.address("grpc");
  EXPECT_EQ(CheckGrpc(grpc, "liveness"), "SERVING");
  EXPECT_EQ(CheckGrpc(grpc, "readiness"), "NOT_SERVING");
  EXPECT_EQ(CheckGrpc(grpc, ""), "NOT_SERVING");
  StartEngine(grpc);
  AwaitHttp(leaf, "/ready", "200");
  AwaitGrpc(grpc, "readiness", "SERVING");
  AwaitGrpc(grpc, "", "SERVING");
  AwaitGrpc(grpc, "kvatlas.v1.Leaf", "SERVING");
}

TEST_F(HealthTest, ProcessThatCannotTakeConnectionsIsNotAlive) {
  Process& leaf = StartPlain("leaf", kLeaf, {});
  TestSocket kept(*Address::Parse(leaf.address("http")));
  std::string last;
  const auto livez_is = [&](const std::string& status) {
    return Await(
        [&] {
          kept.Send("GET /livez HTTP/1.1\r\nHost: h\r\n\r\n");
          last = kept.ReadMessage();
          return last.starts_with("HTTP/1.1 " + status);
        },
        kLong);
  };
  EXPECT_TRUE(livez_is("200")) << last;
  rlimit before{};
  rlimit none{.rlim_cur = 0, .rlim_max = 0};
  ASSERT_EQ(prlimit(leaf.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  none.rlim_max = before.rlim_max;
  ASSERT_EQ(prlimit(leaf.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  EXPECT_TRUE(livez_is("503")) << last;
  EXPECT_THAT(last, HasSubstr("\"live\":false,\"reason\":"));
  ASSERT_EQ(prlimit(leaf.pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_TRUE(livez_is("200")) << last;
}

// Of every kind of process, and every HTTP plane: SIGTERM, probes hear of it, serving goes on.
TEST_F(HealthTest, StopDelayServesOnWhileProbesHearThatItStops) {
  const std::string delay = "--stop_delay=1h";
  Process& leaf = StartPlain("leaf", kLeaf, {delay, "--mooncake_http=127.0.0.1:0"});
  Process& hierarchy = StartPlain("hierarchy", kHierarchy, {delay});
  Process& frontend =
      StartPlain("frontend", kFrontend,
                 {delay, "--leaves=cell=" + leaf.address("grpc"), "--proxy=127.0.0.1:0",
                  "--ext_proc=127.0.0.1:0", "--ext_proc_tls=none"});
  Process& relay =
      Start("relay", kRelay, {delay, "--http=127.0.0.1:0", "--leaves=" + leaf.address("grpc")});
  Process& engine = Start("engine", kEngine, {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0"});
  Process& serve = Start(
      "serve", kKvatlas,
      {"serve", delay, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
       "--leaf_http=127.0.0.1:0", "--leaf_grpc=127.0.0.1:0",
       "--hf_cache=", "--engine=http://" + engine.address("http") + ";events=tcp://127.0.0.1:1"});
  struct Plane {
    Process* process;
    std::string name;
    std::string other;  // what it answers besides, with 200
  };
  const std::vector<Plane> planes = {
      {&leaf, "http", "/workers"},      {&leaf, "mooncake", "/livez"},
      {&hierarchy, "http", "/status"},  {&frontend, "http", "/status"},
      {&frontend, "proxy", "/health"},  {&relay, "http", "/status"},
      {&serve, "http", "/status"},      {&serve, "listen", "/health"},
      {&serve, "leaf_http", "/workers"}};
  for (const Plane& plane : planes) {
    AwaitHttp(*plane.process, "/ready", "200", plane.name);
    EXPECT_THAT(Http(*plane.process, "/livez", plane.name), StartsWith("HTTP/1.1 200 "));
  }
  for (Process* process : {&leaf, &hierarchy, &frontend, &relay, &serve}) process->Terminate();
  for (const Plane& plane : planes) {
    SCOPED_TRACE(plane.process->name() + " " + plane.name);
    AwaitHttp(*plane.process, "/ready", "503", plane.name);
    AwaitSays(*plane.process, "/ready", "stopping", plane.name);
    EXPECT_THAT(Http(*plane.process, "/livez", plane.name), StartsWith("HTTP/1.1 200 "));
    EXPECT_THAT(Http(*plane.process, plane.other, plane.name), StartsWith("HTTP/1.1 200 "));
  }
  const std::vector<std::pair<Process*, std::string>> listeners = {
      {&leaf, "grpc"},         {&hierarchy, "grpc"}, {&frontend, "grpc"},
      {&frontend, "ext_proc"}, {&serve, "grpc"},     {&serve, "leaf_grpc"}};
  for (const auto& [process, name] : listeners) {
    SCOPED_TRACE(process->name() + " " + name);
    EXPECT_EQ(CheckGrpc(process->address(name), "liveness"), "SERVING");
    AwaitGrpc(process->address(name), "readiness", "NOT_SERVING");
    AwaitGrpc(process->address(name), "", "NOT_SERVING");
  }
}

TEST_F(HealthTest, FrontendIsReadyWhenAnUpstreamHasAnswered) {
  Process& leaf = StartPlain("leaf", kLeaf, {});
  const std::string address = leaf.address("grpc");
  leaf.Kill();
  Process& frontend =
      StartPlain("frontend", kFrontend, {"--leaves=cell=" + address, "--proxy=127.0.0.1:0"});
  AwaitSays(frontend, "/ready", "no hierarchy node and no leaf has answered");
  EXPECT_THAT(Http(frontend, "/ready", "proxy"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Http(frontend, "/livez", "proxy"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(CheckGrpc(frontend.address("grpc"), "readiness"), "NOT_SERVING");
  ASSERT_TRUE(leaf.Start(kLong).ok());
  AwaitHttp(frontend, "/ready", "200");
  AwaitHttp(frontend, "/ready", "200", "proxy");
  AwaitGrpc(frontend.address("grpc"), "readiness", "SERVING");
  leaf.Kill();  // it still has rungs of its ladder below that leaf
  EXPECT_THAT(Http(frontend, "/ready"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HealthTest, HierarchyThatStartsAgainIsReadyWhenItsCellsHaveReported) {
  const std::string file = ::testing::TempDir() + "/cells";
  Process& hierarchy =
      StartPlain("hierarchy", kHierarchy, {"--cells_file=" + file, "--ready_after=1h"});
  AwaitHttp(hierarchy, "/ready", "200");
  Process& leaf = StartPlain("leaf", kLeaf, {"--cell=a", "--parents=" + hierarchy.address("grpc")});
  StartEngine(leaf.address("grpc"));
  const auto kept = [&] {
    std::ifstream cells(file);
    std::string line;
    return std::getline(cells, line) && line.starts_with("a\t");
  };
  ASSERT_TRUE(Await(kept, kLong));
  kill(leaf.pid(), SIGSTOP);  // still a cell of this node, and says nothing
  hierarchy.Kill();
  ASSERT_TRUE(hierarchy.Start(kLong).ok());
  AwaitSays(hierarchy, "/ready", "0 of 1 cells have reported, not a");
  EXPECT_THAT(Http(hierarchy, "/livez"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(CheckGrpc(hierarchy.address("grpc"), "readiness"), "NOT_SERVING");
  kill(leaf.pid(), SIGCONT);
  AwaitHttp(hierarchy, "/ready", "200");
  AwaitGrpc(hierarchy.address("grpc"), "readiness", "SERVING");
}

TEST_F(HealthTest, HierarchyWaitsForTheCellsExpected) {
  Process& hierarchy =
      StartPlain("hierarchy", kHierarchy, {"--cells_expected=1", "--ready_after=1h"});
  AwaitSays(hierarchy, "/ready", "0 of 1 cells have reported");
  Process& leaf = StartPlain("leaf", kLeaf, {"--parents=" + hierarchy.address("grpc")});
  StartEngine(leaf.address("grpc"));
  AwaitHttp(hierarchy, "/ready", "200");
}

TEST_F(HealthTest, SystemdHearsOfRealProcesses) {
  const std::string path = "/tmp/kvatlas-health." + std::to_string(getpid());
  unlink(path.c_str());
  const int systemd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  path.copy(at.sun_path, sizeof(at.sun_path) - 1);
  ASSERT_EQ(bind(systemd, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  const timeval patience{.tv_sec = kLong.count(), .tv_usec = 0};
  ASSERT_EQ(setsockopt(systemd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  const auto read = [&] {
    char buffer[512];
    const ssize_t n = recv(systemd, buffer, sizeof(buffer), 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  };
  const auto read_state = [&] {
    std::string message = read();
    while (message == "WATCHDOG=1") message = read();
    return message;
  };
  setenv("NOTIFY_SOCKET", path.c_str(), 1);
  // A socket keeps ten messages or so (net.unix.max_dgram_qlen) and processes do not wait for room:
  // once a second, they leave room for what a test reads late.
  setenv("WATCHDOG_USEC", "2000000", 1);
  for (const char* binary : {kLeaf, kHierarchy, kFrontend, kRelay}) {
    const std::string name = std::string(binary).substr(std::string(binary).rfind('/') + 1);
    Process& process = binary == kRelay ? Start(name, binary, {"--http=127.0.0.1:0"})
                                        : StartPlain(name, binary, {});
    EXPECT_THAT(read_state(), StartsWith("READY=1\nSTATUS="));
    EXPECT_EQ(read(), "WATCHDOG=1");
    kill(process.pid(), SIGHUP);
    EXPECT_THAT(read_state(), StartsWith("RELOADING=1\nMONOTONIC_USEC="));
    EXPECT_THAT(read_state(), StartsWith("READY=1\nSTATUS="));
    process.Terminate();
    EXPECT_EQ(read_state(), "STOPPING=1");
    process.Stop(kLong);
  }
  unsetenv("NOTIFY_SOCKET");
  unsetenv("WATCHDOG_USEC");
  close(systemd);
  unlink(path.c_str());
}

}  // namespace
}  // namespace kvatlas
