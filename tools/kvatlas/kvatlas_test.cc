// Every sub-command against real services: a node, a leaf and its replica, a frontend, a relay.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "publisher/publisher.h"
#include "publisher/zmq_events.h"
#include "tools/kvatlas/commands.h"
#include "tools/kvatlas/services.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

constexpr uint32_t kBlockSize = 4;
constexpr std::chrono::seconds kLong(60);
constexpr char kUnreachable[] = "127.0.0.1:1";  // without a listener
constexpr char kTokenizer[] = "frontend/prompt/text/testdata/bytes";

struct Outcome {
  int exit = 0;
  std::string out;
  std::string err;

  std::vector<Json> Lines() const {
    std::vector<Json> lines;
    std::istringstream text(out);
    for (std::string line; std::getline(text, line);)
      lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
    return lines;
  }
};

std::ostream& operator<<(std::ostream& to, const Outcome& outcome) {
  return to << "exit " << outcome.exit << "\n" << outcome.out << outcome.err;
}

// A service may take as long as a machine takes that does much else.
Outcome Kvatlas(std::vector<std::string> arguments, const std::string& input = "",
                const std::function<void(CommandIo*)>& prepare = nullptr) {
  static const auto& asks =
      *new std::set<std::string>{"status", "cells", "workers",  "streams",    "query",   "explain",
                                 "dump",   "diff",  "diagnose", "checkpoint", "sessions"};
  if (!arguments.empty() && asks.contains(arguments[0])) arguments.push_back("--timeout=60s");
  std::ostringstream out, err;
  std::istringstream in(input);
  CommandIo io{out, err, in};
  if (prepare != nullptr) prepare(&io);
  Outcome outcome;
  outcome.exit = RunCommand(arguments, io);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// Until it is so; what it was last.
Outcome KvatlasUntil(const std::vector<std::string>& arguments,
                     const std::function<bool(const Outcome&)>& condition) {
  Outcome outcome;
  Await([&] { return condition(outcome = Kvatlas(arguments)); }, kLong);
  return outcome;
}

std::string TempPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

// All tokens of block i are `first + i`.
std::vector<TokenId> TokensOf(uint32_t first, size_t blocks) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < blocks; ++i)
    tokens.insert(tokens.end(), kBlockSize, first + static_cast<TokenId>(i));
  return tokens;
}

std::string Joined(const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

class Service {
 public:
  Service(const std::string& name, const std::string& binary, std::vector<std::string> args)
      : process_({.name = name,
                  .binary = binary,
                  .args = WithParent(std::move(args)),
                  .log = TempPath(name + ".log")}) {
    const absl::Status started = process_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
  }
  std::string grpc() const { return process_.address("grpc"); }
  std::string http() const { return process_.address("http"); }

 private:
  static std::vector<std::string> WithParent(std::vector<std::string> args) {
    args.push_back("--http=127.0.0.1:0");
    args.push_back("--exit_with_parent=true");
    return args;
  }
  Process process_;
};

std::unique_ptr<Publisher> Engine(const std::string& name, std::vector<std::string> leaves) {
  return *Publisher::Create({.leaves = std::move(leaves),
                             .worker = name,
                             .domain = {.model = "m", .tenant = ""},
                             .block_size = kBlockSize});
}

// All of it, once for all tests.
struct World {
  World()
      : hierarchy("hierarchy", "hierarchy/kvatlas-hierarchy", {"--grpc=127.0.0.1:0", "--node=top"}),
        leaf("leaf", "indexer/leaf/kvatlas-leaf",
             {"--grpc=127.0.0.1:0", "--cell=a", "--parents=" + hierarchy.grpc(),
              "--checkpoint_dir=" + TempPath("checkpoints"), "--checkpoint_every=1h"}),
        replica("replica", "indexer/leaf/kvatlas-leaf",
                {"--grpc=127.0.0.1:0", "--cell=a", "--replica=b"}),
        frontend(
            "frontend", "frontend/kvatlas-frontend",
            {"--grpc=127.0.0.1:0", "--hierarchy=" + hierarchy.grpc(), "--leaves=a=" + leaf.grpc(),
             "--models=m=" + std::string(kTokenizer), "--tokenize=local"}),
        relay("relay", "publisher/kvatlas-relay",
              {"--leaves=" + leaf.grpc(), "--model_name=m", "--block_size=4",
               "--workers=e1=" + engine.endpoint() + ";replay=" + engine.replay_endpoint()}),
        both(Engine("w0", {leaf.grpc(), replica.grpc()})),
        one(Engine("w1", {leaf.grpc()})) {
    std::vector<EngineHash> names;
    for (EngineHash i = 0; i < 20; ++i) names.push_back(1000 + i);
    both->Stored(Tier::kDevice, names, std::nullopt, TokensOf(100, 20));
    one->Stored(Tier::kDevice, std::span(names).first(3), std::nullopt, TokensOf(100, 3));
    one->Stored(Tier::kHost, std::span(names).first(1), std::nullopt, {});
    both->SetLoad({.running_requests = 2, .waiting_requests = 1});
    ZmqEventEncoder encoder(ZmqEventForm::kMap, kBlockSize, /*rank=*/0);
    const std::vector<uint64_t> blocks = {1, 2, 3, 4};
    const std::vector<TokenId> tokens = TokensOf(500, blocks.size());
    encoder.Stored({.hashes = blocks, .tokens = tokens});
    engine.Publish(encoder.Finish(1.0));
    // `WaitAcknowledged` does not wait for a replica that was not reached yet.
    for (const auto& publisher : {both.get(), one.get()}) {
      EXPECT_TRUE(Await(
          [&] {
            publisher->Flush();
            for (const ReplicaStats& replica : publisher->Stats().replicas)
              if (!replica.at_rest) return false;
            return publisher->WaitAcknowledged(kLong);
          },
          kLong));
    }
    EXPECT_EQ(KvatlasUntil({"query", "--leaf=" + leaf.grpc(), "--model=m",
                            "--tokens=" + Joined(TokensOf(500, 4)), "--json"},
                           [](const Outcome& o) {
                             return o.Lines().size() == 1 && o.Lines()[0]["blocks"] == 4 &&
                                    o.Lines()[0]["trust"] == "exact";
                           })
                  .exit,
              0);
  }

  ZmqTestEngine engine{{.replay = true}};
  Service hierarchy, leaf, replica, frontend, relay;
  std::unique_ptr<Publisher> both, one;
};

class KvatlasTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("GRPC_VERBOSITY", "NONE", 1);
    world_ = new World;
  }
  static void TearDownTestSuite() {
    delete world_;
    world_ = nullptr;
  }
  static World& world() { return *world_; }
  static std::string Leaf() { return "--leaf=" + world().leaf.grpc(); }

 private:
  static World* world_;
};
World* KvatlasTest::world_ = nullptr;

