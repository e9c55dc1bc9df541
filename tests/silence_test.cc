// Is every mistake of an operator said where one looks? Real processes, each row with one thing
// that is wrong: what the log of either side says, and what its pages say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <ostream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "tests/programs.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);

// Arguments and expectations are filled as in `programs.h`.
struct Said {
  std::string name;
  std::string where;  // "log", or a path of its HTTP plane
  std::string what;   // a regular expression
};
struct Row {
  std::string name;
  std::vector<Program> programs;
  std::vector<Said> said;
  // A program that is then killed, and started again once the first of what follows is said; what
  // is said after that.
  std::string killed = {};
  std::vector<Said> after = {};
  // What a program is told over HTTP once all are there: name, path, body, expected answer.
  std::vector<std::vector<std::string>> posts = {};
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

class SilenceTest : public ::testing::TestWithParam<Row> {
 protected:
  void Await(const Said& said) {
    const std::regex wanted(programs_.Filled(said.what));
    std::string found;
    const auto is_said = [&] {
      found = said.where == "log" ? programs_.Log(said.name) : programs_.Get(said.name, said.where);
      return std::regex_search(found, wanted);
    };
    EXPECT_TRUE(kvatlas::Await(is_said, kLong))
        << said.name << " " << said.where << " never said " << programs_.Filled(said.what) << "\n"
        << found;
  }

