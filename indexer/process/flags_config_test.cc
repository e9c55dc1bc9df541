// Settings of the environment and a configuration file beside the command line, at the start and
// later.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "absl/strings/str_join.h"
#include "indexer/process/flags.h"

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A variable of the environment as long as it lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), /*overwrite=*/1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

// All kinds of flags.
struct Settings {
  explicit Settings(FlagSet* flags) {
    flags->Group("Names");
    flags->AddName("cell", &cell, "name of the cell");
    flags->Add("names", &names, "names");
    flags->Add("parents", &parents, "addresses").List();
    flags->Group("Numbers");
    flags->Add("exact", &exact, "exact answers");
    flags->Add("shift", &shift, "a signed number");
    flags->Add("seed", &seed, "any seed");
    flags->Add("shards", &shards, "number of shards", 1, 64);
    flags->Add("weight", &weight, "of a term", 0);
    flags->Add("ttl", &ttl, "lease");
    flags->Add("grpc", &grpc, "address");
    flags->AddChoice("index", &index, "structure", {"atlas", "radix"});
  }

  std::string cell = "c0";
  std::vector<std::string> names = {"n"};
  std::string parents;
  bool exact = false;
  int32_t shift = -1;
  uint64_t seed = 42;
  uint32_t shards = 4;
  double weight = 0.5;
  Duration ttl = std::chrono::seconds(10);
  Address grpc{"127.0.0.1", 7410};
  std::string index = "atlas";

  friend bool operator==(const Settings&, const Settings&) = default;
};

// A process: its flags, and what it says.
struct Process {
  Process() { flags.ReadConfig("leaf"); }

  std::optional<int> Parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "argv0");
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    return flags.Parse(static_cast<int>(argv.size()), argv.data(), out, err);
  }

  FlagSet flags{"kvatlas-leaf", "A test."};
  Settings settings{&flags};
  std::ostringstream out;
  std::ostringstream err;
};

std::string Write(const std::string& text, const std::string& name = "leaf.toml") {
  std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
  std::ofstream(path, std::ios::trunc) << text;
  return path;
}

TEST(FlagsConfigTest, AFlagWinsOverTheEnvironmentAndThatOverTheFile) {
  const std::string path =
      Write("cell = 'file'\nseed = 1\nshards = 2\n[leaf]\nshards = 3\n[frontend]\nx = 1\n");
  const Variable seed("KVATLAS_SEED", "5");
  const Variable cell("KVATLAS_CELL", "variable");
  Process process;
  ASSERT_EQ(process.Parse({"--config", path, "--cell=flag"}), std::nullopt) << process.err.str();
  EXPECT_EQ(process.settings.cell, "flag");
  EXPECT_EQ(process.settings.seed, 5u);
  EXPECT_EQ(process.settings.shards, 3u);
  EXPECT_EQ(process.settings.shift, -1);
  EXPECT_EQ(process.flags.WhereFrom("cell"), "flag --cell");
  EXPECT_EQ(process.flags.WhereFrom("seed"), "KVATLAS_SEED");
  EXPECT_EQ(process.flags.WhereFrom("shards"), path + ":5");
  EXPECT_EQ(process.flags.WhereFrom("shift"), "");
}

TEST(FlagsConfigTest, TheEnvironmentMayNameTheFile) {
  const Variable config("KVATLAS_CONFIG", Write("cell = 'file'\nconfig = 'other'\n"));
  Process process;
  EXPECT_EQ(process.Parse({}), 2);
  EXPECT_THAT(process.err.str(), HasSubstr("leaf.toml:2: config: a file names no other file"));
  EXPECT_EQ(process.settings.cell, "file");
}