// ---- The command line ----

TEST_F(KvatlasTest, AWrongCommandLineIsNamedAndExitsWith2) {
  EXPECT_EQ(Kvatlas({}).exit, 2);
  EXPECT_THAT(Kvatlas({"cell"}).err, HasSubstr("\"cell\" is no command"));
  EXPECT_EQ(Kvatlas({"workers", "--leaf=nonsense"}).exit, 2);
  EXPECT_EQ(Kvatlas({"workers", "--nonsense=1"}).exit, 2);
  EXPECT_THAT(Kvatlas({"query", "--tokens=1"}).err, HasSubstr("--model is missing"));
  EXPECT_THAT(Kvatlas({"query", "--model=m"}).err, HasSubstr("say the prompt in one way"));
  EXPECT_THAT(Kvatlas({"query", "--model=m", "--tokens=1,x"}).err,
              HasSubstr("\"x\" is not a number"));
  EXPECT_THAT(Kvatlas({"query", "--model=m", "--tokens=1", "--tiers=tape"}).err, HasSubstr("tape"));
  EXPECT_THAT(Kvatlas({"query", "--model=m", "--tokens=1",
                       "--hierarchy=" + std::string(kUnreachable), "--schedule=sometimes"})
                  .err,
              HasSubstr("--schedule"));
  EXPECT_THAT(Kvatlas({"diff"}).err, HasSubstr("--right is missing"));
  EXPECT_THAT(Kvatlas({"diff", "--right=leaf"}).err, HasSubstr("--right"));
  EXPECT_THAT(Kvatlas({"dump", "--from=tape=x"}).err, HasSubstr("--from"));
  EXPECT_THAT(Kvatlas({"explain", "--model=m", "--hashes=1"}).err, HasSubstr("--local_hashes"));
  EXPECT_THAT(Kvatlas({"query", Leaf(), "--model=m", "--tokens=1"}).err, HasSubstr("query --all"));
  EXPECT_THAT(Kvatlas({"workers", Leaf(), "--json", "/no/such/place"}).err,
              HasSubstr("cannot be written"));
}

TEST_F(KvatlasTest, AServiceIsNamedAlikeEverywhereByEitherOfItsPorts) {
  const World& w = world();
  const std::string tokens = "--tokens=" + Joined(TokensOf(100, 5));
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"workers", "leaf=" + w.leaf.grpc()},
           {"workers", "leaf=" + w.leaf.http()},
           {"workers", "--leaf=" + w.leaf.http()},
           {"cells", "hierarchy=" + w.hierarchy.http()},
           {"streams", "relay=" + w.relay.http(), "leaf=" + w.leaf.http(),
            "hierarchy=" + w.hierarchy.grpc()},
           {"query", "leaf=" + w.leaf.http(), "--model=m", tokens},
           {"query", "--all", "leaf=" + w.leaf.grpc(), "--model=m", tokens},
           {"query", "hierarchy=" + w.hierarchy.http(), "--model=m", tokens},
           {"explain", "leaf=" + w.leaf.grpc(), "--model=m", tokens},
           {"explain", "frontend=" + w.frontend.grpc(), "--model=m", tokens},
           {"diagnose", "frontend=" + w.frontend.http()},
           {"dump", "leaf=" + w.leaf.http()},
           {"diff", "leaf=" + w.leaf.http(), "relay=" + w.relay.http()}}) {
    const Outcome outcome = Kvatlas(arguments);
    EXPECT_EQ(outcome.exit, 0) << arguments[0] << " " << arguments[1] << ": " << outcome;
  }
}

TEST_F(KvatlasTest, AServiceThatIsNamedWronglyIsSaidToBe) {
  const World& w = world();
  const Outcome kind = Kvatlas({"workers", "hierarchy=" + w.hierarchy.grpc()});
  EXPECT_EQ(kind.exit, 2);
  EXPECT_THAT(kind.err, HasSubstr("expected a service of: leaf, serve"));
  EXPECT_THAT(Kvatlas({"workers", "leef=" + w.leaf.grpc()}).err, HasSubstr("did you mean leaf?"));
  EXPECT_THAT(Kvatlas({"workers", "leaf=" + w.leaf.grpc(), "--leaf=" + w.leaf.grpc()}).err,
              HasSubstr("name the leaf once"));
  EXPECT_THAT(Kvatlas({"workers", "leaf=" + w.leaf.grpc(), "leaf=" + w.leaf.grpc()}).err,
              HasSubstr("expected at most 1 services; found 2"));
  // The port of another process.
  const Outcome other = Kvatlas({"workers", "leaf=" + w.relay.http()});
  EXPECT_EQ(other.exit, 1) << other;
  EXPECT_THAT(other.err, HasSubstr("a kvatlas-relay is there, no leaf"));
  // A frontend is diagnosed over HTTP alone.
  const Outcome port = Kvatlas({"diagnose", "frontend=" + w.frontend.grpc()});
  EXPECT_EQ(port.exit, 1) << port;
  EXPECT_THAT(port.err, HasSubstr("expected its HTTP port"));
}