  Programs programs_{GetParam().name};
};

TEST_P(SilenceTest, IsSaid) {
  const Row& row = GetParam();
  for (const Program& program : row.programs) {
    const absl::Status started = programs_.Start(program);
    ASSERT_TRUE(started.ok()) << started;
  }
  for (const std::vector<std::string>& post : row.posts) {
    HttpClient http(*Address::Parse(programs_.Of(post[0]).address("http")));
    const absl::StatusOr<HttpAnswer> answer = http.Post(post[1], programs_.Filled(post[2]));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(std::regex_search(answer->body, std::regex(programs_.Filled(post[3]))))
        << answer->body;
  }
  for (const Said& said : row.said) Await(said);
  if (row.killed.empty()) return;
  programs_.Kill(row.killed);
  Await(row.after.front());
  for (const Program& program : row.programs) {
    if (program.name != row.killed) continue;
    const absl::Status started = programs_.Restart(program);
    ASSERT_TRUE(started.ok()) << started;
  }
  for (const Said& said : row.after) Await(said);
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const Program leaf = {.name = "leaf", .kind = "leaf"};
  const Program hierarchy = {.name = "hierarchy", .kind = "hierarchy"};
  const auto engine = [](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), "--worker=" + name);
    return Program{.name = name, .kind = "engine", .args = std::move(more), .prefills = true};
  };
  // Before the next program says the contrary.
  const auto first = [&](Program program) {
    program.heard = true;
    return program;
  };

  rows.push_back(
      {.name = "Success",
       .programs = {hierarchy,
                    {.name = "leaf", .kind = "leaf", .args = {"--parents={hierarchy:grpc}"}},
                    engine("w", {"--leaf={leaf:grpc}"})},
       .said = {{"leaf", "log", "event=connected connection=parent [^\n]*{hierarchy:grpc}"},
                {"w", "log", "event=connected connection=leaf [^\n]*{leaf:grpc}"},
                {"leaf", "log", "event=\"stream welcomed\" holder=w"},
                {"leaf", "/status", "\"state\":\"connected\""}}});
  // ---- Publishers ----
  rows.push_back(
      {.name = "PublisherOfAnotherBlockSize",
       .programs = {leaf, first(engine("w", {"--leaf={leaf:grpc}", "--block_size=16"})),
                    engine("odd", {"--leaf={leaf:grpc}", "--block_size=32"})},
       .said = {
           {"odd", "log", "level=error [^\n]*event=refused connection=leaf [^\n]*block size 32"},
           {"leaf", "log", "event=\"stream refused\" holder=odd[^\n]*block size 32"},
           {"leaf", "/status", "\"refused\":.*odd.*block size 32 contradicts"}}});
  rows.push_back(
      {.name = "PublisherOfAnotherSeed",
       .programs = {{.name = "leaf", .kind = "leaf", .args = {"--contract_seed=7"}},
                    engine("w", {"--leaf={leaf:grpc}"})},
       .said = {{"w", "log", "level=error [^\n]*event=refused [^\n]*xxh3-chain-1:1337"},
                {"leaf", "log", "event=\"stream refused\" holder=w[^\n]*xxh3-chain-1:1337"},
                {"leaf", "/status", "\"refused\":.*xxh3-chain-1:1337"}}});
  rows.push_back(
      {.name = "PublisherWithoutALeaf",
       .programs = {engine("w", {"--leaf={dead}"})},
       .said = {
           {"w", "log",
            "event=unreachable connection=leaf worker=w [^\n]*{dead}[^\n]*Connection refused"}}});
  rows.push_back(
      {.name = "PublisherToAnHttpPort",
       .programs = {leaf, engine("w", {"--leaf={leaf:http}"})},
       .said = {{"w", "log",
                 "event=unreachable connection=leaf [^\n]*{leaf:http}[^\n]*reason=[^\n]*gRPC"}}});
  rows.push_back(
      {.name = "PublisherToAnEngine",
       .programs = {{.name = "other", .kind = "engine"}, engine("w", {"--leaf={other:grpc}"})},
       .said = {{"w", "log",
                 "level=error [^\n]*event=refused connection=leaf [^\n]*takes no streams"}}});
  rows.push_back(
      {.name = "TwoPublishersOfOneName",
       .programs = {leaf,
                    first(engine("w", {"--leaf={leaf:grpc}"})),
                    {.name = "younger",
                     .kind = "engine",
                     .args = {"--worker=w", "--leaf={leaf:grpc}"},
                     .prefills = true}},
       .said = {{"w", "log",
                 "level=error [^\n]*event=refused [^\n]*another process has the name "
                 "w[^\n]*expected epoch [^\n]*found the younger epoch [^\n]*a name of its own"},
                {"younger", "log", "event=connected connection=leaf"},
                {"leaf", "log",
                 "event=\"stream refused\" holder=w[^\n]*another sender has this name"}}});
  // ---- Frontends ----
  rows.push_back(
      {.name = "FrontendOfNothing",
       .programs = {{.name = "frontend", .kind = "frontend"}},
       .said = {{"frontend", "log",
                 "event=\"not ready: no hierarchy node and no leaf is known\" "
                 "remedy=\"--hierarchy=HOST:PORT or --leaves"},
                {"frontend", "/ready",
                 "\"ready\":false,\"reason\":\"no hierarchy node and no leaf is known\""}}});
  rows.push_back(
      {.name = "FrontendWithoutATokenizer",
       .programs = {{.name = "frontend",
                     .kind = "frontend",
                     .args = {"--tokenize=local,m=engine"}}},
       .said = {{"frontend", "log",
                 "event=\"prompts of text are routed by load alone: no tokenizer\" model=all "
                 "reason=\"--tokenize=local without --models\" remedy="}}});
  // What only chooses better must not keep requests from engines that are known.
  rows.push_back(
      {.name = "FrontendWithEnginesWhoseLeafIsAway",
       .programs = {{.name = "frontend",
                     .kind = "frontend",
                     .args = {"--leaves=a={dead}", "--proxy=127.0.0.1:0",
                              "--engines=e=http://{dead}"}}},
       .said = {
           {"frontend", "log",
            "event=\"engines get requests by turns: no hierarchy node and no leaf has answered"},
           {"frontend", "log",
            "event=unreachable connection=leaf endpoint={dead} reason=\"no connection can be made"},
           {"frontend", "/ready", "\"ready\":true"}}});
  // ---- Engines' own streams ----
  rows.push_back(
      {.name = "EngineEndpointWithoutAnEngine",
       .programs = {{.name = "leaf",
                     .kind = "leaf",
                     .args = {"--model_name=m", "--block_size=16", "--workers=w=tcp://{dead}"}}},
       .said = {{"leaf", "log",
                 "event=unreachable connection=\"engine events\" worker=w rank=0 "
                 "endpoint=tcp://{dead} reason=\"Connection refused\""},
                {"leaf", "/workers",
                 "\"state\":\"unreachable\",\"reason\":\"tcp://{dead}: Connection refused\""},
                {"leaf", "/status",
                 "\"trust\":\"TRUST_STALE\".*\"state\":\"unreachable\",\"reason\":\"tcp://{dead}: "
                 "Connection refused\""}}});
  rows.push_back(
      {.name = "EngineEndpointThatIsAnHttpPort",
       .programs = {hierarchy,
                    {.name = "leaf",
                     .kind = "leaf",
                     .args = {"--model_name=m", "--block_size=16",
                              "--workers=w=tcp://{hierarchy:http}"}}},
       .said = {{"leaf", "log", "event=unreachable connection=\"engine events\" [^\n]*ZeroMQ"},
                {"leaf", "/workers",
                 "\"state\":\"unreachable\",\"reason\":\"tcp://{hierarchy:http}: [^\"]*ZeroMQ"}}});
  const Program zmq_engine = {
      .name = "engine", .kind = "zmq_engine", .args = {"--block_size=32"}, .prefills = true};
  const std::string of_engine = "tcp://{engine:zmq_events};replay=tcp://{engine:zmq_replay}";
  rows.push_back(
      {.name = "EngineOfAnotherBlockSize",
       .programs = {zmq_engine,
                    {.name = "leaf",
                     .kind = "leaf",
                     .args = {"--model_name=m", "--block_size=16", "--workers=w=" + of_engine}}},
       .said = {
           {"leaf", "log",
            "event=\"engine event refused\" worker=w [^\n]*block size is 32, the domain's 16"},
           {"leaf", "/workers",
            "\"state\":\"refused\",\"reason\":\"its blocks have 32 tokens, and the domain's 16"},
           {"leaf", "/workers?detail=1", "\"trust\":\"degraded\",\"device_blocks\":0"},
           {"leaf", "/status", "\"trust\":\"TRUST_DEGRADED\".*\"state\":\"refused\""}}});
  rows.push_back(
      {.name = "EngineWithoutItsReplay",
       .programs = {zmq_engine,
                    {.name = "leaf",
                     .kind = "leaf",
                     .args = {"--model_name=m", "--block_size=32",
                              "--workers=w=tcp://{engine:zmq_events};replay=tcp://{dead}"}}},
       .said = {
           {"leaf", "log", "event=connected connection=\"engine events\" worker=w"},
           {"leaf", "log",
            "event=unreachable connection=\"engine replay\" [^\n]*{dead}[^\n]*Connection refused"},
           {"leaf", "/workers", "\"replay_state\":\"unreachable\""}}});
  rows.push_back(
      {.name = "EngineRegisteredForAnotherModel",
       .programs = {{.name = "leaf",
                     .kind = "leaf",
                     .args = {"--model_name=m", "--block_size=16", "--workers=1=tcp://{dead}"}}},
       .said = {{"leaf", "log",
                 "level=error [^\n]*event=\"registration of an engine refused\" worker=1 "
                 "[^\n]*already registered for model=m"}},
       .posts = {
           {"leaf", "/register",
            R"({"instance_id":1,"dp_rank":1,"endpoint":"tcp://{dead}","model_name":"other","block_size":16})",
            "already registered for model=m"}}});
  rows.push_back(
      {.name = "EngineThatRestarts",
       .programs = {zmq_engine,
                    {.name = "leaf",
                     .kind = "leaf",
                     .args = {"--model_name=m", "--block_size=32", "--workers=w=" + of_engine}}},
       .said = {{"leaf", "log", "event=connected connection=\"engine events\" worker=w"},
                {"leaf", "/workers?detail=1", "\"trust\":\"exact\",\"device_blocks\":2"}},
       .killed = "engine",
       .after = {{"leaf", "log", "event=\"connection lost\" connection=\"engine events\" worker=w"},
                 {"leaf", "log", "event=\"engine restarted: its cache is new\" worker=w"},
                 {"leaf", "log", "event=\"connected again\" connection=\"engine events\" worker=w"},
                 {"leaf", "/workers", "\"state\":\"connected\""}}});
  rows.push_back(
      {.name = "LeafThatRestarts",
       .programs = {leaf, engine("w", {"--leaf={leaf:grpc}"})},
       .said = {{"w", "log", "event=connected connection=leaf"}},
       .killed = "leaf",
       .after = {{"w", "log", "event=\"connection lost\" connection=leaf [^\n]*{leaf:grpc}"},
                 {"w", "log", "event=\"connected again\" connection=leaf"},
                 {"leaf", "log", "event=\"stream welcomed\" holder=w[^\n]*sender=returning"}}});
  // ---- Relays ----
  rows.push_back(
      {.name = "RelayWithoutALeaf",
       .programs = {zmq_engine,
                    {.name = "relay",
                     .kind = "relay",
                     .args = {"--model_name=m", "--block_size=32", "--leaves={dead}",
                              "--workers=w=" + of_engine}}},
       .said = {{"relay", "log",
                 "event=unreachable connection=leaf worker=w [^\n]*{dead}[^\n]*Connection refused"},
                {"relay", "log", "event=connected connection=\"engine events\" worker=w"},
                {"relay", "/status", "\"state\":\"unreachable\""}}});
  rows.push_back(
      {.name = "RelayOfAnotherSeed",
       .programs = {leaf,
                    zmq_engine,
                    {.name = "relay",
                     .kind = "relay",
                     .args = {"--contract_seed=7", "--model_name=m", "--block_size=32",
                              "--leaves={leaf:grpc}", "--workers=w=" + of_engine}}},
       .said = {{"relay", "log",
                 "level=error [^\n]*event=refused connection=leaf worker=w [^\n]*xxh3-chain-1:7"},
                {"leaf", "log", "event=\"stream refused\" holder=w[^\n]*xxh3-chain-1:7"}}});
  // ---- Upward, and Redis ----
  rows.push_back(
      {.name = "LeafWithoutItsParent",
       .programs = {{.name = "leaf", .kind = "leaf", .args = {"--parents={dead}"}},
                    engine("w", {"--leaf={leaf:grpc}"})},
       .said = {
           {"leaf", "log",
            "event=unreachable connection=parent [^\n]*{dead}[^\n]*Connection refused"},
           {"leaf", "/status",
            "\"parents\":.*\"state\":\"unreachable\",\"reason\":\"[^\"]*Connection refused"}}});
  rows.push_back(
      {.name = "LeafWithoutRedis",
       .programs = {{.name = "leaf", .kind = "leaf", .args = {"--redis=redis://{dead}"}}},
       .said = {{"leaf", "log",
                 "event=unreachable connection=redis [^\n]*{dead}[^\n]*[Cc]onnection refused"}}});
  rows.push_back({.name = "PublisherWithoutRedis",
                  .programs = {engine("w", {"--redis=redis://{dead}", "--redis_cell=c"})},
                  .said = {{"w", "log",
                            "event=unreachable connection=\"redis log\" "
                            "[^\n]*{dead}[^\n]*[Cc]onnection refused"}}});
  rows.push_back(
      {.name = "LeafWithoutItsPeer",
       .programs = {{.name = "leaf", .kind = "leaf", .args = {"--peers=http://{dead}"}}},
       .said = {{"leaf", "log", "event=\"a peer cannot be recovered from\" [^\n]*{dead}"},
                {"leaf", "log", "event=\"starts without a peer\""}}});
  // ---- Nothing to do ----
  rows.push_back(
      {.name = "LeafWithoutAnything",
       .programs = {leaf},
       .said = {{"leaf", "log", "event=\"no worker yet[^\n]*--workers [^\n]*{leaf:grpc}"}}});
  rows.push_back(
      {.name = "LeafInAFleetWithoutParents",
       .programs = {{.name = "leaf", .kind = "leaf", .args = {"--announce=redis://{dead}"}}},
       .said = {{"leaf", "log", "event=\"no parents[^\n]*--parents "}}});
  rows.push_back(
      {.name = "HierarchyWithoutAnything",
       .programs = {hierarchy},
       .said = {{"hierarchy", "log", "event=\"no cell yet[^\n]*--parents {hierarchy:grpc}"}}});
  rows.push_back({.name = "RelayWithoutAnything",
                  .programs = {{.name = "relay", .kind = "relay"}},
                  .said = {{"relay", "log", "event=\"no engine yet[^\n]*--workers "}}});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Mistakes, SilenceTest, ::testing::ValuesIn(Rows()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace kvatlas
