// Does `kvatlas doctor` name every mistake, with its remedy, and nothing where nothing is wrong?
// Real processes, a row for each mistake.
//
// Of every row: the finding is there, with a place, and a remedy whose flags exist; no finding of
// another kind is there but those that the row allows, as a mistake often has consequences; the
// exit status is 3.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/net/http_server.h"
#include "indexer/security/pki.h"
#include "indexer/security/tls_files.h"
#include "tests/doctor_run.h"
#include "tests/programs.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr std::chrono::seconds kLong(60);

// Flags of ours that exist, and those of engines that remedies name.
const std::set<std::string>& KnownFlags() {
  static const auto& known = *new std::set<std::string>([] {
    std::set<std::string> flags = {"--kv-events-config",    "--enable-prefix-caching",
                                   "--disable-radix-cache", "--block-size",
                                   "--page-size",           "--served-model-name"};
    const std::regex flag("  (--[a-z_0-9]+)");
    for (const std::vector<std::string>& program :
         {std::vector<std::string>{"indexer/leaf/kvatlas-leaf"},
          {"hierarchy/kvatlas-hierarchy"},
          {"frontend/kvatlas-frontend"},
          {"publisher/kvatlas-relay"},
          {kCommand, "doctor"}}) {
      std::vector<std::string> args = program;
      args.push_back("--help");
      const std::string help = RunProgram(args).out;
      for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at)
        flags.insert((*at)[1]);
    }
    return flags;
  }());
  return known;
}

void ExpectKnownFlags(const std::string& remedy) {
  const std::regex flag("--[a-z][a-z_0-9-]*");
  for (std::sregex_iterator at(remedy.begin(), remedy.end(), flag), end; at != end; ++at)
    EXPECT_TRUE(KnownFlags().contains(at->str())) << at->str() << " in: " << remedy;
}

// An engine's HTTP server: a body for each path.
class EnginePages {
 public:
  explicit EnginePages(const std::map<std::string, std::string>& bodies)
      : server_({.listen = {"127.0.0.1", 0}}) {
    for (const auto& [path, body] : bodies)
      server_.Handle({.method = "GET", .path = path, .handler = [body](const HttpRequest&) {
                        return HttpResponse{.body = body};
                      }});
    const absl::Status started = server_.Start();
    EXPECT_TRUE(started.ok()) << started;
  }
  std::string url() const { return "http://" + server_.address().ToString(); }

 private:
  HttpServer server_;
};