TEST_F(KvatlasTest, WatchLooksAgainAndBeginsTheScreenAnew) {
  int looks = 0;
  Duration waited{0};
  const Outcome outcome =
      Kvatlas({"workers", "--watch", "leaf=" + world().leaf.grpc()}, "", [&](CommandIo* io) {
        io->terminal = true;
        io->wait = [&](Duration every) {
          waited = every;
          return ++looks < 3;
        };
      });
  EXPECT_EQ(outcome.exit, 0) << outcome;
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(waited, std::chrono::seconds(2));
  size_t cleared = 0;
  for (size_t at = 0; (at = outcome.out.find("\x1b[H\x1b[2J", at)) != std::string::npos; ++at)
    ++cleared;
  EXPECT_EQ(cleared, 3u);
  EXPECT_THAT(outcome.out, HasSubstr("3 holders at leaf"));
  // An error is shown, and the watch goes on.
  looks = 0;
  const Outcome away =
      Kvatlas({"workers", "--watch=1ms", "--leaf=" + std::string(kUnreachable)}, "",
              [&](CommandIo* io) { io->wait = [&](Duration) { return ++looks < 2; }; });
  EXPECT_EQ(away.exit, 4);
  EXPECT_EQ(looks, 2);
  EXPECT_THAT(away.out, HasSubstr(kUnreachable));
}

TEST_F(KvatlasTest, ColoursAreForTerminalsAndNoColorIsHonoured) {
  const std::vector<std::string> workers = {"workers", Leaf()};
  const auto terminal = [](CommandIo* io) { io->terminal = true; };
  unsetenv("NO_COLOR");
  EXPECT_THAT(Kvatlas(workers, "", terminal).out, HasSubstr("\x1b[32mexact"));
  EXPECT_THAT(Kvatlas(workers).out, Not(HasSubstr("\x1b[")));
  EXPECT_THAT(Kvatlas({"workers", Leaf(), "--color=always"}).out, HasSubstr("\x1b[32mexact"));
  setenv("NO_COLOR", "1", 1);
  EXPECT_THAT(Kvatlas(workers, "", terminal).out, Not(HasSubstr("\x1b[")));
  unsetenv("NO_COLOR");
}

TEST_F(KvatlasTest, WhoCannotBeReachedIsNamedAndExitsWith4) {
  const std::string unreachable = kUnreachable;
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"cells", "--hierarchy=" + unreachable},
           {"workers", "--leaf=" + unreachable},
           {"streams", "--leaf=" + unreachable},
           {"streams", "--relay=" + unreachable},
           {"query", "--leaf=" + unreachable, "--model=m", "--tokens=1,2,3,4"},
           {"query", "--hierarchy=" + unreachable, "--model=m", "--tokens=1,2,3,4"},
           {"explain", "--leaf_http=" + unreachable, "--model=m", "--tokens=1,2,3,4"},
           {"explain", "--frontend=" + unreachable, "--model=m", "--tokens=1,2,3,4"},
           {"dump", "--from=leaf=" + unreachable},
           {"dump", "--from=relay=" + unreachable},
           {"diff", "--left=leaf=" + world().leaf.grpc(), "--right=leaf=" + unreachable},
           {"checkpoint", "--leaf_http=" + unreachable}}) {
    const Outcome outcome = Kvatlas(arguments);
    EXPECT_EQ(outcome.exit, 4) << arguments[0] << " " << arguments[1] << ": " << outcome;
    EXPECT_THAT(outcome.err, HasSubstr(unreachable)) << arguments[0];
    EXPECT_EQ(outcome.out, "") << arguments[0];
  }
  const std::string ca = TempPath("ca");
  ASSERT_EQ(Kvatlas({"pki", "init", ca}).exit, 0);
  ASSERT_EQ(Kvatlas({"pki", "issue", ca, "leaf/a/-"}).exit, 0);
  const Service tls("tls-leaf", "indexer/leaf/kvatlas-leaf",
                    {"--grpc=127.0.0.1:0", "--tls_cert=" + ca + "/leaf-a--.pem",
                     "--tls_key=" + ca + "/leaf-a--.key", "--tls_ca=" + ca + "/ca.pem"});
  EXPECT_THAT(Kvatlas({"workers", "--leaf=" + tls.grpc()}).err, HasSubstr("CAs by --tls_ca"));
}

TEST_F(KvatlasTest, AnUnknownDomainIsNamedAndExitsWith1) {
  const std::string hierarchy = "--hierarchy=" + world().hierarchy.grpc();
  const std::string leaf = "leaf=" + world().leaf.grpc();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"cells", hierarchy, "--model=other"},
           {"workers", Leaf(), "--model=m", "--tenant=other"},
           {"streams", Leaf(), "--model=other"},
           {"streams", "--relay=" + world().relay.http(), "--model=other"},
           {"query", Leaf(), "--model=other", "--tokens=1,2,3,4"},
           {"query", hierarchy, "--model=other", "--tokens=1,2,3,4"},
           {"explain", "--frontend=" + world().frontend.grpc(), "--model=other",
            "--tokens=1,2,3,4"},
           {"dump", "--from=" + leaf, "--model=other"},
           {"dump", "--from=relay=" + world().relay.http(), "--model=other"},
           {"diff", "--left=" + leaf, "--right=" + leaf, "--model=other"}}) {
    const Outcome outcome = Kvatlas(arguments);
    EXPECT_EQ(outcome.exit, 1) << arguments[0] << ": " << outcome;
    EXPECT_NE(outcome.err, "") << arguments[0];
    EXPECT_EQ(outcome.out, "") << arguments[0];
  }
}

