// What does a process say of a wrong command line, environment or configuration file? Real
// processes, a row for each mistake.
//
// A row has the program, what it is told, the status it exits with, and texts that stderr has. Of
// all of them: stdout is empty, no password is told, the process ends by itself and opens no port.
// In texts {DIR} is a directory of the test's own, {FILE} the row's configuration file, {TAKEN} an
// address on which the test listens.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLeaf[] = "indexer/leaf/kvatlas-leaf";
constexpr char kHierarchy[] = "hierarchy/kvatlas-hierarchy";
constexpr char kFrontend[] = "frontend/kvatlas-frontend";
constexpr char kRelay[] = "publisher/kvatlas-relay";
constexpr char kCommand[] = "tools/kvatlas/kvatlas";

std::string Folder() { return std::getenv("TEST_TMPDIR"); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct Ended {
  int exit = -1;  // minus the signal that ended it
  std::string out;
  std::string err;
};

// `environment`: NAME=value, beside the test's own.
Ended RunToTheEnd(const std::string& program, const std::vector<std::string>& args,
                  const std::vector<std::string>& environment = {}) {
  const std::string out = Folder() + "/out";
  const std::string err = Folder() + "/err";
  std::vector<const char*> argv = {program.c_str()};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    if (freopen(out.c_str(), "w", stdout) == nullptr ||
        freopen(err.c_str(), "w", stderr) == nullptr)
      _exit(126);
    alarm(60);  // of one that runs on although it should not
    execv(program.c_str(), const_cast<char* const*>(argv.data()));
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  Ended run;
  run.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  run.out = ReadFile(out);
  run.err = ReadFile(err);
  return run;
}

struct Mistake {
  const char* program;
  std::vector<std::string> args;
  std::vector<std::string> says;  // on stderr
  std::string file = {};          // what {FILE} has; given as --config where there is one
  std::vector<std::string> variables = {};
  int exit = 2;
};

const std::vector<Mistake>& Mistakes() {
  static const std::vector<Mistake>& mistakes = *new std::vector<Mistake>{
      // ---- Security ----
      {kLeaf,
       {"--grpc=0.0.0.0:0", "--http=127.0.0.1:0"},
       {"0.0.0.0:0 is beyond loopback", "--insecure"},
       "",
       {},
       1},
      {kLeaf, {"--access_policy=/nowhere"}, {"--access_policy", "needs --tls_cert"}},
      {kLeaf, {"--access_tokens=/nowhere"}, {"--access_tokens", "--access_policy=FILE"}},
      {kHierarchy, {"--tls_cert=/nowhere"}, {"a certificate needs its key", "--tls_key"}},
      {kFrontend, {"--tls_cert=/c", "--tls_key=/k"}, {"no CA file", "--tls_ca"}},
      {kRelay, {"--tls_ca=/nowhere"}, {"CA file /nowhere: No such file or directory"}},
      {kRelay, {"--tls_ca={FILE}"}, {"CA file ", "expected PEM certificates"}, "nonsense"},
      {kCommand, {"workers", "--token=s3cret"}, {"--token", "--tls_ca"}},
      {kCommand, {"policy", "chek", "x"}, {"did you mean check?"}},
      {kCommand, {"policy", "check", "{FILE}"}, {"version: expected 1"}, "{\"rules\": []}", {}, 1},
      {kCommand,
       {"policy", "explain", "worker/a/0", "fly", "--policy=x"},
       {"unknown verb \"fly\"", "verbs: publish, report, query, "}},
      {kCommand,
       {"policy", "token", "--identity=gateway/g", "--expires=2020-01-31"},
       {"--expires=2020-01-31: that day is over"}},
      {kCommand,
       {"policy", "token", "--identity=gateway/g", "--expires=tomorrow"},
       {"\"tomorrow\": expected a day such as 2027-01-31"}},
      {kCommand,
       {"pki", "curve", "{FILE}"},
       {"exists already: use it, or another name"},
       "the secret key of an engine",
       {},
       1},
      {kCommand,
       {"policy", "explain", "worker/a", "publish", "--policy=x"},
       {"expected worker/CELL/NAME"}},
      {kCommand,
       {"pki", "make", "x"},
       {"expected \"init DIR\", \"issue DIR IDENTITY\", \"curve FILE\" or \"record-key CELL_KEY "
        "WORKER FILE\""}},
      {kCommand,
       {"pki", "issue", "/nowhere", "leaf/a/-"},
       {"holds no CA", "kvatlas pki init"},
       "",
       {},
       1},

      // ---- Several at once: all are told ----
      {kLeaf,
       {"--workers=x", "--lease_ttl=10", "--schedule=sometimes"},
       {"--workers=x: worker \"x\": not NAME[:RANK]=ENDPOINT", "--lease_ttl=10: not a duration",
        "--schedule=sometimes: "}},
      {kLeaf,
       {"--config={FILE}"},
       {":1: cell: dates and times", ":2: lease_ttl = 10: not a duration",
        ":3: workers = x: worker"},
       "cell = 1979-05-27\nlease_ttl = 10\nworkers = \"x\"\n"},

      // ---- Names ----
      {kLeaf, {"--parrents=h:1"}, {"unknown flag --parrents; did you mean --parents?"}},
      {kLeaf, {"--no_such_thing_at_all"}, {"unknown flag --no_such_thing_at_all (see --help)"}},
      {kLeaf, {"-grpc=h:1"}, {"unknown flag -grpc; did you mean --grpc?"}},
      {kLeaf, {"extra"}, {"stray argument extra"}},
      {kLeaf, {"--cell"}, {"flag --cell needs a value"}},
      {kHierarchy, {"--cell=a"}, {"unknown flag --cell"}},
      {kFrontend, {"--heirarchy=h:1"}, {"did you mean --hierarchy?"}},
      {kRelay, {"--leafs=h:1"}, {"did you mean --leaves?"}},
      {kCommand, {"wrokers"}, {"\"wrokers\" is no command; did you mean workers?"}},
      {kCommand, {}, {"no command (see kvatlas --help)"}},
      {kCommand,
       {"workers", "--laef=h:1"},
       {"kvatlas workers: unknown flag --laef; did you mean --leaf?"}},
      {kLeaf, {"--help=nonsense"}, {"--help=nonsense: no topic and no flag"}},
      // It would make a CA.
      {kCommand,
       {"pki", "init", "{DIR}/checked", "--check"},
       {"unknown flag --check (see --help)"}},

      // ---- Addresses and ports ----
      {kLeaf, {"--grpc=127.0.0.1"}, {"flag --grpc=127.0.0.1: not HOST:PORT", "no port"}},
      {kLeaf, {"--http=127.0.0.1:99999"}, {"flag --http=127.0.0.1:99999: ", "0..65535"}},
      {kHierarchy, {"--grpc=:7420"}, {"flag --grpc=:7420: ", "no host"}},
      {kLeaf, {"--advertise=nowhere"}, {"flag --advertise=nowhere: not HOST:PORT"}},
      {kLeaf,
       {"--grpc=127.0.0.1:7410", "--http=127.0.0.1:7410"},
       {"--grpc and --http both listen on 127.0.0.1:7410"}},
      {kFrontend,
       {"--http=127.0.0.1:8092", "--proxy=127.0.0.1:8092"},
       {"--http and --proxy both listen on 127.0.0.1:8092"}},
      {kLeaf,
       {"--grpc={TAKEN}", "--http=127.0.0.1:0"},
       {"--grpc: cannot listen", "{TAKEN}", "in use"},
       {},
       {},
       1},
      {kHierarchy,
       {"--grpc=127.0.0.1:0", "--http={TAKEN}"},
       {"--http: cannot listen", "{TAKEN}", "in use"},
       {},
       {},
       1},
      {kFrontend,
       {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--proxy={TAKEN}"},
       {"--proxy: cannot listen", "{TAKEN}", "in use"},
       {},
       {},
       1},
      {kRelay, {"--http={TAKEN}"}, {"--http: cannot listen", "{TAKEN}", "in use"}, {}, {}, 1},
      {kFrontend, {"--proxy=8000"}, {"flag --proxy=8000: not HOST:PORT"}},
      {kLeaf, {"--parents=h1"}, {"--parents: ", "h1"}},
      {kHierarchy, {"--parents=@{DIR}/none"}, {"--parents: ", "{DIR}/none"}},
      {kFrontend, {"--hierarchy=dns:"}, {"--hierarchy: "}},
      {kFrontend, {"--leaves=127.0.0.1:7410"}, {"--leaves: ", "none of CELL=HOST:PORT"}},
      {kRelay, {"--leaves=somewhere"}, {"--leaves: \"somewhere\" is not HOST:PORT"}},
      {kLeaf, {"--peers=ftp://h:1"}, {"--peers: ", "neither http:// nor https://"}},
      {kCommand, {"workers", "--leaf=h"}, {"flag --leaf=h: not HOST:PORT"}},
      {kLeaf, {"--redis=http://h"}, {"flag --redis=http://h: not a Redis URL"}},
      {kLeaf, {"--redis=redis://u:s3cret@h:x"}, {"flag --redis=redis://u:***@h:x: "}},
      {kLeaf, {"--announce=redis://u:s3cret@h:x"}, {"flag --announce=redis://u:***@h:x: "}},
      {kFrontend, {"--engine_addresses=everywhere"}, {"--engine_addresses: "}},

      // ---- Sizes, numbers, durations ----
      {kLeaf, {"--memory_budget=lots"}, {"flag --memory_budget=lots: "}},
      {kLeaf, {"--max_workers=0"}, {"flag --max_workers=0: must be an integer in 1.."}},
      {kLeaf,
       {"--index_shards=1000000"},
       {"flag --index_shards=1000000: must be an integer in 1.."}},
      {kLeaf, {"--max_blocks=10GB"}, {"flag --max_blocks=10GB: not a number"}},
      {kLeaf, {"--lease_ttl=10"}, {"flag --lease_ttl=10: not a duration such as 250ms"}},
      {kLeaf, {"--lease_ttl=1ms"}, {"flag --lease_ttl=1ms: must be in 100ms..inf"}},
      {kHierarchy, {"--cells_max=-1"}, {"flag --cells_max=-1: must be an integer"}},
      {kFrontend, {"--overload_used=2"}, {"flag --overload_used=2: must be in 0..1"}},
      {kFrontend, {"--temperature=-1"}, {"flag --temperature=-1: must be at least 0"}},
      {kFrontend, {"--deadline=0s"}, {"flag --deadline=0s: must be in 1ms..inf"}},
      {kLeaf,
       {"--max_workers=0", "--lease_ttl=x", "--cel=a"},
       {"flag --max_workers=0: ", "flag --lease_ttl=x: ", "did you mean --cell?"}},

      // ---- Names of cells, seeds, schedules, models ----
      {kLeaf, {"--cell="}, {"flag --cell=: must not be empty"}},
      {kHierarchy, {"--node=" + std::string(300, 'n')}, {"at most 256 bytes"}},
      {kLeaf, {"--labels=zone"}, {"--labels: \"zone\" is not NAME=VALUE"}},
      {kLeaf, {"--labels=zone=a,zone=b"}, {"--labels: \"zone\" is there twice"}},
      {kLeaf, {"--contract_seed=-1"}, {"flag --contract_seed=-1: must be an integer in 0.."}},
      {kFrontend, {"--contract_seed=abc"}, {"flag --contract_seed=abc: not a number"}},
      {kFrontend, {"--seed=1.5"}, {"flag --seed=1.5: must be an integer"}},
      {kLeaf, {"--schedule=every third"}, {"flag --schedule=every third: "}},
      {kLeaf, {"--index=atlsa"}, {"flag --index=atlsa: must be one of ", "did you mean atlas?"}},
      {kFrontend, {"--policy=kvatla"}, {"flag --policy=kvatla: ", "did you mean kvatlas?"}},
      {kFrontend, {"--models=m={DIR}/none"}, {"--models: ", "{DIR}/none"}},
      {kFrontend, {"--models=m"}, {"--models: "}},
      {kFrontend, {"--tokenize=magic"}, {"flag --tokenize=magic: "}},
      {kFrontend, {"--tokenizer_url=ftp://h"}, {"flag --tokenizer_url=ftp://h: "}},
      {kFrontend,
       {"--model_weights={DIR}/none"},
       {"--model_weights: {DIR}/none: cannot be opened"}},
      {kFrontend, {"--model_weights={FILE}"}, {"--model_weights: {FILE}: not a JSON object"}, "x"},
      {kLeaf, {"--kv_indexer_model=="}, {"flag --kv_indexer_model==: "}},
      {kCommand, {"query", "--leaf=127.0.0.1:1"}, {"kvatlas query: --model is missing"}},

      // ---- Engines ----
      {kLeaf,
       {"--workers=1=127.0.0.1:5557", "--block_size=16"},
       {"flag --workers=1=127.0.0.1:5557: worker \"1=127.0.0.1:5557\": ", "missing scheme"}},
      {kRelay,
       {"--workers=1=127.0.0.1:5557", "--block_size=16"},
       {"flag --workers=1=127.0.0.1:5557: worker \"1=127.0.0.1:5557\": ", "missing scheme"}},
      {kLeaf, {"--workers=1=tcp://h:1"}, {"--workers: ", "no block size: say --block_size"}},
      {kLeaf,
       {"--workers=1=tcp://h:1,1=tcp://h:2", "--block_size=16"},
       {"flag --workers=1=tcp://h:1,1=tcp://h:2: ", "instance 1 dp_rank 0 is there twice"}},
      {kLeaf,
       {"--workers=1=tcp://h:1;colour=red", "--block_size=16"},
       {"flag --workers=1=tcp://h:1;colour=red: ", "\"colour=red\" is no option of a worker"}},
      {kFrontend, {"--engines=w0"}, {"--engines: 'w0' is not WORKER=URL"}},
      {kFrontend, {"--engines=w0=ftp://h"}, {"--engines: "}},
      {kFrontend, {"--proxy_paths=everything"}, {"flag --proxy_paths=everything: "}},
      {kFrontend, {"--ext_proc_endpoints=w0"}, {"flag --ext_proc_endpoints=w0: "}},
      {kFrontend, {"--ext_proc_mode=fast"}, {"flag --ext_proc_mode=fast: must be one of "}},
      {kRelay, {"--redis=redis://h:6379"}, {"--redis needs --cell"}},

      // ---- Files and directories ----
      {kLeaf,
       {"--checkpoint_dir=/dev/null/checkpoints"},
       {"flag --checkpoint_dir=/dev/null/checkpoints: ", "Not a directory"}},
      {kLeaf, {"--access_log={DIR}/none/log"}, {"flag --access_log={DIR}/none/log: cannot write"}},
      {kLeaf,
       {"--ready_file={DIR}"},
       {"flag --ready_file={DIR}: cannot write {DIR}: Is a directory"}},
      {kCommand,
       {"workers", "--leaf=127.0.0.1:1", "--json={DIR}/none/x"},
       {"--json: {DIR}/none/x cannot be written"}},
      {kLeaf, {"--log_level=loud"}, {"flag --log_level=loud: must be one of debug, info"}},

      // ---- Configuration files ----
      {kLeaf, {"--config={DIR}/none"}, {"flag --config: {DIR}/none: No such file or directory"}},
      {kLeaf, {"--config={DIR}"}, {"{DIR}: is no regular file"}},
      {kLeaf, {"--config={FILE}"}, {"{FILE}:2: "}, "cell = 'a'\nlease_ttl = 10s\n"},
      {kLeaf,
       {"--config={FILE}"},
       {"{FILE}:2: unknown key parrents; did you mean parents?"},
       "[leaf]\nparrents = 'h:1'\n"},
      {kLeaf, {"--config={FILE}"}, {"{FILE}:1: unknown key laef; did you mean leaf?"}, "[laef]\n"},
      {kHierarchy,
       {"--config={FILE}"},
       {"{FILE}:2: cells_max = 0: must be an integer in 1.."},
       "[hierarchy]\ncells_max = 0\n"},
      {kFrontend,
       {"--config={FILE}"},
       {"{FILE}:1: policy = best: must be one of "},
       "policy = 'best'\n"},
      {kRelay,
       {"--config={FILE}"},
       {"{FILE}:2: workers = 1=127.0.0.1:5557: ", "missing scheme"},
       "block_size = 16\nworkers = ['1=127.0.0.1:5557']\n"},
      {kLeaf,
       {"--config={FILE}"},
       {"{FILE}:1: redis = redis://u:***@h:x: "},
       "redis = 'redis://u:s3cret@h:x'\nredis_shards = 0\n"},
      {kLeaf,
       {"--config={FILE}"},
       {"{FILE}:1: cell = a,b: takes one value, and no list"},
       "cell = ['a', 'b']\n"},
      {kLeaf, {"--config={FILE}"}, {"{FILE}:2: "}, "cell = 'a'\ncell = 'b'\n"},
      {kCommand,
       {"workers", "--config={FILE}"},
       {"{FILE}:2: unknown key leef; did you mean leaf?"},
       "[kvatlas]\nleef = '127.0.0.1:1'\n"},
      {kLeaf, {"--config={FILE}", "--check"}, {"{FILE}:1: "}, "lease_ttl = 7\n"},

      // ---- Variables of the environment ----
      {kLeaf,
       {},
       {"unknown variable KVATLAS_PARRENTS; did you mean KVATLAS_PARENTS?"},
       {},
       {"KVATLAS_PARRENTS=h:1"}},
      {kFrontend,
       {},
       {"variable KVATLAS_ASK=0: must be an integer in 1..64"},
       {},
       {"KVATLAS_ASK=0"}},
      {kHierarchy, {}, {"--parents: ", "(from KVATLAS_PARENTS)"}, {}, {"KVATLAS_PARENTS=h1"}},
      {kLeaf, {}, {"KVATLAS_CONFIG: {DIR}/none: No such file"}, {}, {"KVATLAS_CONFIG={DIR}/none"}},
      {kCommand,
       {"cells"},
       {"unknown variable KVATLAS_LEAFF; did you mean KVATLAS_LEAF"},
       {},
       {"KVATLAS_LEAFF=h:1"}},
  };
  return mistakes;
}

class MistakesTest : public ::testing::Test {
 protected:
  MistakesTest() : taken_([](TestSocket&) {}) {}

  std::string Filled(const std::string& text) const {
    return absl::StrReplaceAll(
        text, {{"{DIR}", Folder()}, {"{FILE}", file_}, {"{TAKEN}", taken_.address().ToString()}});
  }
  std::vector<std::string> Filled(std::vector<std::string> texts) const {
    for (std::string& text : texts) text = Filled(text);
    return texts;
  }

  const std::string file_ = Folder() + "/mistake.toml";
  TestEngine taken_;  // listens
};

TEST_F(MistakesTest, EachIsRefusedByNameOnStderr) {
  for (size_t i = 0; i < Mistakes().size(); ++i) {
    const Mistake& mistake = Mistakes()[i];
    std::string told = std::string(mistake.program);
    for (const std::string& arg : mistake.args) told += " " + arg;
    for (const std::string& variable : mistake.variables) told += " " + variable;
    SCOPED_TRACE(told + "\n" + mistake.file);
    std::ofstream(file_, std::ios::trunc) << mistake.file;
    const Ended run = RunToTheEnd(mistake.program, Filled(mistake.args), Filled(mistake.variables));
    EXPECT_EQ(run.exit, mistake.exit) << run.err;
    EXPECT_EQ(run.out, "");
    for (const std::string& text : mistake.says) EXPECT_THAT(run.err, HasSubstr(Filled(text)));
    EXPECT_THAT(run.err, Not(HasSubstr("s3cret")));
  }
}

TEST_F(MistakesTest, TwoLeavesWithOneDirectoryOfCheckpointsAreToldSo) {
  const std::string directory = Folder() + "/checkpoints";
  const std::vector<std::string> args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0",
                                         "--checkpoint_dir=" + directory};
  Process first({.name = "leaf", .binary = kLeaf, .args = args, .log = Folder() + "/leaf.log"});
  const absl::Status started = first.Start(std::chrono::seconds(60));
  ASSERT_TRUE(started.ok()) << started;
  const Ended run = RunToTheEnd(kLeaf, args);
  EXPECT_EQ(run.exit, 1);
  EXPECT_THAT(run.err, HasSubstr("--checkpoint_dir: " + directory +
                                 " is used by another process, most likely another leaf"));
}

TEST_F(MistakesTest, CheckStartsNothingAndPrintsWhatCounts) {
  const std::string taken = taken_.address().ToString();
  const std::pair<const char*, std::vector<std::string>> programs[] = {
      {kLeaf,
       {"--grpc=" + taken, "--parents=redis://127.0.0.1:1", "--announce=redis://127.0.0.1:1"}},
      {kHierarchy, {"--grpc=" + taken, "--parents=dns:no.such.host:1"}},
      {kFrontend, {"--grpc=" + taken, "--hierarchy=redis://127.0.0.1:1"}},
      {kRelay, {"--http=" + taken}},
  };
  for (const auto& [program, args] : programs) {
    SCOPED_TRACE(program);
    std::vector<std::string> check = args;
    check.emplace_back("--check");
    const Ended run = RunToTheEnd(program, check);
    EXPECT_EQ(run.exit, 0) << run.err;
    const std::string flag = args[0].substr(2, 4);
    EXPECT_THAT(run.out, HasSubstr(flag + " = \"" + taken + "\"  # flag --" + flag + "\n"));
    // What is printed is a file that says the same.
    std::ofstream(file_, std::ios::trunc) << run.out;
    const Ended again = RunToTheEnd(program, {"--config=" + file_, "--check"});
    EXPECT_EQ(again.exit, 0) << again.err;
    EXPECT_THAT(again.out, HasSubstr(flag + " = \"" + taken + "\"  # " + file_ + ":"));
  }
}

// As many lines without a heading as one reads.
TEST_F(MistakesTest, HelpIsByTopic) {
  for (const std::string program : {kLeaf, kHierarchy, kFrontend, kRelay, kCommand}) {
    SCOPED_TRACE(program);
    const std::vector<std::string> command = {"workers", "--help"};
    const Ended run = RunToTheEnd(program, {"--help"});
    EXPECT_EQ(run.exit, 0);
    EXPECT_EQ(run.err, "");
    EXPECT_EQ(RunToTheEnd(program, {"-h"}).out, run.out);
    EXPECT_THAT(run.out, HasSubstr("Examples:\n"));
    std::istringstream lines(run.out);
    int together = 0;
    for (std::string line; std::getline(lines, line);) {
      together = line.empty() ? 0 : together + 1;
      EXPECT_LE(together, 45) << line;
    }
  }
  EXPECT_THAT(RunToTheEnd(kLeaf, {"--help=engines"}).out, HasSubstr("Engines:\n  --workers"));
  EXPECT_THAT(RunToTheEnd(kLeaf, {"--help=lease_ttl"}).out, HasSubstr("(default: 10s)"));
}

// ---- The examples of docs/configuration.md ----

// By the name in their first line, "# leaf.toml: …".
std::map<std::string, std::string> Examples() {
  const std::string page = ReadFile("docs/configuration.md");
  constexpr std::string_view kBegin = "```toml\n# ";
  std::map<std::string, std::string> examples;
  for (size_t at = page.find(kBegin); at != std::string::npos; at = page.find(kBegin, at + 1)) {
    const size_t name = at + kBegin.size();
    const size_t text = at + std::string_view("```toml\n").size();
    examples[page.substr(name, page.find(".toml", name) - name)] =
        page.substr(text, page.find("```", text) - text);
  }
  return examples;
}

TEST_F(MistakesTest, TheExamplesOfTheManualHaveNone) {
  const std::map<std::string, const char*> programs = {
      {"leaf", kLeaf}, {"hierarchy", kHierarchy}, {"frontend", kFrontend}, {"relay", kRelay}};
  const std::map<std::string, std::string> examples = Examples();
  for (const auto& [name, program] : programs) {
    for (const std::string& example : {name, std::string("fleet")}) {
      SCOPED_TRACE(name + " of " + example);
      ASSERT_TRUE(examples.contains(example));
      std::ofstream(file_, std::ios::trunc) << examples.at(example);
      const Ended run = RunToTheEnd(program, {"--config=" + file_, "--check"});
      EXPECT_EQ(run.exit, 0) << run.err;
      EXPECT_THAT(run.out, HasSubstr("  # " + file_ + ":"));
    }
  }
  std::ofstream(file_, std::ios::trunc) << examples.at("fleet");
  const Ended serve = RunToTheEnd(
      kCommand, {"serve", "--engine=http://127.0.0.1:1", "--config=" + file_, "--check"});
  EXPECT_EQ(serve.exit, 0) << serve.err;
  ASSERT_TRUE(examples.contains("kvatlas"));
  std::ofstream(file_, std::ios::trunc) << examples.at("kvatlas");
  // A port without a listener: the host may run a leaf at the default one.
  const Ended run = RunToTheEnd(kCommand, {"workers", "--config=" + file_, "--leaf=127.0.0.1:1"});
  EXPECT_EQ(run.exit, 4) << run.err;
}

}  // namespace
}  // namespace kvatlas