struct Wanted {
  std::string id;
  std::string where;  // regular expressions
  std::string what;
  std::string remedy;
};
struct Row {
  std::string name;
  std::vector<Program> programs;
  std::vector<std::string> ask;  // services that the doctor is told
  Wanted wanted;
  std::set<std::string> also = {};                 // ids of consequences
  std::map<std::string, std::string> engine = {};  // pages of an engine, at {engine_url}
  // What is then done.
  std::function<void(Programs&)> act = nullptr;
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

class DoctorTest : public ::testing::TestWithParam<Row> {};

Ended Doctor(const Programs& programs, std::vector<std::string> args) {
  for (std::string& arg : args) arg = programs.Filled(arg);
  return RunDoctor(std::move(args));
}

bool Fits(const Json& finding, const Wanted& wanted, const Programs& programs) {
  const auto has = [&](const char* field, const std::string& pattern) {
    return std::regex_search(finding.at(field).get<std::string>(),
                             std::regex(programs.Filled(pattern)));
  };
  return finding.is_object() && finding.at("id") == wanted.id && has("where", wanted.where) &&
         has("what", wanted.what) && has("remedy", wanted.remedy);
}

TEST_P(DoctorTest, NamesTheMistake) {
  const Row& row = GetParam();
  Programs programs("doctor." + row.name);
  programs.Set("dir", std::string(std::getenv("TEST_TMPDIR")) + "/" + row.name);
  std::unique_ptr<EnginePages> engine;
  if (!row.engine.empty()) {
    engine = std::make_unique<EnginePages>(row.engine);
    programs.Set("engine_url", engine->url());
  }
  for (const Program& program : row.programs) {
    const absl::Status started = programs.Start(program);
    ASSERT_TRUE(started.ok()) << started;
  }
  if (row.act) row.act(programs);

  Ended run;
  const auto is_named_alone = [&] {
    run = Doctor(programs, row.ask);
    bool named = false, others = false;
    for (const Json& finding : run.Lines()) {
      if (!finding.is_object()) return false;
      const bool fits = Fits(finding, row.wanted, programs);
      named = named || fits;
      others = others || (finding["id"] != row.wanted.id && !row.also.contains(finding["id"]));
    }
    return named && !others;
  };
  ASSERT_TRUE(Await(is_named_alone, kLong))
      << "wanted " << row.wanted.id << " " << programs.Filled(row.wanted.what) << "\nfound\n"
      << run.out;
  EXPECT_EQ(run.exit, 3);
  for (const Json& finding : run.Lines()) ExpectKnownFlags(finding["remedy"]);
}

std::vector<Row> Rows() {
  std::vector<Row> rows;
  const Program hierarchy = {.name = "top", .kind = "hierarchy"};
  const Program leaf = {.name = "leaf", .kind = "leaf", .args = {"--parents={top:grpc}"}};
  const Program alone = {.name = "leaf", .kind = "leaf"};
  const auto worker = [](const std::string& name, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--worker=" + name, "--leaf={leaf:grpc}"});
    return Program{.name = name, .kind = "engine", .args = std::move(more), .prefills = true};
  };
  // Before the next program says the contrary.
  const auto first = [](Program program) {
    program.heard = true;
    return program;
  };
  const auto with = [](Program program, std::vector<std::string> more) {
    program.args.insert(program.args.end(), more.begin(), more.end());
    return program;
  };
  // Not before its receiver has heard it: of what was never there, nothing is missed.
  const auto killed_when_heard = [](const std::string& receiver, const std::string& victim) {
    return [receiver, victim](Programs& programs) {
      const auto heard = [&] {
        return programs.Get(receiver, "/status").find("TRUST_EXACT") != std::string::npos;
      };
      EXPECT_TRUE(Await(heard, kLong)) << programs.Get(receiver, "/status");
      programs.Kill(victim);
    };
  };
  const std::vector<std::string> from_top = {"--hierarchy={top:grpc}"};
  const std::vector<std::string> from_leaf = {"--leaf={leaf:grpc}"};
  const std::vector<std::string> from_frontend = {"--frontend_http={frontend:http}"};
  const Program frontend = {.name = "frontend",
                            .kind = "frontend",
                            .args = {"--hierarchy={top:grpc}", "--leaves=cell={leaf:grpc}"}};

  // ---- What has to agree ----
  rows.push_back({.name = "LeafOfAnotherSchedule",
                  .programs = {hierarchy, with(leaf, {"--schedule=every:8"}), worker("w")},
                  .ask = from_leaf,
                  .wanted = {"schedule_mismatch", "leaf {leaf:grpc}", "every:8", "--schedule="},
                  .also = {"no_cells", "parent_down"}});
  rows.push_back(
      {.name = "FrontendOfAnotherSchedule",
       .programs = {hierarchy, leaf, worker("w"), with(frontend, {"--schedule=every:8"})},
       .ask = from_frontend,
       .wanted = {"schedule_mismatch", "frontend {frontend:http}", "every:8", "--schedule="}});
  rows.push_back(
      {.name = "LeafOfAnotherSeed",
       .programs = {hierarchy, with(leaf, {"--contract_seed=7"}), frontend},
       .ask = from_frontend,
       .wanted = {"seed_mismatch", "leaf {leaf:grpc}", "xxh3-chain-1:7", "--contract_seed=1337"},
       .also = {"no_cells", "no_workers", "parent_down"}});
  rows.push_back({.name = "FrontendOfAnotherSeed",
                  .programs = {hierarchy, leaf, worker("w"), with(frontend, {"--contract_seed=7"})},
                  .ask = from_frontend,
                  .wanted = {"seed_mismatch", "frontend {frontend:http}", "xxh3-chain-1:7",
                             "--contract_seed=1337"}});
  rows.push_back(
      {.name = "PublisherOfAnotherSeed",
       .programs = {with(alone, {"--contract_seed=7"}), worker("w")},
       .ask = from_leaf,
       .wanted = {"seed_mismatch", "worker w of leaf", "xxh3-chain-1:1337", "--contract_seed"},
       .also = {"no_workers"}});
  rows.push_back(
      {.name = "PublisherOfAnotherBlockSize",
       .programs = {alone, first(worker("w")), worker("odd", {"--block_size=32"})},
       .ask = from_leaf,
       .wanted = {"block_size_mismatch", "worker odd of leaf", "block size 32", "--block_size"}});
  rows.push_back(
      {.name = "FrontendWithAnotherCellsName",
       .programs = {alone,
                    worker("w"),
                    {.name = "frontend", .kind = "frontend", .args = {"--leaves=b={leaf:grpc}"}}},
       .ask = from_frontend,
       .wanted = {"wrong_cell", "frontend {frontend:http}", "b={leaf:grpc}",
                  "--leaves=[a-z-]+={leaf:grpc}"}});
  rows.push_back({.name = "TwoLeavesOfOneName",
                  .programs = {alone,
                               {.name = "twin", .kind = "leaf"},
                               worker("w"),
                               {.name = "w2",
                                .kind = "engine",
                                .args = {"--worker=w2", "--leaf={twin:grpc}"},
                                .prefills = true}},
                  .ask = {"--leaf={leaf:grpc},{twin:grpc}"},
                  .wanted = {"duplicate_leaf", "leaf {twin:grpc}", "{leaf:grpc}", "--replica"}});
  rows.push_back({.name = "TwoWorkersOfOneName",
                  .programs = {alone,
                               first(worker("w")),
                               {.name = "younger",
                                .kind = "engine",
                                .args = {"--worker=w", "--leaf={leaf:grpc}"},
                                .prefills = true}},
                  .ask = from_leaf,
                  .wanted = {"duplicate_worker", "worker w of leaf", "another sender",
                             "a worker name of its own"}});

  // ---- Reachability ----
  rows.push_back(
      {.name = "LeafThatTellsADeadAddress",
       .programs = {hierarchy, with(leaf, {"--advertise={dead}"}), worker("w")},
       .ask = from_top,
       .wanted = {"unreachable", "leaf {dead}", "Connection refused.*{top:grpc}", "--advertise"}});
  rows.push_back({.name = "LeafThatTellsNoAddressOfAHost",
                  .programs = {hierarchy,
                               {.name = "leaf",
                                .kind = "leaf",
                                .args = {"--parents={top:grpc}", "--advertise=0.0.0.0:1"}},
                               worker("w")},
                  .ask = from_top,
                  .wanted = {"address", "cell ", "0.0.0.0:1", "--advertise"},
                  .also = {"unreachable"}});
  rows.push_back(
      {.name = "LeafWithADeadParent",
       .programs = {{.name = "leaf", .kind = "leaf", .args = {"--parents={dead}"}}, worker("w")},
       .ask = from_leaf,
       .wanted = {"parent_down", "leaf {leaf:grpc}", "{dead} is unreachable", "--parents"},
       .also = {"unreachable"}});
  rows.push_back(
      {.name = "LeafWithoutParents",
       .programs = {hierarchy, alone, worker("w"), frontend},
       .ask = from_frontend,
       .wanted = {"no_parents", "leaf {leaf:grpc}", "no hierarchy node", "--parents={top:grpc}"},
       .also = {"no_cells"}});
  rows.push_back({.name = "LeafThatReportsToOneOfTwoNodes",
                  .programs = {hierarchy,
                               {.name = "other", .kind = "hierarchy"},
                               leaf,
                               worker("w"),
                               {.name = "frontend",
                                .kind = "frontend",
                                .args = {"--hierarchy={top:grpc},{other:grpc}"}}},
                  .ask = from_frontend,
                  .wanted = {"parent_missing", "leaf {leaf:grpc}", "{other:grpc}",
                             "add {other:grpc}.*--parents"},
                  .also = {"no_cells"}});
  rows.push_back({.name = "FrontendWithADeadHierarchy",
                  .programs = {alone,
                               worker("w"),
                               {.name = "frontend",
                                .kind = "frontend",
                                .args = {"--hierarchy={dead}", "--leaves=cell={leaf:grpc}"}}},
                  .ask = from_frontend,
                  .wanted = {"unreachable", "hierarchy {dead}", "Connection refused.*frontend",
                             "--hierarchy"}});
  rows.push_back({.name = "FrontendWithoutUpstreams",
                  .programs = {{.name = "frontend", .kind = "frontend"}},
                  .ask = from_frontend,
                  .wanted = {"no_upstreams", "frontend {frontend:http}", "no hierarchy node",
                             "--hierarchy=HOST:PORT or --leaves"}});
  rows.push_back({.name = "LeafWithoutWorkers",
                  .programs = {alone},
                  .ask = from_leaf,
                  .wanted = {"no_workers", "leaf {leaf:grpc}", "no worker", "--workers"}});
  rows.push_back(
      {.name = "RelayWithADeadLeaf",
       .programs =
           {{.name = "engine", .kind = "zmq_engine", .args = {"--block_size=32"}, .prefills = true},
            {.name = "relay",
             .kind = "relay",
             .args = {"--model_name=m", "--block_size=32", "--leaves={dead}",
                      "--workers=w=tcp://{engine:zmq_events};replay=tcp://"
                      "{engine:zmq_replay}"}}},
       .ask = {"--relay={relay:http}"},
       .wanted = {"relay_blocked", "worker w of relay {relay:http}", "leaf {dead} is unreachable",
                  "--leaves"},
       .also = {"unreachable"}});
  rows.push_back(
      {.name = "LeafBeyondLoopbackWithoutTls",
       .programs = {{.name = "leaf", .kind = "leaf", .args = {"--insecure"}}, worker("w")},
       .ask = from_leaf,
       .wanted = {"insecure", "leaf {leaf:grpc}", "--insecure", "--access_policy"}});

  // ---- What ends, fills up or goes silent ----
  rows.push_back({.name = "WorkerThatWasKilled",
                  .programs = {with(alone, {"--lease_ttl=1s"}), worker("w")},
                  .ask = from_leaf,
                  .wanted = {"stream_silent", "worker w of leaf", "in no answer", "engine"},
                  .act = killed_when_heard("leaf", "w")});
  rows.push_back({.name = "CellWhoseLeafWasKilled",
                  .programs = {with(hierarchy, {"--lease_ttl=1s"}), leaf, worker("w")},
                  .ask = from_top,
                  .wanted = {"stream_silent", "cell .* of hierarchy {top:grpc}", "in no answer",
                             "--lease_ttl"},
                  .also = {"unreachable"},
                  .act = killed_when_heard("top", "leaf")});
  rows.push_back({.name = "LeafWithLittleMemory",
                  .programs = {with(alone, {"--memory_budget=1M"})},
                  .ask = from_leaf,
                  .wanted = {"memory", "leaf {leaf:grpc}", "memory is critical", "--memory_budget"},
                  .also = {"no_workers"}});
  rows.push_back({.name = "CheckpointsThatCannotBeWritten",
                  .programs = {with(alone, {"--checkpoint_dir={dir}", "--checkpoint_every=100ms"}),
                               worker("w")},
                  .ask = from_leaf,
                  .wanted = {"checkpoint", "leaf {leaf:grpc}",
                             "no checkpoint can be written to {dir}", "--checkpoint_dir"},
                  .act = [](Programs& programs) {
                    const std::string dir = programs.Filled("{dir}");
                    // At once: the leaf writes there meanwhile.
                    std::filesystem::rename(dir, dir + "-away");
                    std::ofstream(dir) << "a file in its place";
                  }});

  // ---- Engines ----
  const auto listening = [](const std::string& more) {
    return Program{.name = "leaf",
                   .kind = "leaf",
                   .args = {"--model_name=m", "--block_size=32",
                            "--workers=w=tcp://{engine:zmq_events}" + more}};
  };
  const Program zmq = {
      .name = "engine", .kind = "zmq_engine", .args = {"--block_size=32"}, .prefills = true};
  const std::string replay = ";replay=tcp://{engine:zmq_replay}";
  const std::string models = R"({"object":"list","data":[{"id":"m"}]})";
  rows.push_back({.name = "EngineThatIsNotThere",
                  .programs = {{.name = "leaf",
                                .kind = "leaf",
                                .args = {"--model_name=m", "--block_size=32",
                                         "--workers=w=tcp://{dead};replay=tcp://{dead}"}}},
                  .ask = from_leaf,
                  .wanted = {"engine_stream", "worker w of leaf", "Connection refused",
                             "--kv-events-config"}});
  rows.push_back(
      {.name = "EngineOfAnotherBlockSize",
       .programs =
           {{.name = "engine", .kind = "zmq_engine", .args = {"--block_size=16"}, .prefills = true},
            listening(replay)},
       .ask = from_leaf,
       .wanted = {"block_size_mismatch", "worker w of leaf", "16 tokens.*32",
                  "--block_size=auto"}});
  rows.push_back({.name = "EngineWithoutReplay",
                  .programs = {zmq, listening("")},
                  .ask = from_leaf,
                  .wanted = {"engine_no_replay", "worker w of leaf", "no replay endpoint",
                             "replay_endpoint"}});
  rows.push_back(
      {.name = "EngineWhoseReplayIsNotThere",
       .programs = {zmq, listening(";replay=tcp://{dead}")},
       .ask = from_leaf,
       .wanted = {"engine_no_replay", "worker w of leaf", "Connection refused", "replay_endpoint"},
       .also = {"stream_degraded"}});
  rows.push_back({.name = "VllmWithoutPrefixCaching",
                  .programs = {zmq, listening(replay + ";url={engine_url}")},
                  .ask = from_leaf,
                  .wanted = {"engine_no_cache", "engine {engine_url}", "prefix caching is off",
                             "--enable-prefix-caching"},
                  .engine = {{"/v1/models", models},
                             {"/metrics",
                              "vllm:cache_config_info{block_size=\"32\","
                              "enable_prefix_caching=\"False\"} 1.0\n"}}});
  rows.push_back(
      {.name = "VllmWithAnotherBlockSizeThanRegistered",
       .programs = {zmq, listening(replay + ";url={engine_url}")},
       .ask = from_leaf,
       .wanted = {"block_size_mismatch", "engine {engine_url}", "64.*32", "--block-size 32"},
       .engine = {{"/v1/models", models},
                  {"/metrics",
                   "vllm:cache_config_info{block_size=\"64\","
                   "enable_prefix_caching=\"True\"} 1.0\n"}}});
  rows.push_back(
      {.name = "VllmThatComputesAndSaysNothing",
       .programs = {{.name = "engine", .kind = "zmq_engine", .args = {"--block_size=32"}},
                    listening(replay + ";url={engine_url}")},
       .ask = from_leaf,
       .wanted = {"engine_no_events", "engine {engine_url}", "12345 tokens",
                  "enable_kv_cache_events"},
       .engine = {{"/v1/models", models},
                  {"/metrics", "vllm:prompt_tokens_total{engine=\"0\"} 12345\n"}}});
  rows.push_back(
      {.name = "SglangWithoutEvents",
       .programs = {{.name = "engine", .kind = "zmq_engine", .args = {"--block_size=32"}},
                    listening(replay + ";url={engine_url}")},
       .ask = from_leaf,
       .wanted = {"engine_no_events", "engine {engine_url}", "publishes no KV events",
                  "--kv-events-config"},
       .engine = {{"/v1/models", models},
                  {"/server_info", R"({"page_size":32,"dp_size":1,"kv_events_config":null})"}}});
  rows.push_back({.name = "EngineOfAnotherModel",
                  .programs = {zmq, listening(replay + ";url={engine_url}")},
                  .ask = from_leaf,
                  .wanted = {"engine_model", "engine {engine_url}", "llama.*registered for m",
                             "--model_name=llama"},
                  .engine = {{"/v1/models", R"({"object":"list","data":[{"id":"llama"}]})"}}});
  rows.push_back(
      {.name = "EngineWhoseUrlIsWrong",
       .programs = {zmq, listening(replay + ";url=http://{dead}")},
       .ask = from_leaf,
       .wanted = {"engine_unreachable", "engine http://{dead}", "refused", "--engines"}});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Mistakes, DoctorTest, ::testing::ValuesIn(Rows()),
                         [](const auto& row) { return row.param.name; });

// ---- Nothing is wrong ----

TEST(HealthyFleetTest, HasNoFindingAndIsFoundFromTheFrontend) {
  Programs programs("doctor.healthy");
  const std::string both = "--parents={top:grpc},{other:grpc}";
  for (const Program& program : std::vector<Program>{
           {.name = "top", .kind = "hierarchy"},
           {.name = "other", .kind = "hierarchy", .args = {"--replica=1"}},
           {.name = "a", .kind = "leaf", .args = {both, "--cell=a"}},
           {.name = "b",
            .kind = "leaf",
            .args = {both, "--cell=b",
                     "--checkpoint_dir=" + std::string(std::getenv("TEST_TMPDIR")) + "/healthy"}},
           {.name = "w0",
            .kind = "engine",
            .args = {"--worker=w0", "--leaf={a:grpc}", "--http=127.0.0.1:0"},
            .prefills = true},
           {.name = "zmq", .kind = "zmq_engine", .args = {"--block_size=32"}, .prefills = true},
           {.name = "relay",
            .kind = "relay",
            .args = {"--model_name=m", "--block_size=32", "--leaves={b:grpc}",
                     "--workers=w1=tcp://{zmq:zmq_events};replay=tcp://{zmq:zmq_replay}"}},
           {.name = "frontend",
            .kind = "frontend",
            .args = {"--hierarchy={top:grpc},{other:grpc}", "--leaves=a={a:grpc}"}}}) {
    const absl::Status started = programs.Start(program);
    ASSERT_TRUE(started.ok()) << started;
  }
  const std::vector<std::string> ask = {"--frontend_http={frontend:http}", "--relay={relay:http}"};
  Ended run;
  EXPECT_TRUE(Await(
      [&] {
        run = Doctor(programs, ask);
        return run.exit == 0;
      },
      kLong))
      << run.out;
  EXPECT_EQ(run.out, "");
  // A process that waits for a processor may look unwell for a moment.
  Ended text;
  EXPECT_TRUE(Await(
      [&] {
        text = RunProgram({kCommand, "doctor", programs.Filled(ask[0]), programs.Filled(ask[1]),
                           "--timeout=60s"});
        return text.exit == 0;
      },
      kLong))
      << text.out;
  EXPECT_THAT(text.out, HasSubstr("nothing is wrong; looked at 2 hierarchy nodes, 2 leaves, 1 "
                                  "frontend, 1 relay, 1 engine"));
  // What is asked for by a name that is none is told, and not left out.
  const Ended wrong = RunProgram({kCommand, "doctor", programs.Filled(ask[0]), "--ignore=no_such"});
  EXPECT_EQ(wrong.exit, 2);
  EXPECT_THAT(wrong.out, HasSubstr("schedule_mismatch"));
}

TEST(HealthyFleetTest, NoServiceThereIsSaidAsSuch) {
  const DeadPort dead;
  const Ended run = RunProgram({kCommand, "doctor", "--leaf=" + dead.address()});
  EXPECT_EQ(run.exit, 4);
  EXPECT_THAT(run.out, HasSubstr("leaf " + dead.address()));
}

TEST(HealthyFleetTest, FindingsCanBeLeftOut) {
  Programs programs("doctor.left_out");
  ASSERT_TRUE(programs.Start({.name = "leaf", .kind = "leaf"}).ok());
  const Ended run = Doctor(programs, {"--leaf={leaf:grpc}", "--ignore=no_workers"});
  EXPECT_EQ(run.exit, 0) << run.out;
}

// ---- Certificates ----

class DoctorCertificateTest : public ::testing::Test {
 protected:
  static Pki Made(const std::string& name) {
    return *Pki::Create(std::string(std::getenv("TEST_TMPDIR")) + "/" + name, "test.example");
  }
  void StartLeaf(const Pki& pki, const PkiIssue& issue) {
    const absl::StatusOr<TlsPaths> paths = pki.Issue(issue);
    ASSERT_TRUE(paths.ok()) << paths.status();
    const absl::Status started =
        programs_.Start({.name = "leaf",
                         .kind = "leaf",
                         .args = {"--tls_cert=" + paths->certificate, "--tls_key=" + paths->key,
                                  "--tls_ca=" + pki.ca_path()}});
    ASSERT_TRUE(started.ok()) << started;
  }
  void AwaitNamed(const std::vector<std::string>& more, const Wanted& wanted) {
    std::vector<std::string> ask = {"--leaf={leaf:grpc}", "--ignore=no_workers"};
    ask.insert(ask.end(), more.begin(), more.end());
    Ended run;
    EXPECT_TRUE(Await(
        [&] {
          run = Doctor(programs_, ask);
          const std::vector<Json> lines = run.Lines();
          return lines.size() == 1 && lines[0].is_object() && Fits(lines[0], wanted, programs_);
        },
        kLong))
        << run.out;
    for (const Json& finding : run.Lines())
      if (finding.is_object()) ExpectKnownFlags(finding["remedy"]);
  }