// ---- What there is ----

TEST_F(KvatlasTest, StatusShowsAllProcessesThatANamedOneKnows) {
  const World& w = world();
  const auto of = [](const Outcome& outcome, const std::string& process) {
    for (const Json& line : outcome.Lines())
      if (line["process"] == process) return line;
    return Json();
  };
  const Outcome all = KvatlasUntil(
      {"status", "frontend=" + w.frontend.http(), "relay=" + w.relay.http(), "--json"},
      [&](const Outcome& o) {
        return o.exit == 0 && o.Lines().size() == 4 && of(o, "frontend")["state"] == "ready";
      });
  EXPECT_EQ(all.exit, 0) << all;
  ASSERT_EQ(all.Lines().size(), 4u) << all;
  EXPECT_EQ(of(all, "leaf")["name"], "a");
  EXPECT_EQ(of(all, "leaf")["state"], "ready");
  EXPECT_EQ(of(all, "leaf")["holds"], "3 workers, 24 blocks of m");
  EXPECT_EQ(of(all, "hierarchy")["name"], "top");
  EXPECT_EQ(of(all, "relay")["holds"], "1 worker, 4 blocks");
  EXPECT_EQ(of(all, "frontend")["state"], "ready");
  // From the node to its cells, from a leaf to its parents.
  EXPECT_EQ(KvatlasUntil({"status", "hierarchy=" + w.hierarchy.grpc(), "--json"},
                         [](const Outcome& o) { return o.Lines().size() == 2; })
                .Lines()
                .size(),
            2u);
  EXPECT_EQ(Kvatlas({"status", "leaf=" + w.leaf.http(), "--json"}).Lines().size(), 2u);
  EXPECT_EQ(Kvatlas({"status", "leaf=" + w.leaf.http(), "--follow=false", "--json"}).Lines().size(),
            1u);
  const Outcome table =
      Kvatlas({"status", "leaf=" + w.leaf.grpc(), "relay=" + std::string(kUnreachable)});
  EXPECT_EQ(table.exit, 4) << table;
  EXPECT_THAT(table.out, HasSubstr("PROCESS"));
  EXPECT_THAT(table.out, HasSubstr("to look at:\n  relay 127.0.0.1:1: unreachable: connecting"));
  std::istringstream rows(table.out.substr(0, table.out.find("\nto look at:")));
  for (std::string row; std::getline(rows, row);)
    EXPECT_LE(row.size(), 160u) << "a reason is not in the table: " << row;
}

TEST_F(KvatlasTest, StreamsOfEnginesHaveTheirEndpointLagAndLosses) {
  ZmqTestEngine engine({.replay = true});
  const Service leaf(
      "listening-leaf", "indexer/leaf/kvatlas-leaf",
      {"--grpc=127.0.0.1:0", "--model_name=z", "--block_size=4",
       "--workers=7=" + engine.endpoint() + ";replay=" + engine.replay_endpoint() + ",8=tcp://" +
           kUnreachable,
       "--checkpoint_dir=" + TempPath("engine-checkpoints"), "--checkpoint_every=1h"});
  ZmqEventEncoder encoder(ZmqEventForm::kMap, kBlockSize, /*rank=*/0);
  const std::vector<uint64_t> blocks = {1, 2, 3, 4};
  const std::vector<TokenId> tokens = TokensOf(500, blocks.size());
  encoder.Stored({.hashes = blocks, .tokens = tokens});
  engine.Publish(encoder.Finish(1.0));
  const auto row = [](const Outcome& o, const std::string& holder) {
    for (const Json& line : o.Lines())
      if (line["holder"] == holder) return line;
    return Json::object();
  };
  const Outcome streams =
      KvatlasUntil({"streams", "leaf=" + leaf.grpc(), "--json"}, [&](const Outcome& o) {
        return row(o, "7").value("state", "") == "exact" &&
               row(o, "8").value("state", "") == "unreachable";
      });
  EXPECT_EQ(row(streams, "7")["peer"], engine.endpoint()) << streams;
  EXPECT_TRUE(row(streams, "7")["lag_ms"].is_number()) << streams;
  EXPECT_EQ(row(streams, "7")["lost"], 0) << streams;
  EXPECT_EQ(row(streams, "8")["peer"], "tcp://" + std::string(kUnreachable)) << streams;
  EXPECT_THAT(row(streams, "8").value("detail", ""), HasSubstr("refused")) << streams;
  // An engine's own events have no numbers of ours, and do not say how large its pool is.
  const Outcome workers = Kvatlas({"workers", "leaf=" + leaf.grpc()});
  EXPECT_THAT(workers.out, testing::ContainsRegex("\n7 .* -  +1\n")) << workers;
  EXPECT_EQ(row(Kvatlas({"workers", "leaf=" + leaf.grpc(), "--json"}), "7")["batch"], 1);

  // The leaf's own engines are in its checkpoint, and compared.
  const Outcome held = KvatlasUntil({"dump", "leaf=" + leaf.grpc()}, [](const Outcome& o) {
    return o.out.find("4 holdings") != o.out.npos;
  });
  EXPECT_THAT(held.out, HasSubstr("4 holdings")) << held;
  const Outcome written = Kvatlas({"checkpoint", "leaf=" + leaf.http(), "--json"});
  ASSERT_EQ(written.Lines().size(), 1u) << written;
  EXPECT_EQ(written.Lines()[0]["blocks"], 0);
  EXPECT_EQ(written.Lines()[0]["engine_blocks"], 4);
  const std::string path = "checkpoint=" + std::string(written.Lines()[0]["path"]);
  const Outcome equal = Kvatlas({"diff", "leaf=" + leaf.grpc(), path});
  EXPECT_EQ(equal.exit, 0) << equal;
  EXPECT_THAT(equal.out, HasSubstr("equal: 4 holdings"));
  // Blocks stored since are a difference.
  const std::vector<uint64_t> more = {5};
  encoder.Stored({.hashes = more, .parent = 4, .tokens = TokensOf(600, 1)});
  engine.Publish(encoder.Finish(2.0));
  const Outcome different =
      KvatlasUntil({"diff", "leaf=" + leaf.grpc(), path, "--json", "--again_after=1ms"},
                   [](const Outcome& o) { return o.exit == 3; });
  ASSERT_EQ(different.Lines().size(), 1u) << different;
  EXPECT_EQ(different.Lines()[0]["holder"], "7");
  EXPECT_EQ(different.Lines()[0]["only_left"], 1);
}