TEST(FlagsConfigTest, EveryKindOfValueComesFromAFile) {
  const std::string path = Write(
      "cell = 'a'\nnames = ['x', 'y']\nparents = ['h:1', 'h:2']\nexact = true\nshift = -7\n"
      "seed = '18446744073709551615'\nshards = 64\nweight = 2\nttl = '1m30s'\ngrpc = '[::1]:0'\n"
      "index = 'radix'\n");
  Process process;
  ASSERT_EQ(process.Parse({"--config=" + path}), std::nullopt) << process.err.str();
  const Settings& s = process.settings;
  EXPECT_EQ(s.cell, "a");
  EXPECT_THAT(s.names, ElementsAre("x", "y"));
  EXPECT_EQ(s.parents, "h:1,h:2");
  EXPECT_TRUE(s.exact);
  EXPECT_EQ(s.shift, -7);
  EXPECT_EQ(s.seed, UINT64_MAX);
  EXPECT_EQ(s.shards, 64u);
  EXPECT_EQ(s.weight, 2);
  EXPECT_EQ(s.ttl, std::chrono::seconds(90));
  EXPECT_EQ(s.grpc, (Address{"::1", 0}));
  EXPECT_EQ(s.index, "radix");
}

TEST(FlagsConfigTest, MistakesNameWhereTheyAreAndWhatWasExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {"\nparrents = 'h:1'\n", ":2: unknown key parrents; did you mean parents? (see --help)"},
      {"[laef]\ncell = 'a'\n", ":1: unknown key laef; did you mean leaf? (see --help)"},
      {"shards = 0\n", ":1: shards = 0: must be an integer in 1..64"},
      {"shards = '4x'\n", ":1: shards = 4x: not a number; must be an integer in 1..64"},
      {"shards = true\n", ":1: shards = true: not a number"},
      {"exact = 'maybe'\n", ":1: exact = maybe: must be true or false"},
      {"ttl = 10\n", ":1: ttl = 10: not a duration such as"},
      {"cell = ['a', 'b']\n", ":1: cell = a,b: takes one value, and no list"},
      {"weight = -1\n", ":1: weight = -1: must be at least 0"},
      {"weight = nan\n", ":1: weight = nan: must be at least 0"},
      {"index = 'atlsa'\n", "must be one of atlas, radix; did you mean atlas?"},
      {"cell = \n", ":1: "},
      {"parents = 'redis://u:secret@h'\nshards = 0\n", "shards = 0"},
  };
  for (const auto& [text, why] : cases) {
    Process process;
    EXPECT_EQ(process.Parse({"--config=" + Write(text)}), 2) << text;
    EXPECT_THAT(process.err.str(), AllOf(HasSubstr("leaf.toml:"), HasSubstr(why))) << text;
    EXPECT_THAT(process.err.str(), Not(HasSubstr("secret")));
  }
  Process process;
  EXPECT_EQ(process.Parse({"--config=/no/such/file"}), 2);
  EXPECT_THAT(process.err.str(), HasSubstr("flag --config: /no/such/file: No such file"));
}

TEST(FlagsConfigTest, AVariableIsKnownOrRefusedWithTheNearestName) {
  const Variable unknown("KVATLAS_PARRENTS", "redis://u:secret@h");
  const Variable bad("KVATLAS_SHARDS", "0");
  Process process;
  EXPECT_EQ(process.Parse({}), 2);
  EXPECT_THAT(process.err.str(),
              HasSubstr("unknown variable KVATLAS_PARRENTS; did you mean KVATLAS_PARENTS?"));
  EXPECT_THAT(process.err.str(),
              HasSubstr("variable KVATLAS_SHARDS=0: must be an integer in 1..64"));
  EXPECT_THAT(process.err.str(), Not(HasSubstr("secret")));
}

