#include "tools/kvatlas/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

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

TEST(CommandsTest, FlagsBeforeTheCommandAreToldToComeBehindIt) {
  const Outcome outcome = Kvatlas({"--leaf=127.0.0.1:1", "workers"});
  EXPECT_EQ(outcome.exit, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("the command comes first"));
}

}  // namespace
}  // namespace kvatlas
