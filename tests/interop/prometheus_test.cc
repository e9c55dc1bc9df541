// Does a real Prometheus take what a leaf says? Debian's prometheus scrapes a leaf that listens to
// an engine, and its own API must then know the series with their values.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/tier.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/leaf/http_transcript_test_util.h"
#include "indexer/leaf/leaf.h"
#include "indexer/net/http_fetch.h"
#include "tests/interop/recording.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr char kPrometheus[] = "/usr/bin/prometheus";
constexpr char kPromtool[] = "/usr/bin/promtool";
constexpr char kRecording[] = "tests/interop/recordings/vllm-plain.rec.gz";
constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kPortsTried = 10;

uint16_t FreePort() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(probe, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(probe);
  return ntohs(address.sin_port);
}

// A program of others; it ends with this, and with the test if that dies.
class Child {
 public:
  Child(std::vector<std::string> arguments, const std::string& log) {
    const pid_t parent = getpid();
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    FILE* to = freopen(log.c_str(), "a", stderr);
    if (to != nullptr) dup2(STDERR_FILENO, STDOUT_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    if (running_) waitpid(pid_, nullptr, 0);
  }
  bool Running() {
    if (running_) running_ = waitpid(pid_, nullptr, WNOHANG) == 0;
    return running_;
  }

 private:
  pid_t pid_ = 0;
  bool running_ = true;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PrometheusTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kPrometheus)) {
      GTEST_SKIP() << kPrometheus << " is not installed (tools/install does)";
    }
    LeafOptions options;
    options.grpc = {"127.0.0.1", 0};
    options.http = {"127.0.0.1", 0};
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
    ASSERT_TRUE(leaf.ok()) << leaf.status();
    leaf_ = *std::move(leaf);
    http_ = std::make_unique<HttpTestClient>(leaf_->http_address());
    absl::StatusOr<Recording> recording = ReadRecording(kRecording);
    ASSERT_TRUE(recording.ok()) << recording.status();
    recording_ = *std::move(recording);
  }

  // An engine that says what vLLM once said; returns when the leaf has applied it.
  void FeedLeaf() {
    const Json body = {{"instance_id", 1},
                       {"endpoint", engine_.endpoint()},
                       {"model_name", "a \"model\": with\\marks"},
                       {"block_size", recording_.streams[0].block_size}};
    ASSERT_EQ(http_->Post("/register", body.dump()).status, 201);
    engine_.WaitForSubscribers();
    for (const Recording::Frame& frame : recording_.frames) engine_.Publish(frame.payload);
    const uint64_t last = recording_.frames.back().number;
    ASSERT_TRUE(Until([&] {
      const std::vector<EngineEntry> entries = leaf_->engines().List();
      return !entries.empty() && entries[0].listeners[0].stream.tracker.last == last;
    }));
  }

  void StartPrometheus() {
    const std::string folder = testing::TempDir() + "/prometheus";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/prometheus.yml")
        << "global: {scrape_interval: 250ms, scrape_timeout: 250ms}\n"
           "scrape_configs:\n- job_name: leaf\n  static_configs:\n  - targets: ['"
        << leaf_->http_address().ToString() << "']\n";
    log_ = folder + "/log";
    // Another process may take the port in between; then it ends.
    for (int tries = 0; tries < kPortsTried; ++tries) {
      listen_ = {"127.0.0.1", FreePort()};
      prometheus_ = std::make_unique<Child>(
          std::vector<std::string>{kPrometheus, "--config.file=" + folder + "/prometheus.yml",
                                   "--storage.tsdb.path=" + folder + "/data",
                                   "--web.listen-address=" + listen_.ToString()},
          log_);
      ASSERT_TRUE(Until([&] {
        if (!prometheus_->Running()) return true;
        return Api("/-/ready").has_value();
      }));
      if (prometheus_->Running()) return;
    }
    FAIL() << ReadFile(log_);
  }

  // What Prometheus answers with 200.
  std::optional<std::string> Api(const std::string& path) {
    HttpFetch fetch;
    const absl::StatusOr<int> status = fetch.Get("http://" + listen_.ToString(), path);
    if (!status.ok() || *status != 200) return std::nullopt;
    absl::StatusOr<std::string> body = fetch.ReadAll(1 << 20);
    if (!body.ok()) return std::nullopt;
    return *std::move(body);
  }

  // The value of an expression that one series has; nothing yet: "".
  std::string Value(const std::string& expression) {
    std::string encoded;
    for (const unsigned char c : expression) {
      constexpr char kDigits[] = "0123456789ABCDEF";
      if (isalnum(c) || c == '_') {
        encoded += static_cast<char>(c);
      } else {
        encoded += {'%', kDigits[c >> 4], kDigits[c & 15]};
      }
    }
    const std::optional<std::string> answer = Api("/api/v1/query?query=" + encoded);
    if (!answer.has_value()) return "no answer";
    const Json parsed = Json::parse(*answer, nullptr, false);
    if (!parsed.is_object() || parsed.value("status", "") != "success") return *answer;
    const Json& result = parsed["data"]["result"];
    return result.size() == 1 ? result[0]["value"][1].get<std::string>() : "";
  }

  void ExpectValue(const std::string& expression, const std::string& value) {
    std::string last;  // a scrape that is late makes it unknown for a while
    Until([&] { return (last = Value(expression)) == value; });
    EXPECT_EQ(last, value) << expression;
  }

  static bool Until(const std::function<bool()>& done) { return Await(done, kPatience); }

  std::unique_ptr<Leaf> leaf_;
  std::unique_ptr<HttpTestClient> http_;
  ZmqTestEngine engine_{ZmqTestEngineOptions{}};
  Recording recording_;
  std::string log_;
  std::unique_ptr<Child> prometheus_;
  Address listen_;  // of Prometheus
};

