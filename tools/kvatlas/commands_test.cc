#include "tools/kvatlas/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "frontend/gateway/http/socket_test_util.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

struct Outcome {
  int exit = 0;
  std::string out;
  std::string err;
};

Outcome Kvatlas(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  std::istringstream in;
  const int exit = RunCommand(arguments, {.out = out, .err = err, .in = in});
  return {exit, out.str(), err.str()};
}

TEST(CommandsTest, HelpIsThereForAllAndForEach) {
  const Outcome help = Kvatlas({"--help"});
  EXPECT_EQ(help.exit, 0);
  for (const char* command : {"status", "cells", "workers", "streams", "query", "explain", "dump",
                              "diff", "diagnose", "checkpoint", "sessions"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const Outcome of = Kvatlas({command, "--help"});
    EXPECT_EQ(of.exit, 0) << command;
    EXPECT_THAT(of.out, HasSubstr("--json")) << command;
    EXPECT_THAT(of.out, HasSubstr("kvatlas " + std::string(command))) << command;
  }
  EXPECT_THAT(Kvatlas({"--version"}).out, HasSubstr("kvatlas "));
}

TEST(CommandsTest, CommandsServicesFlagsAndChoicesAreCompleted) {
  const auto of = [](const std::string& line) {
    return Kvatlas({"completion", "words", "--", line}).out;
  };
  EXPECT_EQ(of("kvatlas stat"), "status\n");
  EXPECT_THAT(of("kvatlas "), HasSubstr("serve\n"));
  EXPECT_EQ(of("kvatlas workers lea"), "leaf=\n");
  EXPECT_EQ(of("kvatlas query --mod"), "--model=\n");
  EXPECT_EQ(of("kvatlas query leaf=127.0.0.1:7410 --al"), "--all\n");
  EXPECT_EQ(of("kvatlas query --as=ha"), "--as=hashes\n");
  EXPECT_EQ(of("kvatlas serve --engines_"), "--engines_file=\n");
  EXPECT_EQ(of("kvatlas diff check"), "checkpoint=\n");
  EXPECT_EQ(of("kvatlas nothing --x"), "");
  EXPECT_THAT(Kvatlas({"completion", "bash"}).out, HasSubstr("complete -o default -F _kvatlas"));
  EXPECT_THAT(Kvatlas({"completion", "zsh"}).out, HasSubstr("compdef _kvatlas"));
  EXPECT_EQ(Kvatlas({"completion", "fish"}).exit, 2);
}

// As bash does it, with the script.
TEST(CommandsTest, BashTakesTheScript) {
  const std::string script = testing::TempDir() + "/completion.bash";
  std::ofstream(script) << Kvatlas({"completion", "bash"}).out;
  const std::string check = testing::TempDir() + "/check.bash";
  std::ofstream(check)
      << "kvatlas() { [[ \"$*\" == \"completion words -- kvatlas query --as=ha\" ]] && "
         "echo --as=hashes; }\nsource "
      << script << "\n"
      << "compopt() { :; }\nCOMP_LINE='kvatlas query --as=ha' COMP_POINT=21 COMP_CWORD=4\n"
         "COMP_WORDS=(kvatlas query --as = ha)\n_kvatlas\n"
         "[[ ${COMPREPLY[*]} == hashes ]]\n";
  EXPECT_EQ(std::system(("bash " + check).c_str()), 0);
}

TEST(CommandsTest, AnotherServerAtTheAddressIsSaidToBeThere) {
  LastMessage got;
  const TestEngine other([&](TestSocket& connection) {
    while (got.ReadFrom(connection))
      connection.Send("HTTP/1.1 404 Not Found\r\nContent-Length: 11\r\n\r\n<html>\nno\n\n");
  });
  const std::string address = other.address().ToString();
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"diagnose", "frontend=" + address}, {"status", "frontend=" + address}}) {
    const Outcome outcome = Kvatlas(command);
    EXPECT_NE(outcome.exit, kExitOk);
    EXPECT_THAT(
        outcome.out + outcome.err,
        HasSubstr("HTTP status 404, not in kvatlas's form: \"<html>\"; another server is at "
                  "this address"))
        << command[0];
  }
}

TEST(CommandsTest, FlagsBeforeTheCommandAreToldToComeBehindIt) {
  const Outcome outcome = Kvatlas({"--leaf=127.0.0.1:1", "workers"});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("the command comes first"));
}

}  // namespace
}  // namespace kvatlas