TEST_F(KvatlasTest, WorkersAreListedWithWhatTheyHold) {
  const Outcome table = Kvatlas({"workers", Leaf()});
  EXPECT_EQ(table.exit, 0) << table;
  EXPECT_THAT(table.out, HasSubstr("WORKER"));
  EXPECT_THAT(table.out, HasSubstr("w0"));
  EXPECT_THAT(table.out, HasSubstr("3 holders at leaf " + world().leaf.grpc()));
  const Outcome json = Kvatlas({"workers", Leaf(), "--model=m", "--json"});
  ASSERT_EQ(json.Lines().size(), 3u) << json;
  for (const Json& line : json.Lines()) {
    EXPECT_EQ(line["trust"], "exact") << line;
    if (line["holder"] == "w0") {
      EXPECT_EQ(line["blocks"], 20);
      EXPECT_EQ(line["load"]["running_requests"], 2);
    }
  }
}

TEST_F(KvatlasTest, JsonToAFileLeavesTheTable) {
  const std::string path = TempPath("workers.json");
  const Outcome outcome = Kvatlas({"workers", Leaf(), "--json=" + path});
  EXPECT_EQ(outcome.exit, 0) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("WORKER"));
  std::ifstream file(path);
  std::string line;
  int lines = 0;
  for (; std::getline(file, line); ++lines) EXPECT_TRUE(Json::accept(line)) << line;
  EXPECT_EQ(lines, 3);
}

TEST_F(KvatlasTest, CellsAreListedWithTheirWaypoints) {
  const std::vector<std::string> cells = {"cells", "--hierarchy=" + world().hierarchy.grpc(),
                                          "--json"};
  const Outcome json = KvatlasUntil(
      cells, [](const Outcome& o) { return o.Lines().size() == 1 && o.Lines()[0]["blocks"] > 0; });
  ASSERT_EQ(json.Lines().size(), 1u) << json;
  EXPECT_EQ(json.Lines()[0]["holder"], "a");
  EXPECT_THAT(Kvatlas({"cells", cells[1]}).out, HasSubstr("1 holder at hierarchy"));
}

TEST_F(KvatlasTest, StreamsComeInAndGoOut) {
  const Outcome leaf = Kvatlas({"streams", Leaf()});
  EXPECT_EQ(leaf.exit, 0) << leaf;
  EXPECT_THAT(leaf.out, HasSubstr(world().hierarchy.grpc()));
  // A stream out is numbered as its receiver has it.
  const auto of_cell = [](const Outcome& o, const char* direction) {
    for (const Json& line : o.Lines())
      if (line["direction"] == direction && line["holder"] == "a") return line;
    return Json::object();
  };
  const Outcome both =
      KvatlasUntil({"streams", Leaf(), "--hierarchy=" + world().hierarchy.grpc(), "--json"},
                   [&](const Outcome& o) {
                     const Json out = of_cell(o, "out"), in = of_cell(o, "in");
                     return in.value("batch", 0) > 0 && out.value("batch", 0) == in["batch"] &&
                            out["acknowledged"] == in["batch"];
                   });
  EXPECT_EQ(of_cell(both, "out")["batch"], of_cell(both, "in")["batch"]) << both;
  const std::string relay_flag = "--relay=" + world().relay.http();
  const Outcome relay = Kvatlas({"streams", relay_flag, "--json"});
  ASSERT_EQ(relay.Lines().size(), 2u) << relay;
  EXPECT_EQ(relay.Lines()[0]["direction"], "in");
  EXPECT_EQ(relay.Lines()[0]["peer"], world().engine.endpoint());
  EXPECT_EQ(relay.Lines()[1]["direction"], "out");
  EXPECT_EQ(relay.Lines()[1]["peer"], world().leaf.grpc());
  EXPECT_EQ(relay.Lines()[1]["holder"], "e1");
  // Services that can be reached are shown all the same.
  const Outcome some =
      Kvatlas({"streams", Leaf(), relay_flag, "--hierarchy=" + std::string(kUnreachable)});
  EXPECT_EQ(some.exit, 4);
  EXPECT_THAT(some.out, HasSubstr("e1"));
  EXPECT_THAT(some.err, HasSubstr(kUnreachable));
}