TEST_F(PrometheusTest, KnowsWhatTheLeafKnows) {
  ASSERT_NO_FATAL_FAILURE(FeedLeaf());
  ASSERT_NO_FATAL_FAILURE(StartPrometheus());
  const EngineEntry engine = leaf_->engines().List()[0];
  const uint64_t blocks = engine.worker.ranks[0].blocks[static_cast<size_t>(Tier::kDevice)];
  ASSERT_GT(blocks, 100u);

  ExpectValue("up", "1");
  ExpectValue("dynamo_kvindexer_workers", "1");
  ExpectValue("dynamo_kvindexer_models", "1");
  ExpectValue("dynamo_kvindexer_listeners{status=\"active\"}", "1");
  ExpectValue("dynamo_kvindexer_requests_total{endpoint=\"/register\",method=\"POST\"}", "1");
  ExpectValue("kvatlas_engine_blocks{tier=\"device\",worker=\"1\",rank=\"0\"}",
              std::to_string(blocks));
  ExpectValue("kvatlas_engine_last_number", std::to_string(recording_.frames.back().number));
  // The model's name came through with its quotes, its colon and its backslash.
  ExpectValue("count(kvatlas_engine_last_number{model=\"a \\\"model\\\": with\\\\marks\"})", "1");

  // A scrape that is late is an error too, until the next one.
  Json targets;
  Until([&] {
    targets = Json::parse(Api("/api/v1/targets").value_or(""), nullptr, false)["data"];
    const Json& active = targets["activeTargets"];
    return active.size() == 1 && active[0]["lastError"] == "";
  });
  ASSERT_EQ(targets["activeTargets"].size(), 1u) << targets;
  EXPECT_EQ(targets["activeTargets"][0]["lastError"], "");
}

TEST_F(PrometheusTest, ItsCheckerFindsNothingWrongWithAScrape) {
  if (!std::filesystem::exists(kPromtool)) GTEST_SKIP() << kPromtool << " is not installed";
  ASSERT_NO_FATAL_FAILURE(FeedLeaf());
  const std::string scrape = testing::TempDir() + "/scrape.txt";
  std::ofstream(scrape) << http_->Get("/metrics").body;
  const std::string said = testing::TempDir() + "/promtool.txt";
  const std::string command =
      std::string(kPromtool) + " check metrics < '" + scrape + "' > '" + said + "' 2>&1";
  const int status = system(command.c_str());
  // 1: it cannot be parsed. 3: it can, but the checker would have chosen other names; Dynamo's are
  // what they are.
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 1) << ReadFile(said);
  std::ifstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(line.starts_with("kvatlas_")) << line;
  }
}

}  // namespace
}  // namespace kvatlas
