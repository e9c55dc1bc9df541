// Does a running process take its configuration anew at SIGHUP, while it answers? Real processes
// under a loop of questions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Folder() { return std::getenv("TEST_TMPDIR"); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Head and body; empty: no answer.
std::string Ask(const Address& to, const std::string& method, const std::string& target,
                const std::string& body = "") {
  TestSocket socket(to);
  socket.Send(method + " " + target + " HTTP/1.1\r\nHost: h\r\ncontent-type: application/json\r\n" +
              "content-length: " + std::to_string(body.size()) + "\r\nconnection: close\r\n\r\n" +
              body);
  return socket.ReadMessage();
}

class ReloadTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new", std::ios::trunc) << text;
    ASSERT_EQ(std::rename((path_ + ".new").c_str(), path_.c_str()), 0);
  }

  Process& Start(const std::string& binary, std::vector<std::string> args) {
    args.insert(args.end(), {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--config=" + path_});
    process_ = std::make_unique<Process>(
        ProcessOptions{.name = "process", .binary = binary, .args = args, .log = log_});
    const absl::Status started = process_->Start(std::chrono::seconds(60));
    EXPECT_TRUE(started.ok()) << started;
    return *process_;
  }

  Address At(const std::string& name) const { return *Address::Parse(process_->address(name)); }

  // Sends SIGHUP, and waits for the log's next line with `end`; the log since then.
  std::string Reload(const std::string& end) {
    const size_t before = ReadFile(log_).size();
    kill(process_->pid(), SIGHUP);
    std::string log;
    while (log.find(end) == std::string::npos && Ask(At("http"), "GET", "/healthz") != "")
      log = ReadFile(log_).substr(before);
    return log;
  }

  const std::string path_ = Folder() + "/process.toml";
  const std::string log_ = Folder() + "/process.log";
  std::unique_ptr<Process> process_;
};

constexpr char kRead[] = "configuration read again";
constexpr char kKept[] = "configuration stays as it was";

// Asks in a thread of its own until it goes.
class Asker {
 public:
  explicit Asker(std::function<bool()> answered)
      : thread_([this, answered = std::move(answered)] {
          while (!stop_.load()) {
            ++asked_;
            if (!answered()) ++failed_;
          }
        }) {}
  ~Asker() { Stop(); }

  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int asked() const { return asked_; }
  int failed() const { return failed_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> asked_{0};
  std::atomic<int> failed_{0};
  std::thread thread_;
};

std::string LeafFile(const std::string& workers, const std::string& more = "") {
  return "cell = 'a'\nblock_size = 16\nmodel_name = 'm'\nworkers = [" + workers + "]\n" + more;
}

TEST_F(ReloadTest, ALeafListensToOtherEnginesWhileItAnswers) {
  Write(LeafFile("'1=tcp://127.0.0.1:1', '2=tcp://127.0.0.1:2'"));
  Start("indexer/leaf/kvatlas-leaf", {"--lease_ttl=20s"});
  const Address http = At("http");
  Asker asker([&] {
    return Ask(http, "POST", "/query", R"({"model_name":"m","token_ids":[1,2,3]})")
        .starts_with("HTTP/1.1 200");
  });
  // Changed, gone, new; a limit that needs a restart; a flag that still wins.
  Write(LeafFile("'1=tcp://127.0.0.1:9', '3=tcp://127.0.0.1:3'",
                 "max_workers = 77\nlease_ttl = '30s'\nlog_level = 'debug'\n"));
  std::string log = Reload(kRead);
  EXPECT_THAT(log, AllOf(HasSubstr("event=\"setting changed\" flag=workers"),
                         HasSubstr("event=\"setting changed\" flag=log_level"),
                         HasSubstr("event=\"setting needs a restart to change\" flag=max_workers"),
                         Not(HasSubstr("flag=lease_ttl"))));
  const std::string workers = Ask(http, "GET", "/workers");
  EXPECT_THAT(workers,
              AllOf(HasSubstr("tcp://127.0.0.1:9"), HasSubstr("tcp://127.0.0.1:3"),
                    Not(HasSubstr("tcp://127.0.0.1:2\"")), Not(HasSubstr("127.0.0.1:1\""))));
  // Wrong in whatever way: nothing changes, not even what is right.
  for (const std::string& wrong :
       {LeafFile("'4=tcp://127.0.0.1:4'", "max_wokers = 1\n"),
        LeafFile("'4=tcp://127.0.0.1:4'", "max_workers = 0\n"), LeafFile("'4=127.0.0.1:4'"),
        LeafFile("'4=tcp://127.0.0.1:4'", "cell = ")}) {
    Write(wrong);
    log = Reload(kKept);
    EXPECT_THAT(log, HasSubstr(kKept)) << wrong;
    EXPECT_EQ(Ask(http, "GET", "/workers"), workers) << wrong;
  }
  for (int i = 0; i < 20; ++i) {
    Write(LeafFile(i % 2 == 0 ? "'5=tcp://127.0.0.1:5'" : "'6=tcp://127.0.0.1:6'"));
    EXPECT_THAT(Reload(kRead), HasSubstr("flag=workers"));
  }
  EXPECT_THAT(Ask(http, "GET", "/workers"),
              AllOf(HasSubstr("tcp://127.0.0.1:6"), Not(HasSubstr("tcp://127.0.0.1:5"))));
  asker.Stop();
  EXPECT_GT(asker.asked(), 0);
  EXPECT_EQ(asker.failed(), 0) << "of " << asker.asked();
}

TEST_F(ReloadTest, AFrontendTakesOtherEnginesAndWeightsWhileItAnswers) {
  const auto serve = [](const char* name) {
    return [name](TestSocket& connection) {
      while (!connection.ReadMessage().empty())
        connection.Send(std::string("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n") + name);
    };
  };
  TestEngine first(serve("1"));
  TestEngine second(serve("2"));
  const std::string weights = Folder() + "/weights.json";
  std::ofstream(weights) << "{\"m\": {\"prefill\": 2}}";
  const auto file = [&](const TestEngine& engine, const std::string& more) {
    return "[frontend]\nmodel_weights = '" + weights + "'\n" + more + "engines = { w0 = '" +
           engine.url() + "' }\n";
  };
  Write(file(first, "queue_weight = 1\n"));
  Start("frontend/kvatlas-frontend", {"--proxy=127.0.0.1:0"});
  const Address proxy = At("proxy");
  EXPECT_TRUE(Ask(proxy, "GET", "/v1/models").ends_with("\r\n\r\n1"));
  Asker asker([&] { return Ask(proxy, "GET", "/v1/models").starts_with("HTTP/1.1 200"); });
  Write(file(second, "queue_weight = 3\ndraining = ['w7']\noverload_requests = 9\n"));
  EXPECT_THAT(Reload(kRead), AllOf(HasSubstr("flag=engines"), HasSubstr("flag=queue_weight"),
                                   HasSubstr("flag=draining"), HasSubstr("flag=overload_requests"),
                                   HasSubstr("changed=4 need_restart=0")));
  EXPECT_TRUE(Ask(proxy, "GET", "/v1/models").ends_with("\r\n\r\n2"));
  // A file that a flag names.
  std::ofstream(weights) << "{\"m\": {\"prefil\": 2}}";
  Write(file(first, "queue_weight = 3\n"));
  EXPECT_THAT(Reload(kKept), AllOf(HasSubstr("--model_weights: "), HasSubstr("no weight")));
  EXPECT_TRUE(Ask(proxy, "GET", "/v1/models").ends_with("\r\n\r\n2"));
  std::ofstream(weights) << "{\"m\": {\"prefill\": 3}}";
  EXPECT_THAT(Reload(kRead), HasSubstr("flag=engines"));
  EXPECT_TRUE(Ask(proxy, "GET", "/v1/models").ends_with("\r\n\r\n1"));
  asker.Stop();
  EXPECT_GT(asker.asked(), 0);
  EXPECT_EQ(asker.failed(), 0) << "of " << asker.asked();
}

}  // namespace
}  // namespace kvatlas