// ---- Prompts ----

TEST_F(KvatlasTest, APromptIsAskedByTokensByHashesAndFromAFile) {
  const std::vector<TokenId> tokens = TokensOf(100, 5);
  const std::vector<LocalHash> locals =
      LocalHashes(tokens, {.block_size = kBlockSize}, BlockSeed({}));
  std::string hashes, local_hashes;
  for (const LocalHash local : locals)
    local_hashes += (local_hashes.empty() ? "" : ",") + std::to_string(Raw(local));
  for (const SequenceHash hash : SequenceHashes(locals))
    hashes += (hashes.empty() ? "" : ",") + std::to_string(Raw(hash));
  const auto check = [](const Outcome& outcome) {
    ASSERT_EQ(outcome.exit, 0) << outcome;
    ASSERT_EQ(outcome.Lines().size(), 2u) << outcome;
    EXPECT_EQ(outcome.Lines()[0]["worker"], "w0");
    EXPECT_EQ(outcome.Lines()[0]["blocks"], 5);
    EXPECT_EQ(outcome.Lines()[0]["tokens"], 20);
    EXPECT_EQ(outcome.Lines()[1]["worker"], "w1");
    EXPECT_EQ(outcome.Lines()[1]["blocks"], 3);
  };
  const std::vector<std::string> query = {"query", Leaf(), "--model=m", "--json"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = query;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  check(Kvatlas(with({"--tokens=" + Joined(tokens)})));
  check(Kvatlas(with({"--hashes=" + hashes})));
  check(Kvatlas(with({"--local_hashes=" + local_hashes})));
  check(Kvatlas(with({"--file=-"}), "[" + Joined(tokens) + "]\n"));
  std::ofstream(TempPath("prompt")) << hashes;
  check(Kvatlas(with({"--file=" + TempPath("prompt"), "--as=hashes"})));
  EXPECT_EQ(Kvatlas(with({"--tokens=" + Joined(tokens), "--best=1"})).Lines().size(), 1u);
  EXPECT_EQ(Kvatlas(with({"--tokens=" + Joined(tokens), "--all"})).Lines().size(), 3u);
  const Outcome host = Kvatlas(with({"--tokens=" + Joined(tokens), "--tiers=host"}));
  ASSERT_EQ(host.Lines().size(), 1u) << host;
  EXPECT_EQ(host.Lines()[0]["worker"], "w1");
  EXPECT_EQ(host.Lines()[0]["blocks"], 1);
  EXPECT_THAT(Kvatlas({"query", Leaf(), "--model=m", "--tokens=9,9,9,9"}).out,
              HasSubstr("no holder has the first of 1 blocks"));
}

TEST_F(KvatlasTest, ANodeSaysWhichCells) {
  const Outcome outcome =
      KvatlasUntil({"query", "--hierarchy=" + world().hierarchy.grpc(), "--model=m",
                    "--tokens=" + Joined(TokensOf(100, 20)), "--json"},
                   [](const Outcome& o) {
                     return o.Lines().size() == 1 && o.Lines()[0]["blocks_at_least"] > 0;
                   });
  ASSERT_EQ(outcome.Lines().size(), 1u) << outcome;
  EXPECT_EQ(outcome.Lines()[0]["cell"], "a");
  EXPECT_EQ(outcome.Lines()[0]["address"], world().leaf.grpc());
  EXPECT_GE(outcome.Lines()[0]["blocks_at_least"], 8);
}

TEST_F(KvatlasTest, SessionsSayWhatOfThemIsWhereAndWhatANextTurnComputes) {
  v1::RouteRequest request;
  request.mutable_domain()->set_model("m");
  for (const TokenId token : TokensOf(100, 25)) request.mutable_tokens()->add_ids(token);
  request.set_session_id("s 7");
  const std::string leaf = "--leaf_http=" + world().leaf.http();
  const Outcome found = KvatlasUntil({"sessions", leaf, "--json", "--session=s 7"}, [&](auto& o) {
    EXPECT_TRUE(AskRoute(*Address::Parse(world().frontend.grpc()), request, kLong).ok());
    return !o.Lines().empty();
  });
  const auto line = found.Lines().at(0);
  EXPECT_EQ(line["worker"], "w0");
  EXPECT_EQ(line["tokens"], 100);
  EXPECT_EQ(line["at"][0]["tokens"], 80);
  EXPECT_EQ(line["next_turn_computes"], 20);
  EXPECT_THAT(Kvatlas({"sessions", "leaf=" + world().leaf.grpc(), "--session=other"}).out,
              HasSubstr("that session was not told of"));
}

TEST_F(KvatlasTest, ALeafExplainsBlockByBlock) {
  std::vector<TokenId> tokens = TokensOf(100, 5);
  const std::vector<TokenId> other = TokensOf(900, 1);
  tokens.insert(tokens.end(), other.begin(), other.end());
  const Outcome table = Kvatlas(
      {"explain", "--leaf_http=" + world().leaf.http(), "--model=m", "--tokens=" + Joined(tokens)});
  EXPECT_EQ(table.exit, 0) << table;
  EXPECT_THAT(table.out, HasSubstr("w0"));
  EXPECT_THAT(table.out, HasSubstr("6 blocks of 4 tokens"));
  EXPECT_THAT(table.out, HasSubstr("no holder has block 5"));
  const Outcome json = Kvatlas({"explain", "--leaf_http=" + world().leaf.http(), "--model=m",
                                "--tokens=" + Joined(tokens), "--json"});
  ASSERT_EQ(json.Lines().size(), 1u) << json;
  EXPECT_EQ(json.Lines()[0]["diverges_at"], 5);
}

TEST_F(KvatlasTest, ALeafExplainsTheCacheClassesOfAHybridWorkerAsStrips) {
  ZmqTestEngine engine({});
  const Service leaf("hybrid-leaf", "indexer/leaf/kvatlas-leaf",
                     {"--grpc=127.0.0.1:0", "--workers=7=" + engine.endpoint(), "--model_name=h",
                      "--block_size=4"});
  engine.WaitForSubscribers();
  engine.Publish(HybridPromptPayload());
  const Outcome outcome = KvatlasUntil(
      {"explain", "--leaf_http=" + leaf.http(), "--model=h", "--tokens=" + Joined(HybridTokens(7))},
      [](const Outcome& o) {
        // The events of a batch are seen one by one.
        return o.out.find("no holder can reuse more than 4 blocks") != o.out.npos;
      });
  EXPECT_EQ(outcome.exit, 0) << outcome;
  EXPECT_THAT(outcome.out, testing::ContainsRegex("7 +main +4 +6 +6 +4 +state +######\\."));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("window:8 +4 +5 +\\.\\.###\\.\\."));
  EXPECT_THAT(outcome.out, testing::ContainsRegex("state +4 +4 +\\.\\.\\.#\\.\\.\\."));
  EXPECT_THAT(outcome.out,
              HasSubstr("no holder can reuse more than 4 blocks; full attention holds 6"));
}

