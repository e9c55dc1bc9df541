// One process in front of engines that come, go, restart and change: what it says, and that clients
// notice nothing of it.

#include "frontend/serve/serve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/ext_proc/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/security/secret_file.h"
#include "tools/bench/service_bench_http.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;
constexpr std::chrono::seconds kLong(60);

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A mock engine that publishes as vLLM does; its ports stay when it is started again.
class Engine {
 public:
  Engine(const std::string& name, std::vector<std::string> more, bool events = true)
      : name_(name), more_(std::move(more)), events_(events) {
    Start();
  }

  void Start() {
    std::vector<std::string> args = {"--grpc=127.0.0.1:0", "--exit_with_parent=true",
                                     "--http=" + (http_.empty() ? "127.0.0.1:0" : http_)};
    if (events_) {
      args.push_back("--zmq_events=tcp://" + (zmq_.empty() ? "127.0.0.1:0" : zmq_));
      args.push_back("--zmq_replay=tcp://" + (replay_.empty() ? "127.0.0.1:0" : replay_));
      args.push_back("--zmq_attach=bind");
    }
    args.insert(args.end(), more_.begin(), more_.end());
    process_ = std::make_unique<Process>(
        ProcessOptions{.name = name_,
                       .binary = "tools/testing/mock_engine/mock_engine",
                       .args = args,
                       .log = ::testing::TempDir() + "/" + name_ + ".log"});
    const absl::Status started = process_->Start(kLong);
    ASSERT_TRUE(started.ok()) << started;
    http_ = process_->address("http");
    if (!events_) return;
    zmq_ = process_->address("zmq_events");
    replay_ = process_->address("zmq_replay");
  }

  void Kill() { process_->Kill(); }
  void SetFlags(std::vector<std::string> more) { more_ = std::move(more); }
  void SetEvents(bool events) { events_ = events; }

  std::string name() const { return http_; }
  std::string spec() const {
    const std::string url = "http://" + http_;
    if (zmq_.empty()) return url + ";events=tcp://127.0.0.1:1";
    return url + ";events=tcp://" + zmq_ + ";replay=tcp://" + replay_;
  }

 private:
  const std::string name_;
  std::vector<std::string> more_;
  bool events_;
  std::string http_, zmq_, replay_;
  std::unique_ptr<Process> process_;
};

class ServeTest : public ::testing::Test {
 protected:
  void Serve(std::vector<std::string> args) {
    log_ = ::testing::TempDir() + "/serve-" +
           ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".log";
    args.insert(args.begin(), "serve");
    for (const char* port : {"listen", "http", "grpc", "leaf_http", "leaf_grpc"})
      args.push_back(std::string("--") + port + "=127.0.0.1:0");
    args.push_back("--exit_with_parent=true");
    args.push_back("--hf_cache=");
    process_ = std::make_unique<Process>(ProcessOptions{
        .name = "serve", .binary = "tools/kvatlas/kvatlas", .args = args, .log = log_});
    const absl::Status started = process_->Start(kLong);
    ASSERT_TRUE(started.ok()) << started;
    clients_ = std::make_unique<HttpClient>(*Address::Parse(process_->address("listen")));
  }

  bool HasLine(const std::string& first, const std::string& second) const {
    std::istringstream lines(TextOf(log_));
    for (std::string line; std::getline(lines, line);)
      if (line.find(first) != std::string::npos && line.find(second) != std::string::npos)
        return true;
    return false;
  }
  void AwaitLine(const std::string& first, const std::string& second = "") {
    const bool said = Await([&] { return HasLine(first, second); }, kLong);
    ASSERT_TRUE(said) << "no line with '" << first << "' and '" << second << "' in\n"
                      << TextOf(log_);
  }