  Programs programs_{"doctor.certificates"};
};

TEST_F(DoctorCertificateTest, OneThatEndsSoon) {
  const Pki pki = Made("soon");
  StartLeaf(pki, {.identity = "leaf/cell/-", .valid_for_s = 2 * 24 * 3600});
  AwaitNamed({"--tls_ca=" + pki.ca_path()},
             {"certificate_ends", "leaf {leaf:grpc}", "ends in 47 hours", "--tls_cert"});
  const Ended run = Doctor(programs_, {"--leaf={leaf:grpc}", "--ignore=no_workers",
                                       "--tls_ca=" + pki.ca_path(), "--certificate_days=1"});
  EXPECT_EQ(run.exit, 0) << run.out;
}

TEST_F(DoctorCertificateTest, OneThatIsForAnotherName) {
  const Pki pki = Made("name");
  StartLeaf(pki, {.identity = "", .dns = {"elsewhere"}, .ips = {}, .name = "elsewhere"});
  AwaitNamed({"--tls_ca=" + pki.ca_path()},
             {"certificate_invalid", "leaf {leaf:grpc}", "does not name 127.0.0.1", "--tls_cert"});
}

TEST_F(DoctorCertificateTest, OneThatNoCaVouchesFor) {
  const Pki pki = Made("ours"), other = Made("theirs");
  StartLeaf(pki, {.identity = "leaf/cell/-"});
  AwaitNamed({"--tls_ca=" + other.ca_path()},
             {"certificate_invalid", "leaf {leaf:grpc}", "certificate", "--tls_ca"});
}

TEST_F(DoctorCertificateTest, AnOperatorWhoAsksInClear) {
  const Pki pki = Made("clear");
  StartLeaf(pki, {.identity = "leaf/cell/-"});
  AwaitNamed({}, {"tls_mismatch", "leaf {leaf:grpc}", "speaks TLS", "--tls_ca"});
}

}  // namespace
}  // namespace kvatlas