TEST(FlagsConfigTest, VariablesThatKubernetesSetsForAServiceAreNoFlags) {
  const Variable host("KVATLAS_LEAF_SERVICE_HOST", "10.0.0.1");
  const Variable service_port("KVATLAS_LEAF_SERVICE_PORT_GRPC", "7410");
  const Variable port("KVATLAS_LEAF_PORT", "tcp://10.0.0.1:7410");
  const Variable part("KVATLAS_LEAF_PORT_7410_TCP_ADDR", "10.0.0.1");
  const Variable test("KVATLAS_SIMULATION_SEEDS", "3");
  Process process;
  EXPECT_EQ(process.Parse({}), std::nullopt) << process.err.str();
  const Variable typo("KVATLAS_GRPC_PORT", "7410");
  EXPECT_EQ(process.Parse({}), 2);
}

TEST(FlagsConfigTest, AProgramWithoutAConfigurationReadsNone) {
  const Variable unknown("KVATLAS_NO_SUCH_FLAG", "1");
  FlagSet flags("soak", "A tool.");
  const char* const argv[] = {"soak", "--check"};
  std::ostringstream out, err;
  EXPECT_EQ(flags.Parse(1, argv, out, err), std::nullopt) << err.str();
  EXPECT_EQ(flags.Parse(2, argv, out, err), 2);
}