  // Tokens of a chat's prompt that were cached, as its engine says; -1 when it was not served.
  int Chat(const std::string& model, const std::string& text, const std::string& salt = "") {
    Json body = {{"model", model}, {"messages", {{{"role", "user"}, {"content", text}}}}};
    if (!salt.empty()) body["cache_salt"] = salt;
    const absl::StatusOr<HttpAnswer> answer = clients_->Post("/v1/chat/completions", body.dump());
    if (!answer.ok()) {
      last_ = std::string(answer.status().message());
      return -1;
    }
    last_ = answer->body;
    overlap_ = answer->Header("x-kvatlas-overlap-blocks");
    rank_ = answer->Header("x-kvatlas-rank");
    worker_ = answer->Header("x-kvatlas-worker");
    const Json json = Json::parse(answer->body, nullptr, false);
    if (answer->status != 200 || !json.is_object()) return -1;
    return json["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  }

  // Served at every try, and from cache in the end.
  void ExpectSecondTurnIsCached(const std::string& model, const std::string& text,
                                const std::string& salt = "") {
    ASSERT_GE(Chat(model, text, salt), 0) << last_;
    int cached = 0;
    EXPECT_TRUE(Await(
        [&] {
          cached = Chat(model, text + " and then some more of it for the next turn", salt);
          return cached > 0 || cached < 0;
        },
        kLong));
    EXPECT_GT(cached, 0) << last_;
  }

  static std::string Long(const std::string& start) {
    std::string text = start;
    for (int i = 0; i < 30; ++i) text += " word" + std::to_string(i);
    return text;
  }

  std::string log_;
  std::string last_;
  std::string overlap_;  // as the last answer's header has it
  std::string rank_;
  std::string worker_;
  std::unique_ptr<Process> process_;
  std::unique_ptr<HttpClient> clients_;
};

TEST_F(ServeTest, ItEndsInOrderWhenItIsStopped) {
  Serve({"--engine=http://127.0.0.1:1"});
  process_->Terminate();
  siginfo_t end = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(process_->pid()), &end, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(end.si_code, CLD_EXITED) << TextOf(log_);
  EXPECT_EQ(end.si_status, 0) << TextOf(log_);
}

TEST_F(ServeTest, LinesForPeopleAreJsonWhereTheLogIs) {
  Engine a("json-a", {});
  Serve({"--engine=" + a.spec(), "--log_format=json"});
  AwaitLine("\"event\":\"status line\"", "clients: http://");
  AwaitLine("\"event\":\"status line\"", "model mock");
  std::istringstream lines(TextOf(log_));
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(line.starts_with("kvatlas-serve ready ") || Json::accept(line)) << line;
}

TEST_F(ServeTest, AnEngineSaysWhereItsEventsAre) {
  Engine a("said-a", {"--model=m", "--ranks=2"});
  Serve({"--engine=http://" + a.name()});
  AwaitLine("engine " + a.name(), "2 ranks");
  AwaitLine("engine " + a.name(), "events from tcp://127.0.0.1:");
  ExpectSecondTurnIsCached("m", Long("x"));
}

// The answer of an engine that was started with --api-key.
std::string AnswerWithKey(const std::string& request) {
  const bool knows = request.find("authorization: Bearer sk-1\r\n") != std::string::npos ||
                     request.find("Authorization: Bearer sk-1\r\n") != std::string::npos;
  const std::string body = !knows ? R"({"error":"Unauthorized"})"
                           : request.starts_with("GET /v1/models ")
                               ? R"({"object":"list","data":[{"id":"m"}]})"
                           : request.starts_with("POST /tokenize ") ? R"({"tokens":[1,2,3]})"
                                                                    : "{}";
  return absl::StrCat("HTTP/1.1 ", knows ? "200 OK" : "401 Unauthorized",
                      "\r\ncontent-type: application/json\r\ncontent-length: ", body.size(),
                      "\r\n\r\n", body);
}

// Both say where their events are, on one host.
TEST_F(ServeTest, EnginesOfOneHostAreNamedByTheirUrlsAlone) {
  Engine a("alone-a", {"--model=m"});
  Engine b("alone-b", {"--model=m"});
  Serve({"--engine=http://" + a.name(), "--engine=http://" + b.name()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  for (int chat = 0; chat < 4; ++chat)
    ExpectSecondTurnIsCached("m", Long("chat " + std::to_string(chat)));
}

// Versions that do not say it are both expected at the same port.
TEST_F(ServeTest, EventsThatWouldBeOfTwoEnginesAreOfOne) {
  TestEngine a([](TestSocket& connection) {
    for (std::string got; !(got = connection.ReadMessage()).empty();)
      connection.Send(AnswerWithKey(got + "authorization: Bearer sk-1\r\n"));
  });
  TestEngine b([](TestSocket& connection) {
    for (std::string got; !(got = connection.ReadMessage()).empty();)
      connection.Send(AnswerWithKey(got + "authorization: Bearer sk-1\r\n"));
  });
  Serve({"--engine=" + a.url() + ";name=a", "--engine=" + b.url() + ";name=b"});
  AwaitLine("! engine ", "tcp://127.0.0.1:5557, where those of ");
  AwaitLine("! engine ", "give it ;events=ENDPOINT of its own");
}

TEST_F(ServeTest, EveryLineIsForPeopleAndNoneOfParentsThatThereAreNot) {
  Engine a("plain-a", {});
  Serve({"--engine=" + a.spec()});
  AwaitLine("engine " + a.name(), "events from");
  ExpectSecondTurnIsCached("mock", Long("x"));
  process_->Terminate();
  EXPECT_THAT(TextOf(log_), Not(HasSubstr("parents")));
  std::istringstream lines(TextOf(log_));
  for (std::string line; std::getline(lines, line);)
    EXPECT_THAT(line, AnyOf(StartsWith("kvatlas-serve ready "), MatchesRegex("..:..:.. [ !] .*")));
}

std::string OutputOf(const std::string& command) {
  const std::string path = ::testing::TempDir() + "/output";
  EXPECT_EQ(std::system(("( " + command + " ) > " + path + " 2>&1").c_str()), 0);
  return TextOf(path);
}

TEST(ServeHelpTest, ItIsOfTheCommandAndBeginsWithTheEngines) {
  const std::string help = OutputOf("tools/kvatlas/kvatlas serve --help");
  EXPECT_THAT(help, HasSubstr("Usage: kvatlas serve [--flag=value...]\n"));
  EXPECT_THAT(help, Not(HasSubstr("kvatlas-serve")));
  EXPECT_THAT(help.substr(help.find("\n  --")), StartsWith("\n  --engine "));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(line.size(), 118u + (line.starts_with("  kvatlas ") ? 20 : 0)) << line;
  const std::string wrong = OutputOf("! tools/kvatlas/kvatlas serve --engin=http://h:1");
  EXPECT_THAT(wrong, StartsWith("kvatlas serve: "));
}

TEST_F(ServeTest, TheSecondTurnIsServedFromCache) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=m"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  for (int chat = 0; chat < 8; ++chat)
    ExpectSecondTurnIsCached("m", Long("chat " + std::to_string(chat)));
}

// The smallest form: one process is the leaf, the frontend and the picker of a gateway.
TEST_F(ServeTest, AGatewayIsNamedTheEngineThatHasThePrompt) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=m"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec(), "--ext_proc=127.0.0.1:0"});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  const auto gateway = GatewayChannel(process_->address("ext_proc"), /*tls=*/true);
  const auto named = [&](const std::string& body) {
    Stream request(gateway);
    request.Write(Mode(ext_proc::BUFFERED, Request("POST", "/v1/chat/completions")));
    EXPECT_EQ(HeadersEndpoint(request.Read()), "");
    request.Write(Body(body, /*end=*/true));
    return BodyEndpoint(request.Read());
  };
  for (int chat = 0; chat < 8; ++chat) {
    const std::string text = Long("chat " + std::to_string(chat));
    ASSERT_GE(Chat("m", text), 0) << last_;
    const std::string served_by = worker_;
    ASSERT_THAT(served_by, testing::AnyOf(a.name(), b.name()));
    const Json body = {{"model", "m"},
                       {"messages", {{{"role", "user"}, {"content", text + " next"}}}}};
    EXPECT_TRUE(Await([&] { return named(body.dump()) == served_by; }, kLong)) << served_by;
  }
}

// As the engine's own /metrics has it, for `kvatlas workers`, other frontends and the cell's
// parents.
TEST_F(ServeTest, TheLeafKnowsTheLoadOfEngines) {
  Engine a("a", {"--model=m"});
  Serve({"--engine=" + a.spec()});
  HttpClient leaf(*Address::Parse(process_->address("leaf_http")));
  std::string status;
  EXPECT_TRUE(Await(
      [&] {
        const absl::StatusOr<HttpAnswer> answer = leaf.Get("/status");
        if (answer.ok()) status = answer->body;
        return status.find("\"running_requests\"") != std::string::npos;
      },
      kLong))
      << status;
  // A leaf alone would name the flag of its own program here.
  EXPECT_EQ(TextOf(log_).find("--workers"), std::string::npos) << TextOf(log_);
}

TEST_F(ServeTest, EnginesWithAnApiKeyAreAskedWithIt) {
  TestEngine engine([](TestSocket& connection) {
    for (std::string got; !(got = connection.ReadMessage()).empty();)
      connection.Send(AnswerWithKey(got));
  });
  const std::string key = ::testing::TempDir() + "/engine_key";
  ASSERT_TRUE(WriteFileByRename(key, "sk-1\n", 0600).ok());
  const std::string spec = "--engine=" + engine.url() + ";events=none";
  Serve({spec});
  AwaitLine("unreachable: GET /v1/models answered 401", "--engine_api_key_file");
  Serve({spec, "--engine_api_key_file=" + key});
  AwaitLine("model m", "tokens by its own /tokenize");
  const auto answer = clients_->Post("/v1/completions", R"({"model":"m","prompt":"a"})");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 401) << "a client has a key of its own";
  EXPECT_EQ(answer->Header("x-kvatlas-fallback"), "none") << "with tokens of the engine";
  HttpClient admin(*Address::Parse(process_->address("http")));
  EXPECT_EQ(admin.Get("/status")->body.find("sk-1"), std::string::npos);
  EXPECT_FALSE(HasLine("sk-1", ""));
}

TEST_F(ServeTest, TokensAreMadeByTheWayThatTheFlagNames) {
  std::atomic<int> rendered = 0;
  TestEngine engine([&](TestSocket& connection) {
    for (std::string got; !(got = connection.ReadMessage()).empty();) {
      const bool renders = got.starts_with("POST /v1/completions/render ");
      rendered += renders ? 1 : 0;
      const std::string body = renders ? R"([{"token_ids":[1,2,3]}])"
                               : got.starts_with("GET /v1/models ")
                                   ? R"({"object":"list","data":[{"id":"m"}]})"
                                   : "{}";
      connection.Send(
          absl::StrCat("HTTP/1.1 200 OK\r\ncontent-length: ", body.size(), "\r\n\r\n", body));
    }
  });
  Serve({"--engine=" + engine.url() + ";events=none", "--tokenize=render"});
  AwaitLine("model m", "tokens by its own render endpoints");
  const auto answer = clients_->Post("/v1/completions", R"({"model":"m","prompt":"a"})");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->Header("x-kvatlas-fallback"), "none");
  EXPECT_EQ(rendered, 1);
}