TEST_F(KvatlasTest, AFrontendExplainsItsChoice) {
  const Outcome outcome = KvatlasUntil(
      {"explain", "--frontend=" + world().frontend.grpc(), "--model=m",
       "--tokens=" + Joined(TokensOf(100, 20))},
      [](const Outcome& o) { return o.exit == 0 && o.out.find("19 of 20") != o.out.npos; });
  EXPECT_EQ(outcome.exit, 0) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("w0 of a, 19 of 20 blocks"));
  EXPECT_THAT(outcome.out, HasSubstr("PREFILL"));
}

TEST_F(KvatlasTest, AFrontendsDiagnosisIsReadable) {
  const std::string frontend = "--frontend_http=" + world().frontend.http();
  const Outcome text = Kvatlas({"diagnose", frontend});
  EXPECT_EQ(text.exit, 0) << text;
  EXPECT_THAT(text.out, HasSubstr("nothing to judge by"));
  const Outcome json = Kvatlas({"diagnose", frontend, "--json"});
  ASSERT_EQ(json.Lines().size(), 1u) << json;
  EXPECT_TRUE(json.Lines()[0]["findings"].is_array());
  EXPECT_THAT(Kvatlas({"diagnose", frontend, "--decision=7"}).err, HasSubstr("no such decision"));
}

// ---- Holdings ----

TEST_F(KvatlasTest, ADumpNamesRunsAndIsReadBackFromItsFile) {
  const std::string path = TempPath("dump.json");
  const Outcome table = Kvatlas({"dump", "--from=leaf=" + world().leaf.grpc(), "--json=" + path});
  EXPECT_EQ(table.exit, 0) << table;
  EXPECT_THAT(table.out, HasSubstr("3 holders, 28 holdings"));
  const Outcome again = Kvatlas({"dump", "--from=file=" + path});
  EXPECT_THAT(again.out, HasSubstr("3 holders, 28 holdings"));
  const Outcome one = Kvatlas({"dump", "--from=file=" + path, "--worker=w1"});
  EXPECT_THAT(one.out, HasSubstr("1 holder, 4 holdings"));
  EXPECT_THAT(one.out, HasSubstr("host"));
  EXPECT_EQ(Kvatlas({"dump", "--from=file=" + path, "--model=other"}).exit, 1);
  EXPECT_EQ(Kvatlas({"dump", "--from=file=" + TempPath("nothing")}).exit, 1);
  std::ofstream(TempPath("broken")) << "{\"domain\":\n";
  EXPECT_THAT(Kvatlas({"dump", "--from=file=" + TempPath("broken")}).err, HasSubstr("line 1"));
  const Outcome relay = Kvatlas({"dump", "--from=relay=" + world().relay.http()});
  EXPECT_THAT(relay.out, HasSubstr("1 holder, 4 holdings")) << relay;
  const Outcome node = Kvatlas({"dump", "--from=hierarchy=" + world().hierarchy.grpc()});
  EXPECT_EQ(node.exit, 0) << node;
}

TEST_F(KvatlasTest, ALeafAndItsRelayAreEqual) {
  const Outcome outcome = Kvatlas(
      {"diff", "--left=leaf=" + world().leaf.grpc(), "--right=relay=" + world().relay.http()});
  EXPECT_EQ(outcome.exit, 0) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("equal"));
}

TEST_F(KvatlasTest, BlocksAreNotComparedWithWaypointsWithoutAWord) {
  const Outcome outcome = Kvatlas({"diff", "leaf=" + world().leaf.grpc(),
                                   "hierarchy=" + world().hierarchy.grpc(), "--again_after=1ms"});
  EXPECT_EQ(outcome.exit, 3) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("a hierarchy node holds waypoints of cells"));
}