// Commands of one program: names of the others' flags are known, and another process's file is read
// for its section alone.
TEST(FlagsConfigTest, NamesOfOtherCommandsAreNotLookedAt) {
  const Variable variable("KVATLAS_HIERARCHY", "h:1");
  const std::string path = Write("whatever = 1\n[kvatlas]\nhierarchy = 'h:2'\nleaf = 'l:1'\n");
  std::string leaf;
  FlagSet flags("kvatlas workers", "A command.");
  flags.ReadConfig("kvatlas", [] { return std::set<std::string>{"hierarchy"}; });
  flags.Add("leaf", &leaf, "address");
  std::ostringstream out, err;
  {
    const Variable config("KVATLAS_CONFIG", path);
    const char* const argv[] = {"kvatlas"};
    EXPECT_EQ(flags.Parse(1, argv, out, err), std::nullopt) << err.str();
    EXPECT_EQ(leaf, "l:1");
  }
  const char* const argv[] = {"kvatlas", "--config", path.c_str()};
  EXPECT_EQ(flags.Parse(3, argv, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr(":1: unknown key whatever"));
}

// Commands do their work at once: there is nothing to start, and --check would suggest that the
// work is held back.
TEST(FlagsConfigTest, ACommandTakesNoCheck) {
  FlagSet flags("kvatlas pki", "A command.");
  flags.ReadConfig("kvatlas", [] { return std::set<std::string>(); });
  const char* const argv[] = {"kvatlas", "--check"};
  std::ostringstream out, err;
  EXPECT_EQ(flags.Parse(2, argv, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr("unknown flag --check"));
  EXPECT_THAT(flags.Help(), Not(HasSubstr("--check")));
}

TEST(FlagsConfigTest, WhatCountsIsAConfigurationThatSaysWhereValuesAreFrom) {
  const Variable parents("KVATLAS_PARENTS", "redis://u:secret@h:6379");
  Process process;
  ASSERT_EQ(process.Parse({"--check", "--names=a,b", "--cell=\"q\"", "--ttl=90s"}), std::nullopt);
  EXPECT_TRUE(process.flags.checking());
  const std::string text = process.flags.Effective();
  EXPECT_THAT(text, HasSubstr("# Names\ncell = \"\\\"q\\\"\"  # flag --cell\n"));
  EXPECT_THAT(text, HasSubstr("names = [\"a\", \"b\"]  # flag --names\n"));
  EXPECT_THAT(text, HasSubstr("parents = \"redis://u:***@h:6379\"  # KVATLAS_PARENTS\n"));
  EXPECT_THAT(text, HasSubstr("# Numbers\nexact = false\nshift = -1\nseed = 42\nshards = 4\n"
                              "weight = 0.5\nttl = \"1m30s\"  # flag --ttl\n"));
}

TEST(FlagsConfigTest, ARefusalByMainNamesTheSource) {
  const std::string path = Write("\ncell = 'a'\n");
  Process process;
  ASSERT_EQ(process.Parse({"--config", path, "--names=x"}), std::nullopt);
  EXPECT_EQ(process.flags.Refusal("--cell: no"), "--cell: no (from " + path + ":2)");
  EXPECT_EQ(process.flags.Refusal("--names: no"), "--names: no");
  EXPECT_EQ(process.flags.Refusal("--shards: no"), "--shards: no");
  EXPECT_EQ(process.flags.Refusal("redis://u:secret@h"), "redis://u:***@h");
}

// ---- Whatever way settings come, they are the same ----

std::string RandomText(std::mt19937_64& random) {
  static constexpr std::string_view kLetters = "abcXYZ019 _-.:/=\"'\\#[]{}\xc3\xbc\t";
  std::string text = "t";
  for (uint64_t n = random() % 12; n > 0; --n) {
    const size_t at = random() % kLetters.size();
    if ((kLetters[at] & 0x80) == 0)
      text += kLetters[at];
    else
      text += "\xc3\xbc";
  }
  return text;
}

// Of some flags, as "name" and "text".
std::vector<std::pair<std::string, std::string>> RandomSettings(std::mt19937_64& random) {
  const auto number = [&](uint64_t n) { return std::to_string(random() % n); };
  const std::vector<std::string> units = {"ns", "us", "ms", "s", "m", "h"};
  const std::pair<std::string, std::string> all[] = {
      {"cell", RandomText(random)},
      {"names", RandomText(random) + "," + RandomText(random)},
      {"parents", "h:" + number(1000) + ",g:" + number(1000)},
      {"exact", random() % 2 == 0 ? "true" : "false"},
      {"shift", "-" + number(1u << 31)},
      {"seed", std::to_string(random())},
      {"shards", std::to_string(1 + random() % 64)},
      {"weight", number(1000) + "." + number(100000)},
      {"ttl", number(1000) + units[random() % units.size()] + number(1000) + "ns"},
      {"grpc", "[::1]:" + number(65536)},
      {"index", random() % 2 == 0 ? "atlas" : "radix"},
  };
  std::vector<std::pair<std::string, std::string>> some;
  for (const auto& setting : all)
    if (random() % 3 != 0) some.push_back(setting);
  return some;
}

TEST(FlagsConfigTest, FlagsVariablesAFileAndWhatIsPrintedOfThemGiveTheSame) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto settings = RandomSettings(random);
    Process by_flags, by_variables, by_file;
    std::vector<std::string> arguments;
    std::deque<Variable> variables;
    for (const auto& [name, text] : settings) arguments.push_back("--" + name + "=" + text);
    ASSERT_EQ(by_flags.Parse(arguments), std::nullopt) << by_flags.err.str();
    for (const auto& [name, text] : settings) {
      std::string variable = "KVATLAS_" + name;
      for (char& c : variable) c = static_cast<char>(std::toupper(c));
      variables.emplace_back(variable, text);
    }
    ASSERT_EQ(by_variables.Parse({}), std::nullopt) << by_variables.err.str();
    variables.clear();
    const std::string printed = by_flags.flags.Effective();
    ASSERT_EQ(by_file.Parse({"--config", Write(printed)}), std::nullopt)
        << by_file.err.str() << printed;
    EXPECT_TRUE(by_flags.settings == by_variables.settings) << printed;
    EXPECT_TRUE(by_flags.settings == by_file.settings) << printed;
  }
}

// ---- Reading it again ----

class ReloadTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> more = {}) {
    more.push_back("--config=" + path_);
    ASSERT_EQ(process_.Parse(more), std::nullopt) << process_.err.str();
    process_.flags.OnReload({"weight", "names"}, [this]() -> absl::StatusOr<FlagSet::Commit> {
      ++prepared_;
      if (process_.settings.weight == 13) return absl::InvalidArgumentError("--weight: unlucky");
      return FlagSet::Commit([this, weight = process_.settings.weight] { counts_ = weight; });
    });
  }

  static std::vector<std::string> Names(const std::vector<FlagSet::Change>& changes) {
    std::vector<std::string> names;
    for (const FlagSet::Change& change : changes) names.push_back(change.flag);
    return names;
  }

  const std::string path_ = Write("weight = 1\nshards = 2\n", "reload.toml");
  Process process_;
  int prepared_ = 0;
  double counts_ = 0;
};

TEST_F(ReloadTest, WhatMayChangeDoesAndTheRestIsTold) {
  Start();
  Write("weight = 2.5\nnames = ['x']\nshards = 3\nttl = '10s'\n", "reload.toml");
  absl::StatusOr<FlagSet::Reloaded> reloaded = process_.flags.Reload();
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_THAT(Names(reloaded->changed), ElementsAre("names", "weight"));
  EXPECT_THAT(Names(reloaded->need_restart), ElementsAre("shards"));
  EXPECT_EQ(reloaded->need_restart[0].where, path_ + ":3");
  EXPECT_EQ(counts_, 2.5);
  EXPECT_EQ(process_.settings.shards, 2u);
  EXPECT_EQ(process_.flags.WhereFrom("names"), path_ + ":2");
  // Reported at each reload as long as it holds; a key that is gone from the file has its default.
  Write("shards = 3\n", "reload.toml");
  reloaded = process_.flags.Reload();
  ASSERT_TRUE(reloaded.ok());
  EXPECT_THAT(Names(reloaded->changed), ElementsAre("names", "weight"));
  EXPECT_THAT(Names(reloaded->need_restart), ElementsAre("shards"));
  EXPECT_EQ(counts_, 0.5);
  EXPECT_THAT(process_.settings.names, ElementsAre("n"));
  EXPECT_EQ(process_.flags.WhereFrom("names"), "");
}

TEST_F(ReloadTest, FilesThatFlagsNameAreReadAgainAlthoughNoFlagChanged) {
  Start();
  ASSERT_TRUE(process_.flags.Reload().ok());
  ASSERT_TRUE(process_.flags.Reload().ok());
  EXPECT_EQ(prepared_, 2);
}

TEST_F(ReloadTest, AFlagStillWins) {
  Start({"--weight=7"});
  Write("weight = 2.5\n", "reload.toml");
  const absl::StatusOr<FlagSet::Reloaded> reloaded = process_.flags.Reload();
  ASSERT_TRUE(reloaded.ok());
  EXPECT_THAT(reloaded->changed, IsEmpty());
  EXPECT_EQ(counts_, 7);
}

TEST_F(ReloadTest, ABadFileChangesNothingAndIsToldWithItsReason) {
  Start();
  const std::pair<const char*, const char*> cases[] = {
      {"weight = 2\nshards = 0\n", "reload.toml:2: shards = 0: must be an integer in 1..64"},
      {"weight = 2\nparrents = 'x'\n", "reload.toml:2: unknown key parrents"},
      {"weight = ", "reload.toml:1: "},
      {"weight = 13\nnames = ['y']\n", "--weight: unlucky (from "},
      {"weight = [2]\n", "takes one value, and no list"},
      // As while it is written, or on a full disk.
      {"", "reload.toml: it is empty; expected some of the 2 keys that it had"},
      {"# weight = 2\n", "it is empty"},
  };
  for (const auto& [text, why] : cases) {
    Write(text, "reload.toml");
    const absl::Status status = process_.flags.Reload().status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(process_.settings.weight, 1) << text;
    EXPECT_THAT(process_.settings.names, ElementsAre("n"));
    EXPECT_EQ(counts_, 0);
  }
  std::remove(path_.c_str());
  EXPECT_THAT(std::string(process_.flags.Reload().status().message()), HasSubstr("No such file"));
}

}  // namespace
}  // namespace kvatlas