TEST_F(ServeTest, AnEngineWithoutEventsIsRoutedToByLoadAndSaidWithItsFlag) {
  Engine silent("silent", {"--model=m"}, /*events=*/false);
  Serve({"--engine=" + silent.spec()});
  // An engine that answers late is known a moment after the start.
  EXPECT_TRUE(Await([&] { return Chat("m", Long("x")) >= 0; }, kLong)) << last_;
  AwaitLine("! engine " + silent.name(), "NO EVENTS at tcp://127.0.0.1:1");
  AwaitLine("NO EVENTS", "--kv-events-config");
  EXPECT_GE(Chat("m", Long("y")), 0) << last_;
}

TEST_F(ServeTest, AKilledEngineCostsNoRequestAndComesBack) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=m"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  for (int i = 0; i < 10; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  a.Kill();
  for (int i = 0; i < 10; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  AwaitLine("! engine " + a.name(), "gone: connecting to " + a.name());
  a.Start();
  AwaitLine("engine " + a.name(), "answers again");
  for (int i = 0; i < 10; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
}

TEST_F(ServeTest, AnotherModelIsFollowed) {
  Engine a("a", {"--model=old"});
  Serve({"--engine=" + a.spec()});
  AwaitLine("model old", "events from");
  ExpectSecondTurnIsCached("old", Long("x"));
  a.Kill();
  a.SetFlags({"--model=new"});
  a.Start();
  AwaitLine("engine " + a.name(), "serves new now, no longer old");
  AwaitLine("model new", "events from");
  ExpectSecondTurnIsCached("new", Long("x"));
}

TEST_F(ServeTest, AnotherBlockSizeOfAllEnginesIsFollowed) {
  Engine a("a", {"--model=m", "--block_size=16"});
  Serve({"--engine=" + a.spec()});
  AwaitLine("engine " + a.name(), "events from");
  ExpectSecondTurnIsCached("m", Long("x"));
  AwaitLine("engine " + a.name(), "blocks of 16 tokens");
  a.Kill();
  a.SetFlags({"--model=m", "--block_size=32"});
  a.Start();
  ASSERT_GE(Chat("m", Long("y")), 0) << last_;
  AwaitLine("engine " + a.name(), "restarted: what it had cached before is gone");
  AwaitLine("engine " + a.name(), "has another block size than before");
  AwaitLine("engine " + a.name(), "blocks of 32 tokens");
  ExpectSecondTurnIsCached("m", Long("z"));
}

TEST_F(ServeTest, ABlockSizeUnlikeTheOthersIsSaidOnce) {
  Engine a("a", {"--model=m", "--block_size=16"});
  Engine b("b", {"--model=m", "--block_size=32"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  for (int i = 0; i < 20; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  AwaitLine("! engine ", "block size differs from that of the model's other engines");
}

// Its leaf has the old size until a block of the new one is announced.
TEST_F(ServeTest, AfterARestartWithAnotherBlockSizeTheLineHasTheNewOne) {
  Engine a("a", {"--model=m", "--block_size=16"});
  Engine b("b", {"--model=m", "--block_size=16"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  ASSERT_GE(Chat("m", Long("x")), 0) << last_;
  AwaitLine("engine " + a.name(), "blocks of 16 tokens");
  a.Kill();
  AwaitLine("! engine " + a.name(), "gone");
  a.SetFlags({"--model=m", "--block_size=32"});
  a.Start();
  AwaitLine("engine " + a.name(), "answers again");
  const size_t before = TextOf(log_).size();
  AwaitLine("engine " + a.name(), "blocks of 32 tokens");
  const std::string after = TextOf(log_).substr(before);
  EXPECT_EQ(after.find("blocks of 16 tokens"), std::string::npos) << after;
}

TEST_F(ServeTest, AnEngineThatIsGoneIsInStatusAndDiagnosis) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=m"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  HttpClient admin(*Address::Parse(process_->address("http")));
  a.Kill();
  const auto is_told = [&](const std::string& path) {
    const absl::StatusOr<HttpAnswer> answer = admin.Get(path);
    return answer.ok() && answer->body.find("engine_unreachable") != std::string::npos &&
           answer->body.find(a.name()) != std::string::npos;
  };
  EXPECT_TRUE(Await([&] { return is_told("/diagnosis"); }, kLong)) << admin.Get("/diagnosis")->body;
  EXPECT_TRUE(is_told("/status")) << admin.Get("/status")->body;
  a.Start();
  EXPECT_TRUE(Await([&] { return !is_told("/diagnosis"); }, kLong))
      << admin.Get("/diagnosis")->body;
}

TEST_F(ServeTest, AnEngineThatIsRestartedWithoutEventsIsSaid) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=m"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  a.Kill();
  a.SetEvents(false);
  a.Start();
  for (int i = 0; i < 10; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  AwaitLine("! engine " + a.name(), "NO EVENTS at tcp://");
  for (int i = 0; i < 10; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
}

// It announces what it caches under a salt of its own.
TEST_F(ServeTest, AnotherCacheSaltIsSaidAndNotMatched) {
  Engine a("a", {"--model=m"});
  Serve({"--engine=" + a.spec()});
  AwaitLine("engine " + a.name(), "events from");
  ExpectSecondTurnIsCached("m", Long("x"));
  ExpectSecondTurnIsCached("m", Long("x"), "pepper");
  EXPECT_EQ(TextOf(log_).find("cache salt differs"), std::string::npos) << TextOf(log_);
  a.Kill();
  a.SetFlags({"--model=m", "--cache_salt=salt"});
  a.Start();
  for (int i = 0; i < 10; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  AwaitLine("engine " + a.name(), "restarted: what it had cached before is gone");
  // Requests that it served before its events were connected again say nothing of that: others are
  // needed then.
  EXPECT_TRUE(Await(
      [&] {
        return Chat("m", Long("1")) < 0 ||
               HasLine("! engine " + a.name(),
                       "cache salt differs: its blocks are announced under");
      },
      kLong));
  AwaitLine("! engine " + a.name(), "cache salt differs: its blocks are announced under");
  EXPECT_EQ(TextOf(log_).find("pepper"), std::string::npos) << TextOf(log_);
  ASSERT_GE(Chat("m", Long("1")), 0) << last_;
  EXPECT_EQ(overlap_, "0");
  // As the line says.
  EXPECT_TRUE(Await(
      [&] {
        const int cached = Chat("m", Long("x"), "salt");
        return cached < 0 || (cached > 0 && overlap_ != "0");
      },
      kLong));
  EXPECT_NE(overlap_, "0") << last_;
}

TEST_F(ServeTest, ARequestGoesToTheRankThatHasItsPrompt) {
  Engine a("a", {"--model=m", "--ranks=3"});
  Serve({"--engine=" + a.spec()});
  AwaitLine("3 ranks", "events from");
  for (int chat = 0; chat < 6; ++chat) {
    const std::string text = Long("chat " + std::to_string(chat));
    ASSERT_GE(Chat("m", text), 0) << last_;
    const std::string first = rank_;
    EXPECT_NE(first, "");
    int cached = 0;
    EXPECT_TRUE(Await(
        [&] {
          cached = Chat("m", text + " and more");
          // The promised blocks are there, on that rank.
          EXPECT_GE(cached, 16 * std::stoi(overlap_)) << last_;
          return overlap_ != "0";
        },
        kLong));
    EXPECT_GT(cached, 0) << last_;
  }
}

TEST_F(ServeTest, AnotherNumberOfRanksIsFollowed) {
  Engine a("a", {"--model=m", "--ranks=3"});
  Serve({"--engine=" + a.spec()});
  AwaitLine("3 ranks", "events from");
  for (int i = 0; i < 12; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  a.Kill();
  a.SetFlags({"--model=m", "--ranks=1"});
  a.Start();
  // Also before it is known that the ranks are gone.
  for (int i = 0; i < 12; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  AwaitLine("engine " + a.name(), "has 1 rank now, no longer 3");
  AwaitLine("1 rank,", "events from");
  ExpectSecondTurnIsCached("m", Long("x"));
  a.Kill();
  a.SetFlags({"--model=m", "--ranks=3"});
  a.Start();
  for (int i = 0; i < 12; ++i) ASSERT_GE(Chat("m", Long(std::to_string(i))), 0) << last_;
  AwaitLine("engine " + a.name(), "has 3 ranks now, no longer 1");
  ExpectSecondTurnIsCached("m", Long("y"));
}

TEST_F(ServeTest, EmbeddingsGoToAnEngineOfTheirModel) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=n"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  AwaitLine("engine " + a.name(), "events from");
  AwaitLine("engine " + b.name(), "events from");
  const std::map<std::string, std::string> engine_of = {{"m", a.name()}, {"n", b.name()}};
  for (const auto& [model, engine] : engine_of) {
    for (const Json& input : {Json("a text"), Json({"a text", "another"}), Json({1, 2, 3})}) {
      const Json body = {{"model", model}, {"input", input}};
      const absl::StatusOr<HttpAnswer> answer = clients_->Post("/v1/embeddings", body.dump());
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->status, 200) << answer->body;
      EXPECT_EQ(answer->Header("x-kvatlas-worker"), engine);
      const Json json = Json::parse(answer->body, nullptr, false);
      EXPECT_EQ(json["data"].size(), input.is_array() && input[0].is_string() ? 2u : 1u);
      EXPECT_EQ(json["model"], model);
    }
  }
  const absl::StatusOr<HttpAnswer> other =
      clients_->Post("/v1/embeddings", R"({"model":"other","input":"x"})");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->status, 404) << other->body;
}

// The first question of a client.
TEST_F(ServeTest, ModelsOfAllEnginesAreListedBeforeTheFirstRequest) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=n"});
  Serve({"--engine=" + a.spec(), "--engine", b.spec()});
  // An engine that answers late is known a moment after the start.
  absl::StatusOr<HttpAnswer> answer;
  Json json;
  Await(
      [&] {
        answer = clients_->Get("/v1/models");
        if (answer.ok()) json = Json::parse(answer->body, nullptr, false);
        return answer.ok() && answer->status == 200 && json["data"].size() == 2;
      },
      kLong);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200) << answer->body;
  ASSERT_EQ(json["data"].size(), 2u) << answer->body;
  // In the order of the engines' addresses.
  const std::set<std::string> ids = {json["data"][0]["id"], json["data"][1]["id"]};
  EXPECT_EQ(ids, (std::set<std::string>{"m", "n"}));
}

TEST_F(ServeTest, EnginesComeAndGoByFile) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=m"});
  const std::string file = ::testing::TempDir() + "/engines";
  std::ofstream(file) << "# first\n" << a.spec() << "\n";
  Serve({"--engines_file=" + file});
  AwaitLine("engine " + a.name(), "events from");
  std::ofstream(file) << a.spec() << "\nnonsense://\n";
  AwaitLine("engines:2: ", "the engines stay as they were");
  EXPECT_GE(Chat("m", Long("x")), 0) << last_;
  std::ofstream(file) << b.spec() << "\n";
  AwaitLine("engine " + a.name(), "is no longer in the list");
  AwaitLine("engine " + b.name(), "events from");
  a.Kill();
  ExpectSecondTurnIsCached("m", Long("y"));
}

TEST_F(ServeTest, TheLastEngineOfAModelGetsNothingOnceItIsTakenOut) {
  Engine a("a", {"--model=m"});
  Engine b("b", {"--model=n"});
  const std::string file = ::testing::TempDir() + "/engines-of-two";
  std::ofstream(file) << a.spec() << "\n" << b.spec() << "\n";
  Serve({"--engines_file=" + file});
  AwaitLine("engine " + b.name(), "events from");
  ExpectSecondTurnIsCached("n", Long("x"));
  std::ofstream(file) << a.spec() << "\n";
  AwaitLine("engine " + b.name(), "is no longer in the list");
  EXPECT_TRUE(Await([&] { return Chat("n", Long("x")) < 0; }, kLong)) << last_;
  EXPECT_GE(Chat("m", Long("x")), 0) << last_;
  EXPECT_LT(Chat("n", Long("x")), 0) << last_;
}

TEST(ServeDescriptorsTest, TooFewForItsEnginesAreRefused) {
  const std::string out = ::testing::TempDir() + "/few";
  const int status = std::system(
      ("ulimit -n 64; exec tools/kvatlas/kvatlas serve --engine http://127.0.0.1:1 2> " + out)
          .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_NE(TextOf(out).find("with 1 engines it needs 132 at least: raise the limit (ulimit -n"),
            std::string::npos)
      << TextOf(out);
}

TEST_F(ServeTest, EnginesThatComeLaterAreFound) {
  auto a = std::make_unique<Engine>("a", std::vector<std::string>{"--model=m"});
  a->Kill();
  Serve({"--engine=" + a->spec()});
  AwaitLine("! engine " + a->name(), "unreachable: connecting to");
  AwaitLine("! not ready: none of 1 engines answers");
  a->Start();
  AwaitLine("ready");
  AwaitLine("engine " + a->name(), "events from");
  ExpectSecondTurnIsCached("m", Long("x"));
}

}  // namespace
}  // namespace kvatlas
