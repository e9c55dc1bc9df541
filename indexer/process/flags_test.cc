#include "indexer/process/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "indexer/base/version.h"
#include "indexer/process/build_version.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() : flags_("kvatlas-test", "A test.") {
    flags_.Add("cell", &cell_, "name of the cell");
    flags_.AddName("worker", &worker_, "name of the worker");
    flags_.Add("exact", &exact_, "exact answers");
    flags_.Add("shift", &shift_, "a signed number");
    flags_.Add("big", &big_, "a wide number");
    flags_.Add("shards", &shards_, "number of shards", 1, 64);
    flags_.Add("seed", &seed_, "any seed");
    flags_.Add("load", &load_, "fraction", 0.0, 1.0);
    flags_.Add("ttl", &ttl_, "lease", std::chrono::milliseconds(1), std::chrono::hours(1));
    flags_.Add("grpc", &grpc_, "address");
    flags_.Add("names", &names_, "names");
    flags_.Add("parents", &parents_, "addresses");
    flags_.AddChoice("index", &index_, "structure", {"atlas", "radix"});
  }

  std::optional<int> Parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "argv0");
    out_.str("");
    err_.str("");
    return flags_.Parse(static_cast<int>(arguments.size()), arguments.data(), out_, err_);
  }

  std::string cell_ = "c0";
  std::string worker_ = "w0";
  bool exact_ = false;
  int32_t shift_ = -1;
  int64_t big_ = 0;
  uint32_t shards_ = 4;
  uint64_t seed_ = 42;
  double load_ = 0.5;
  Duration ttl_ = std::chrono::seconds(10);
  Address grpc_{"127.0.0.1", 7410};
  std::vector<std::string> names_;
  std::vector<Address> parents_ = {{"p", 1}};
  std::string index_ = "atlas";
  FlagSet flags_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(FlagsTest, NothingGivenKeepsDefaults) {
  EXPECT_EQ(Parse({}), std::nullopt);
  EXPECT_EQ(cell_, "c0");
  EXPECT_EQ(shards_, 4u);
  EXPECT_THAT(out_.str() + err_.str(), IsEmpty());
}

