// `kvatlas demo` as a newcomer runs it: five lines that are true, a page that answers, and an end
// at Ctrl-C.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "indexer/base/address.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr char kKvatlas[] = "tools/kvatlas/kvatlas";

// A child whose standard output is read line by line.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      std::vector<char*> argv = {const_cast<char*>(kKvatlas)};
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(kKvatlas, argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = fdopen(ends[0], "r");
  }
  ~Child() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    fclose(out_);
  }

  // Without its end; empty: there is none.
  std::string Line() {
    char line[4096];
    if (fgets(line, sizeof(line), out_) == nullptr) return "";
    std::string text = line;
    text.erase(text.find_last_not_of('\n') + 1);
    return text;
  }
  void Interrupt() { kill(pid_, SIGINT); }
  int End() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
  FILE* out_ = nullptr;
};

TEST(DemoTest, FiveLinesSayWhatWasCachedWhere) {
  Child demo({"demo", "--once"});
  EXPECT_THAT(demo.Line(),
              MatchesRegex("1  two mock engines, a and b, .*http://127.0.0.1:[0-9]+/v1"));
  EXPECT_THAT(demo.Line(),
              MatchesRegex("2  turn 1: [0-9]+ tokens, to [ab], by load; the engine had 0 .*"));
  const std::string second = demo.Line();
  std::smatch match;
  const std::regex form(
      "3  turn 2: ([0-9]+) tokens, to ([ab]), which has ([0-9]+) blocks of 16 of them; the engine "
      "had "
      "([0-9]+) tokens cached");
  ASSERT_TRUE(std::regex_match(second, match, form)) << second;
  const int tokens = std::stoi(match[1]), blocks = std::stoi(match[3]),
            cached = std::stoi(match[4]);
  EXPECT_GT(cached, tokens / 2);
  EXPECT_EQ(cached, blocks * 16);
  EXPECT_THAT(demo.Line(), MatchesRegex("4  turn 2 at [ab], .*: 0 cached, all " +
                                        std::string(match[1]) + " computed anew"));
  EXPECT_THAT(demo.Line(), MatchesRegex("5  the page: http://127.0.0.1:[0-9]+/ui/"));
  EXPECT_EQ(demo.Line(), "");
  EXPECT_EQ(demo.End(), 0);
}

TEST(DemoTest, ThePageIsThereUntilCtrlC) {
  Child demo({"demo"});
  std::string last;
  for (int i = 0; i < 5; ++i) last = demo.Line();
  std::smatch match;
  ASSERT_TRUE(
      std::regex_match(last, match, std::regex("5  the page: http://([^/]+)/ui/   .*Ctrl-C ends")))
      << last;
  HttpClient page(*Address::Parse(std::string(match[1])));
  const absl::StatusOr<HttpAnswer> answer = page.Get("/ui/");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 200);
  EXPECT_THAT(answer->body, HasSubstr("<!doctype html>"));
  demo.Interrupt();
  EXPECT_EQ(demo.Line(), "");
  EXPECT_EQ(demo.End(), 0);
}

TEST(DemoTest, APortInUseIsNamed) {
  Child demo({"demo", "--once", "--listen=192.0.2.1:1"});
  EXPECT_EQ(demo.Line(), "");
  EXPECT_NE(demo.End(), 0);
}

}  // namespace
}  // namespace kvatlas
