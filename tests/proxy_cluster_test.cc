// A whole fleet behind the proxy, as processes: chats go through to engines that really cache them,
// and go on being answered while leaves, the hierarchy and engines are killed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/mutex.h"
#include "tools/testing/cluster/at_rest.h"
#include "tools/testing/cluster/client.h"
#include "tools/testing/cluster/cluster.h"

namespace kvatlas {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr uint32_t kBlockSize = 16;

// A conversation of so many turns; that of n turns begins with that of n-1.
std::string Chat(uint32_t conversation, uint32_t turns, const std::string& more = "",
                 const std::string& model = "mock") {
  Json body = {{"model", model}, {"messages", Json::array()}};
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const std::string words = absl::StrCat("conversation ", conversation, " turn ", turn, " ",
                                           std::string(400, static_cast<char>('a' + turn % 26)));
    body["messages"].push_back(
        {{"role", turn % 2 == 0 ? "user" : "assistant"}, {"content", words}});
  }
  std::string text = body.dump();
  if (!more.empty()) text.insert(text.size() - 1, "," + more);
  return absl::StrCat("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: ",
                      text.size(), "\r\n\r\n", text);
}

Address ProxyOf(const Cluster& cluster) {
  return *Address::Parse(cluster.address("frontend", "proxy"));
}

std::string Header(const std::string& answer, const std::string& name) {
  const size_t at = answer.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const size_t from = at + name.size() + 4;
  return answer.substr(from, answer.find("\r\n", from) - from);
}

std::string Ask(const Address& proxy, const std::string& request) {
  TestSocket client(proxy);
  client.Send(request);
  return client.ReadMessage();
}