TEST_F(FlagsTest, EveryTypeIsReadWithAnEqualsSign) {
  EXPECT_EQ(Parse({"--cell=a=b", "--exact=true", "--shift=-7", "--big=-9000000000", "--shards=64",
                   "--seed=18446744073709551615", "--load=0.25", "--ttl=1m30s", "--grpc=[::1]:0",
                   "--names=a,b", "--parents=x:1,y:2", "--index=radix"}),
            std::nullopt)
      << err_.str();
  EXPECT_EQ(cell_, "a=b");
  EXPECT_TRUE(exact_);
  EXPECT_EQ(shift_, -7);
  EXPECT_EQ(big_, -9000000000);
  EXPECT_EQ(shards_, 64u);
  EXPECT_EQ(seed_, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(load_, 0.25);
  EXPECT_EQ(ttl_, std::chrono::seconds(90));
  EXPECT_EQ(grpc_, (Address{"::1", 0}));
  EXPECT_THAT(names_, ElementsAre("a", "b"));
  EXPECT_THAT(parents_, ElementsAre(Address{"x", 1}, Address{"y", 2}));
  EXPECT_EQ(index_, "radix");
}

TEST_F(FlagsTest, EveryTypeIsReadAsTheNextArgument) {
  EXPECT_EQ(Parse({"--cell", "[a]", "--exact", "--shift", "-7", "--ttl", "250ms", "--names", "a"}),
            std::nullopt)
      << err_.str();
  EXPECT_EQ(cell_, "[a]");
  EXPECT_TRUE(exact_);
  EXPECT_EQ(shift_, -7);
  EXPECT_EQ(ttl_, std::chrono::milliseconds(250));
  EXPECT_THAT(names_, ElementsAre("a"));
}

TEST_F(FlagsTest, HyphensInANameAreAsGoodAsUnderscores) {
  uint32_t size = 0;
  flags_.Add("block_size", &size, "tokens");
  EXPECT_EQ(Parse({"--block-size=16"}), std::nullopt) << err_.str();
  EXPECT_EQ(size, 16u);
  EXPECT_EQ(Parse({"--block-size", "32", "--cell=a-b"}), std::nullopt) << err_.str();
  EXPECT_EQ(size, 32u);
  EXPECT_EQ(cell_, "a-b");
  EXPECT_EQ(Parse({"--no-such-flag=1"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--no-such-flag"));
}

TEST_F(FlagsTest, BoolStandsAloneOrTakesAValue) {
  EXPECT_EQ(Parse({"--exact", "--cell=x"}), std::nullopt);
  EXPECT_TRUE(exact_);
  EXPECT_EQ(Parse({"--exact", "false"}), std::nullopt);
  EXPECT_FALSE(exact_);
  for (const char* yes : {"--exact=1", "--exact=Yes", "--exact=on"}) {
    exact_ = false;
    EXPECT_EQ(Parse({yes}), std::nullopt);
    EXPECT_TRUE(exact_) << yes;
  }
  EXPECT_EQ(Parse({"--exact=0"}), std::nullopt);
  EXPECT_FALSE(exact_);
  EXPECT_EQ(Parse({"--exact=maybe"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--exact=maybe: must be true or false"));
}

TEST_F(FlagsTest, EmptyValueTakesNoNeighbour) {
  EXPECT_EQ(Parse({"--parents=", "--cell=", "--shards=8"}), std::nullopt) << err_.str();
  EXPECT_THAT(parents_, IsEmpty());
  EXPECT_EQ(cell_, "");
  EXPECT_EQ(shards_, 8u);
  EXPECT_EQ(Parse({"--exact="}), 2);
}

TEST_F(FlagsTest, LastOfARepeatedFlagCounts) {
  EXPECT_EQ(Parse({"--shards=8", "--shards=9"}), std::nullopt);
  EXPECT_EQ(shards_, 9u);
}

TEST_F(FlagsTest, BadValueIsRefusedByNameOnOneLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"--shards=0", "in 1..64"},
      {"--shards=65", "in 1..64"},
      {"--shards=-1", "in 1..64"},
      {"--shards=1.5", "in 1..64"},
      {"--shards=4x", "not a number"},
      {"--shards=", "not a number"},
      {"--shards= 4", "not a number"},
      {"--seed=18446744073709551616", "must be an integer in 0..18446744073709551615"},
      {"--shift=2147483648", "..2147483647"},
      {"--load=1.01", "must be in 0..1"},
      {"--load=nan", "must be in 0..1"},
      {"--ttl=10", "not a duration"},
      {"--ttl=-1s", "must be in 1ms..1h"},
      {"--ttl=2h", "must be in 1ms..1h"},
      {"--ttl=inf", "must be in 1ms..1h"},
      {"--grpc=:80", "no host"},
      {"--grpc=h:70000", "0..65535"},
      {"--names=a,,b", "empty element"},
      {"--parents=x:1,y", "\"y\""},
      {"--index=tree", "must be one of atlas, radix"},
  };
  for (const auto& [argument, why] : cases) {
    EXPECT_EQ(Parse({argument}), 2) << argument;
    const std::string message = err_.str();
    EXPECT_THAT(message, HasSubstr(std::string("kvatlas-test: flag ") + argument + ": "));
    EXPECT_THAT(message, HasSubstr(why));
    EXPECT_EQ(message.find('\n'), message.size() - 1) << message;
    EXPECT_THAT(out_.str(), IsEmpty());
  }
}

TEST_F(FlagsTest, ANameThatCannotTravelIsRefused) {
  EXPECT_EQ(Parse({"--worker="}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("flag --worker=: must not be empty"));
  EXPECT_EQ(Parse({("--worker=" + std::string(257, 'x')).c_str()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("at most 256 bytes"));
  EXPECT_EQ(Parse({"--worker=\xff"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("must be UTF-8"));
  EXPECT_EQ(worker_, "w0");
  EXPECT_EQ(Parse({"--worker=gr\xc3\xbcn"}), std::nullopt);
  EXPECT_EQ(worker_, "gr\xc3\xbcn");
}

TEST_F(FlagsTest, UnknownFlagIsRefusedWithTheNearestName) {
  const std::pair<const char*, const char*> cases[] = {
      {"--shard=4", "unknown flag --shard; did you mean --shards?"},
      {"--shard", "unknown flag --shard; did you mean --shards?"},
      {"--parrents=x:1", "unknown flag --parrents; did you mean --parents?"},
      {"-shards=4", "unknown flag -shards; did you mean --shards?"},
      {"--help2", "unknown flag --help2; did you mean --help?"},
      {"--something_else=redis://u:secret@h", "unknown flag --something_else (see --help)"},
      {"-s", "unknown flag -s"},
  };
  for (const auto& [argument, why] : cases) {
    EXPECT_EQ(Parse({argument}), 2);
    EXPECT_THAT(err_.str(), HasSubstr(why));
  }
}

TEST_F(FlagsTest, EveryMistakeIsToldOnALineOfItsOwn) {
  EXPECT_EQ(Parse({"--shards=0", "--parrents", "x:1", "--ttl=5", "--cell"}), 2);
  EXPECT_EQ(
      err_.str(),
      "kvatlas-test: unknown flag --parrents; did you mean --parents? (see --help)\n"
      "kvatlas-test: flag --cell needs a value: STRING (see --help)\n"
      "kvatlas-test: flag --shards=0: must be an integer in 1..64 (see --help)\n"
      "kvatlas-test: flag --ttl=5: not a duration such as 250ms, 10s or 1m30s (see --help)\n");
}

TEST_F(FlagsTest, PasswordsAreNotTold) {
  flags_.Add("redis", &cell_, "URL").Check([](const std::string& text) {
    return absl::InvalidArgumentError("no: " + text);
  });
  EXPECT_EQ(Parse({"--redis=redis://u:secret@h"}), 2);
  EXPECT_THAT(err_.str(), Not(HasSubstr("secret")));
  EXPECT_THAT(err_.str(), HasSubstr("flag --redis=redis://u:***@h: no: redis://u:***@h"));
}

TEST_F(FlagsTest, ACheckSaysWhatIsWrongWithTheText) {
  std::string url = "";
  flags_.Add("url", &url, "URL").Check([](const std::string& text) {
    return text.starts_with("http") ? absl::OkStatus() : absl::InvalidArgumentError("no URL");
  });
  EXPECT_EQ(Parse({"--url=ftp"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("flag --url=ftp: no URL"));
  EXPECT_EQ(url, "");
  EXPECT_EQ(Parse({"--url="}), std::nullopt);
  EXPECT_EQ(Parse({"--url=http"}), std::nullopt);
  EXPECT_EQ(url, "http");
}

TEST_F(FlagsTest, AnAddressMayBeAbsentOrHasToBeOne) {
  std::string proxy;
  flags_.AddAddress("proxy", &proxy, "address");
  EXPECT_EQ(Parse({"--proxy=127.0.0.1"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("no port"));
  EXPECT_EQ(Parse({"--proxy=h:1"}), std::nullopt);
  EXPECT_EQ(Parse({"--proxy="}), std::nullopt);
}

TEST_F(FlagsTest, TwoFlagsCannotListenOnOneAddress) {
  Address http{"127.0.0.1", 8090};
  std::vector<Address> more;
  flags_.Add("http", &http, "address").Listens();
  flags_.Add("more", &more, "addresses").Listens();
  EXPECT_EQ(Parse({"--more=127.0.0.1:1,127.0.0.1:8090"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--http and --more both listen on 127.0.0.1:8090"));
  EXPECT_EQ(Parse({"--http=127.0.0.1:0", "--more=127.0.0.1:0,127.0.0.1:0"}), std::nullopt);
}

TEST_F(FlagsTest, AListThatRepeatsHasAllItWasGiven) {
  std::vector<std::string> engines;
  flags_.Add("engine", &engines, "engines").Repeats();
  EXPECT_EQ(Parse({"--engine", "a", "--engine=b", "--names=a", "--names=b"}), std::nullopt);
  EXPECT_THAT(engines, ElementsAre("a", "b"));
  EXPECT_THAT(names_, ElementsAre("b"));
}

TEST_F(FlagsTest, StrayArgumentIsRefusedByName) {
  EXPECT_EQ(Parse({"--cell=a", "extra"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("stray argument extra"));
}

TEST_F(FlagsTest, MissingValueIsRefusedByName) {
  EXPECT_EQ(Parse({"--cell"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--cell"));
}

TEST_F(FlagsTest, HelpShowsEveryFlagWithItsDefault) {
  for (const char* help : {"--help", "-h"}) {
    EXPECT_EQ(Parse({help}), 0);
    EXPECT_THAT(out_.str(),
                HasSubstr("  --grpc HOST:PORT                address (default: 127.0.0.1:7410)\n"));
    EXPECT_THAT(out_.str(), HasSubstr("  --index atlas|radix"));
    EXPECT_THAT(out_.str(), HasSubstr("  --ttl DURATION                  lease (default: 10s)\n"));
    EXPECT_THAT(err_.str(), IsEmpty());
  }
  EXPECT_EQ(Parse({"--no_such_flag", "--help"}), 0);
}

TEST_F(FlagsTest, FlagsBeforeTheFirstGroupAreNoTopic) {
  int32_t a = 1;
  FlagSet flags("kvatlas-test", "A test.");
  flags.Add("a", &a, "first");
  flags.Group("Limits");
  flags.Add("b", &a, "second");
  EXPECT_THAT(flags.Help(), HasSubstr("Topics, for --help=TOPIC: limits\n"));
}

TEST_F(FlagsTest, WhatManyProgramsHaveFollowsTheProgramsOwn) {
  int32_t a = 1;
  int32_t b = 2;
  FlagSet flags("kvatlas-test", "A test.");
  flags.CalledAs("kvatlas test");
  flags.CommonGroup("Security");
  flags.Add("a", &a, "first");
  flags.Group("Limits");
  flags.Add("b", &b, "second");
  EXPECT_THAT(flags.Help(), HasSubstr("Usage: kvatlas test [--flag=value...]\n"
                                      "Topics, for --help=TOPIC: limits, security\n\nLimits:\n"));
}

TEST_F(FlagsTest, HelpIsByTopicAndEndsWithExamples) {
  int32_t a = 1;
  int32_t b = 2;
  int32_t c = 3;
  FlagSet flags("kvatlas-test", "A test.");
  flags.Group(FlagSet::kLastGroup);
  flags.Add("a", &a, "first");
  flags.Group("Limits");
  flags.Add("b", &b, "second " + std::string(40, 'x') + " " + std::string(40, 'y') + " end");
  flags.Group("More");
  flags.Add("c", &c, "third");
  flags.Example("kvatlas-test --a=1", "does it");
  EXPECT_EQ(flags.Help(), std::string("kvatlas-test ") + kVersion +
                              ": A test.\n\nUsage: kvatlas-test [--flag=value...]\n"
                              "Topics, for --help=TOPIC: limits, more, process\n"
                              "\nLimits:\n"
                              "  --b N                           second " +
                              std::string(40, 'x') + "\n" + std::string(34, ' ') +
                              std::string(40, 'y') +
                              " end (default: 2)\n"
                              "\nMore:\n"
                              "  --c N                           third (default: 3)\n"
                              "\nProcess:\n"
                              "  --a N                           first (default: 1)\n"
                              "  --help[=TOPIC], -h              show this, or one topic or flag, "
                              "and exit; man: a page of the manual\n"
                              "  --version                       show the version and exit\n"
                              "\nExamples:\n  # does it\n  kvatlas-test --a=1\n");
  EXPECT_EQ(flags.Help("more"), "More:\n  --c N                           third (default: 3)\n");
  EXPECT_EQ(flags.Help("b")->substr(0, 7), "  --b N");
  EXPECT_EQ(flags.Help("d"), std::nullopt);
}

TEST_F(FlagsTest, WordsAreTakenWhereTheyAreWanted) {
  EXPECT_EQ(Parse({"stray"}), 2);
  std::vector<std::string> words;
  flags_.Words(&words, "[SERVICE]...");
  EXPECT_EQ(Parse({"leaf=h:1", "--exact", "second", "--cell", "c1", "-"}), std::nullopt);
  EXPECT_THAT(words, ElementsAre("leaf=h:1", "second", "-"));
  EXPECT_TRUE(exact_);
  EXPECT_EQ(cell_, "c1");
  EXPECT_EQ(Parse({"--exact", "false"}), std::nullopt);
  EXPECT_FALSE(exact_);
  EXPECT_THAT(words, IsEmpty());
  EXPECT_THAT(flags_.Help(), HasSubstr("Usage: kvatlas-test [--flag=value...] [SERVICE]...\n"));
  EXPECT_EQ(Parse({"word", "--unknown"}), 2);
}

TEST_F(FlagsTest, TextsAreThoseOfHelp) {
  const std::vector<FlagSet::Text> texts = flags_.Texts();
  ASSERT_EQ(texts.size(), 13u);
  EXPECT_EQ(texts[2].name, "exact");
  EXPECT_TRUE(texts[2].is_bool);
  EXPECT_EQ(texts[12].type, "atlas|radix");
  EXPECT_EQ(texts[12].default_text, "atlas");
  EXPECT_EQ(texts[12].help, "structure");
}

TEST_F(FlagsTest, VersionNamesTheProgram) {
  EXPECT_EQ(Parse({"--version"}), 0);
  EXPECT_EQ(out_.str(), "kvatlas-test " + BuildVersion() + "\n");
}

TEST_F(FlagsTest, ParseOrExitExits) {
  const char* const help[] = {"argv0", "--help"};
  EXPECT_EXIT(flags_.ParseOrExit(2, help), ::testing::ExitedWithCode(0), "");
  const char* const bad[] = {"argv0", "--shards=0"};
  EXPECT_EXIT(flags_.ParseOrExit(2, bad), ::testing::ExitedWithCode(2), "--shards=0");
}

TEST_F(FlagsTest, DeclaringAFlagTwiceIsABug) {
  EXPECT_DEATH(flags_.Add("cell", &cell_, "again"), "--cell is declared twice");
  EXPECT_DEATH(flags_.Add("help", &cell_, "again"), "--help is declared twice");
  EXPECT_DEATH(flags_.OnReload({"sell"}, nullptr), "--sell may change, but is no flag");
}

TEST_F(FlagsTest, OnlyAProgramWithAConfigurationHasCheckByItself) {
  uint32_t check = 0;
  flags_.Add("check", &check, "of a benchmark: so many are compared");
  EXPECT_DEATH(flags_.ReadConfig("leaf"), "--check is declared twice");
}

}  // namespace
}  // namespace kvatlas