TEST_F(KvatlasTest, ADifferenceBetweenReplicasIsNamed) {
  const std::vector<std::string> diff = {"diff", "--left=leaf=" + world().leaf.grpc(),
                                         "--right=leaf=" + world().replica.grpc(),
                                         "--again_after=1ms"};
  const Outcome table = Kvatlas(diff);
  EXPECT_EQ(table.exit, 3) << table;
  EXPECT_THAT(table.out, HasSubstr("w1"));
  EXPECT_THAT(table.out, HasSubstr("e1"));
  EXPECT_THAT(table.out, Not(HasSubstr("w0")));
  std::vector<std::string> json = diff;
  json.insert(json.end(), {"--worker=w1", "--hashes=2", "--json"});
  const Outcome lines = Kvatlas(json);
  ASSERT_EQ(lines.Lines().size(), 2u) << lines;
  EXPECT_EQ(lines.Lines()[0]["tier"], "device");
  EXPECT_EQ(lines.Lines()[0]["only_left"], 3);
  EXPECT_EQ(lines.Lines()[0]["only_right"], 0);
  EXPECT_EQ(lines.Lines()[0]["first_only_left"].size(), 2u);
  EXPECT_EQ(lines.Lines()[1]["tier"], "host");
  json.push_back("--worker=w0");
  EXPECT_EQ(Kvatlas(json).exit, 0);
}

TEST_F(KvatlasTest, ACheckpointIsWrittenAndComparedWithItsLeaf) {
  const Outcome table = Kvatlas({"checkpoint", "--leaf_http=" + world().leaf.http()});
  EXPECT_EQ(table.exit, 0) << table;
  EXPECT_THAT(table.out, HasSubstr("blocks"));
  const Outcome json = Kvatlas({"checkpoint", "--leaf_http=" + world().leaf.http(), "--json"});
  ASSERT_EQ(json.Lines().size(), 1u) << json;
  const std::string path = json.Lines()[0]["path"];
  const Outcome equal =
      Kvatlas({"diff", "--left=leaf=" + world().leaf.grpc(), "--right=checkpoint=" + path});
  EXPECT_EQ(equal.exit, 0) << equal;
  EXPECT_EQ(Kvatlas({"dump", "--from=checkpoint=" + path, "--model=other"}).exit, 1);
  const Outcome none = Kvatlas({"checkpoint", "--leaf_http=" + world().replica.http()});
  EXPECT_EQ(none.exit, 1) << none;
  EXPECT_EQ(Kvatlas({"dump", "--from=checkpoint=" + TempPath("nothing")}).exit, 1);
  std::ofstream(TempPath("foreign")) << "something else";
  EXPECT_EQ(Kvatlas({"dump", "--from=checkpoint=" + TempPath("foreign")}).exit, 1);
  // The change is named.
  world().both->Removed(Tier::kDevice, {1019});
  ASSERT_TRUE(world().both->WaitAcknowledged(kLong));
  const Outcome different = Kvatlas({"diff", "--left=leaf=" + world().leaf.grpc(),
                                     "--right=checkpoint=" + path, "--json", "--again_after=1ms"});
  EXPECT_EQ(different.exit, 3) << different;
  ASSERT_EQ(different.Lines().size(), 1u);
  EXPECT_EQ(different.Lines()[0]["holder"], "w0");
  EXPECT_EQ(different.Lines()[0]["only_right"], 1);
  world().both->Stored(Tier::kDevice, {1019}, EngineHash{1018}, TokensOf(119, 1));
  ASSERT_TRUE(world().both->WaitAcknowledged(kLong));
}

// ---- Last: these leave more in the world ----

TEST_F(KvatlasTest, ATextIsMadeTokensOfByAFrontendOrByFiles) {
  const std::string text = "a text that is long enough for a handful of blocks, and then some more";
  TextModelOptions options;
  options.path = kTokenizer;
  const auto model = TextModel::Load(options);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto ids = (*model)->Tokenize(TextPrompt{.text = text});
  ASSERT_TRUE(ids.ok()) << ids.status();
  const size_t blocks = ids->tokens.size() / kBlockSize;
  ASSERT_GT(blocks, 3u);
  const std::unique_ptr<Publisher> engine = Engine("w-text", {world().leaf.grpc()});
  std::vector<EngineHash> names;
  for (EngineHash i = 0; i < blocks; ++i) names.push_back(9000 + i);
  engine->Stored(Tier::kDevice, names, std::nullopt,
                 std::span(ids->tokens).first(blocks * kBlockSize));
  ASSERT_TRUE(engine->WaitAcknowledged(kLong));
  const auto check = [&](const Outcome& outcome) {
    ASSERT_EQ(outcome.Lines().size(), 1u) << outcome;
    EXPECT_EQ(outcome.Lines()[0]["worker"], "w-text");
    EXPECT_EQ(outcome.Lines()[0]["blocks"], blocks);
  };
  const std::vector<std::string> query = {"query", Leaf(), "--model=m", "--json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), query.begin(), query.end());
    return more;
  };
  check(Kvatlas(with({"--text=" + text, "--tokenizer=" + std::string(kTokenizer)})));
  check(Kvatlas(with({"--text=" + text, "--tokenizer=frontend=" + world().frontend.grpc()})));
  check(Kvatlas(with({"--file=-", "--as=text", "--tokenizer=" + std::string(kTokenizer)}), text));
  const Outcome choice = KvatlasUntil(
      {"explain", "frontend=" + world().frontend.grpc(), "--model=m", "--text=" + text},
      [](const Outcome& o) { return o.out.find("w-text of a") != o.out.npos; });
  EXPECT_THAT(choice.out, HasSubstr("w-text of a")) << choice;
  EXPECT_EQ(Kvatlas(with({"--text=" + text, "--tokenizer=/no/such/folder"})).exit, 1);
  EXPECT_EQ(Kvatlas(with({"--text=" + text, "--tokenizer=leaf=127.0.0.1:1"})).exit, 1);
  engine->Stop(/*goodbye=*/true);
}

}  // namespace
}  // namespace kvatlas