// Of a process' metric, of all of its labels that have these.
double SumOf(const Address& http, const std::string& name, const std::string& labels) {
  double total = 0;
  std::istringstream lines(BodyOf(Ask(http, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "{") && line.find(labels) != std::string::npos)
      total += std::atof(line.substr(line.rfind(' ')).c_str());
  return total;
}

std::unique_ptr<Cluster> Start(std::vector<std::string> more_of_engines = {},
                               std::vector<std::vector<std::string>> more_of_cells = {{}, {}}) {
  ClusterOptions options;
  options.cells = static_cast<uint32_t>(more_of_cells.size());
  options.workers = 2;
  options.cell_engine_args = std::move(more_of_cells);
  options.capacity = 4096;
  options.block_size = kBlockSize;
  options.engine_args = {"--http=127.0.0.1:0"};
  options.engine_args.insert(options.engine_args.end(), more_of_engines.begin(),
                             more_of_engines.end());
  options.frontend_args = {"--proxy=127.0.0.1:0", "--tokenize=engine", "--adapters=ad-a=mock"};
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  if (!cluster.ok()) return nullptr;
  // Every engine has said hello, and every leaf has told the hierarchy of it.
  ClusterClient client(**cluster);
  const absl::Status rest = WaitAtRest(**cluster, client, std::chrono::seconds(60));
  EXPECT_TRUE(rest.ok()) << rest;
  return *std::move(cluster);
}

TEST(ProxyClusterTest, TheNextTurnGoesWhereTheConversationIsAndEnginesHaveWhatWasPromised) {
  std::unique_ptr<Cluster> cluster = Start();
  ASSERT_NE(cluster, nullptr);
  const Address proxy = ProxyOf(*cluster);
  uint32_t promised = 0;
  // Until the first request no engine is known for tokens; then a turn's blocks take a moment to be
  // told.
  for (uint32_t turns = 1; promised == 0 && turns < 10'000; turns += 2) {
    const std::string answer = Ask(proxy, Chat(7, 1 + turns % 40));
    ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    const Json json = Json::parse(BodyOf(answer));
    const auto cached = json["usage"]["prompt_tokens_details"]["cached_tokens"].get<uint32_t>();
    promised = static_cast<uint32_t>(std::atoi(Header(answer, "x-kvatlas-overlap-blocks").c_str()));
    EXPECT_LE(promised * kBlockSize, cached);
  }
  EXPECT_GT(promised, 0u);
  // What was sent was told, and the engines' events have confirmed it.
  const auto sum = [&](const std::string& name, const std::string& labels) {
    double total = 0;
    for (const char* process : {"leaf-0", "leaf-1"})
      total += SumOf(*Address::Parse(cluster->address(process, "http")), name, labels);
    return total;
  };
  EXPECT_GT(sum("kvatlas_leaf_pending_told_total", ""), 0);
  EXPECT_GT(sum("kvatlas_leaf_pending_ended_total", "outcome=\"confirmed\""), 0);
  EXPECT_GT(SumOf(*Address::Parse(cluster->address("hierarchy", "http")),
                  "kvatlas_hierarchy_pending_told_total", ""),
            0);
}

// The first requests of the frontend, which has met no engine yet.
TEST(ProxyClusterTest, AnAdapterIsItsModelsAndWhatIsNeitherModelNorAdapterIsNotFound) {
  std::unique_ptr<Cluster> cluster = Start();
  ASSERT_NE(cluster, nullptr);
  const Address proxy = ProxyOf(*cluster);
  const std::string none = Ask(proxy, Chat(7, 1, "", "neither"));
  EXPECT_THAT(none, StartsWith("HTTP/1.1 404 "));
  EXPECT_EQ(Json::parse(BodyOf(none))["error"]["code"], 404) << none;
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(Ask(proxy, Chat(7, 1, "", "ad-a")), StartsWith("HTTP/1.1 200 OK\r\n"));
}

// Clients that ask without pause; what they see.
class Clients {
 public:
  explicit Clients(const Address& proxy) : proxy_(proxy) {
    for (uint32_t i = 0; i < 4; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Clients() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  // Until so many more were answered.
  void WaitForMore(size_t more) {
    MutexLock lock(&mutex_);
    const size_t wanted = answered_ + more;
    while (answered_ < wanted && wrong_.empty()) changed_.Wait(&mutex_);
  }
  // Until an answer's header has this.
  void WaitFor(const std::string& header, const std::string& value) {
    MutexLock lock(&mutex_);
    while (Header(last_, header) != value && wrong_.empty()) changed_.Wait(&mutex_);
  }
  std::string last() {
    MutexLock lock(&mutex_);
    return last_;
  }
  std::vector<std::string> wrong() {
    MutexLock lock(&mutex_);
    return wrong_;
  }

 private:
  void Run(uint32_t client) {
    for (uint32_t i = 0; !stopping_; ++i) {
      const std::string answer = Ask(proxy_, Chat(client, 1 + i % 10));
      const bool whole = answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with('}');
      MutexLock lock(&mutex_);
      if (whole) {
        ++answered_;
        last_ = answer;
      } else {
        wrong_.push_back(answer.empty() ? "nothing" : answer);
      }
      changed_.SignalAll();
    }
  }

  const Address proxy_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar changed_;
  size_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> wrong_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

// Every request is answered as it should be after each of them.
void KillInTurn(const std::vector<std::string>& names, Cluster* cluster, Clients* clients) {
  for (const std::string& name : names) {
    ASSERT_TRUE(cluster->Kill(name).ok());
    clients->WaitForMore(100);
    ASSERT_THAT(clients->wrong(), testing::IsEmpty()) << "after " << name;
  }
}

void RestartInTurn(const std::vector<std::string>& names, Cluster* cluster, Clients* clients) {
  for (const std::string& name : names) {
    const absl::Status status = cluster->Restart(name);
    ASSERT_TRUE(status.ok()) << status;
    clients->WaitForMore(20);
  }
}

TEST(ProxyClusterTest, EveryRequestIsAnsweredWhileOneEngineIsAlive) {
  std::unique_ptr<Cluster> cluster = Start();
  ASSERT_NE(cluster, nullptr);
  Clients clients(ProxyOf(*cluster));
  clients.WaitForMore(100);
  const std::vector<std::string> killed = {"worker-0-0", "leaf-0",     "hierarchy",
                                           "worker-1-0", "worker-0-1", "leaf-1"};
  ASSERT_NO_FATAL_FAILURE(KillInTurn(killed, cluster.get(), &clients));
  // One engine and the frontend alone.
  EXPECT_EQ(Header(clients.last(), "x-kvatlas-worker"), "worker-1-1");
  EXPECT_EQ(Header(clients.last(), "x-kvatlas-fallback"), "load_only");
  ASSERT_NO_FATAL_FAILURE(RestartInTurn(killed, cluster.get(), &clients));
  clients.WaitFor("x-kvatlas-fallback", "none");
  // The first that was killed is used again as soon as no other is left; until then blocks that
  // others kept may win.
  for (const char* name : {"worker-1-1", "worker-0-1", "worker-1-0"}) {
    ASSERT_TRUE(cluster->Kill(name).ok());
    clients.WaitForMore(20);
  }
  clients.WaitFor("x-kvatlas-worker", "worker-0-0");
  EXPECT_THAT(clients.wrong(), testing::IsEmpty());
}

TEST(ProxyClusterTest, AStreamWhoseEngineIsKilledBreaksOffAndTheNextRequestIsAnswered) {
  std::unique_ptr<Cluster> cluster = Start({"--token_time=5ms"});
  ASSERT_NE(cluster, nullptr);
  const Address proxy = ProxyOf(*cluster);
  TestSocket client(proxy);
  client.Send(Chat(1, 5, R"("stream":true,"max_tokens":4000)"));
  const std::string head = client.ReadUntil("\r\n\r\n");
  const std::string worker = Header(head, "x-kvatlas-worker");
  EXPECT_THAT(client.ReadUntil("\n\n"), HasSubstr("\"w0\""));
  ASSERT_TRUE(cluster->Kill(worker).ok()) << head;
  EXPECT_THAT(client.ReadToEnd(), Not(HasSubstr("[DONE]")));
  const std::string next = Ask(proxy, Chat(1, 5));
  EXPECT_THAT(next, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_NE(Header(next, "x-kvatlas-worker"), worker);
}

// ---- Prefill in two cells, decode in a third ----

std::unique_ptr<Cluster> StartSplit() {
  return Start({},
               {{"--labels=role=prefill"}, {"--labels=role=prefill"}, {"--labels=role=decode"}});
}

TEST(ProxyClusterTest, WhoPrefillsHasTheConversationAndWhoDecodesIsInAnotherCell) {
  std::unique_ptr<Cluster> cluster = StartSplit();
  ASSERT_NE(cluster, nullptr);
  const Address proxy = ProxyOf(*cluster);
  std::string answer;
  int promised = 0;
  for (uint32_t turns = 1; promised == 0 && turns < 10'000; turns += 2) {
    answer = Ask(proxy, Chat(7, 1 + turns % 40));
    ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(Header(answer, "x-kvatlas-cell"), AnyOf("cell-0", "cell-1"));
    EXPECT_EQ(Header(answer, "x-kvatlas-decode-cell"), "cell-2");
    EXPECT_EQ(Header(answer, "x-kvatlas-tried"), "");
    promised = std::atoi(Header(answer, "x-kvatlas-overlap-blocks").c_str());
  }
  EXPECT_GT(promised, 0) << "a leaf knows what a prefiller was sent by who decodes";

  // Over gRPC: the same two cells, and of two decoders the one that was not reached comes last.
  ClusterClient client(*cluster);
  const std::string chat = Chat(7, 9);
  const std::string body(BodyOf(chat));
  const absl::StatusOr<v1::RouteResponse> first = client.RouteChat(body);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(first->overlap_blocks(), 0u);
  EXPECT_EQ(first->cell(), Header(answer, "x-kvatlas-cell"));
  EXPECT_EQ(first->decode().cell(), "cell-2");
  EXPECT_EQ(first->receipt().fallback(), v1::FALLBACK_NONE);
  v1::ReportRequest report;
  report.set_decision_id(first->decision_id());
  report.set_decode_unreachable(true);
  ASSERT_TRUE(client.Report(report).ok());
  const absl::StatusOr<v1::RouteResponse> second = client.RouteChat(body);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->worker().name(), first->worker().name());
  EXPECT_EQ(second->decode().cell(), "cell-2");
  EXPECT_NE(second->decode().worker().name(), first->decode().worker().name());
}

// Until it is chosen, with the others said to be out of reach.
void WaitUntilDecodes(const std::string& worker, const Cluster& cluster) {
  ClusterClient client(cluster);
  const std::string chat = Chat(7, 9);
  for (bool decodes = false; !decodes;) {
    const absl::StatusOr<v1::RouteResponse> route = client.RouteChat(std::string(BodyOf(chat)));
    ASSERT_TRUE(route.ok()) << route.status();
    decodes = route->decode().worker().name() == worker;
    v1::ReportRequest report;
    report.set_decision_id(route->decision_id());
    report.set_abandoned(decodes);
    report.set_decode_unreachable(!decodes);
    ASSERT_TRUE(client.Report(report).ok());
  }
}

TEST(ProxyClusterTest, EveryRequestIsAnsweredWhileOnePrefillsAndOneDecodes) {
  std::unique_ptr<Cluster> cluster = StartSplit();
  ASSERT_NE(cluster, nullptr);
  Clients clients(ProxyOf(*cluster));
  clients.WaitForMore(100);
  const std::vector<std::string> killed = {"worker-2-0", "worker-0-0", "leaf-2",     "leaf-0",
                                           "hierarchy",  "worker-0-1", "worker-1-0", "leaf-1"};
  ASSERT_NO_FATAL_FAILURE(KillInTurn(killed, cluster.get(), &clients));
  EXPECT_EQ(Header(clients.last(), "x-kvatlas-decode-worker"), "worker-2-1");
  EXPECT_EQ(Header(clients.last(), "x-kvatlas-fallback"), "load_only");
  ASSERT_NO_FATAL_FAILURE(RestartInTurn(killed, cluster.get(), &clients));
  clients.WaitFor("x-kvatlas-fallback", "none");
  ASSERT_THAT(clients.wrong(), testing::IsEmpty()) << "after they came back";
  // The first that was killed is used again as soon as it is known again, and no other is left.
  ASSERT_NO_FATAL_FAILURE(WaitUntilDecodes("worker-2-0", *cluster));
  ASSERT_TRUE(cluster->Kill("worker-2-1").ok());
  clients.WaitForMore(20);
  clients.WaitFor("x-kvatlas-decode-worker", "worker-2-0");
  EXPECT_THAT(clients.wrong(), testing::IsEmpty());
}

}  // namespace
}  // namespace kvatlas
