#include "indexer/telemetry/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace kvatlas {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kNoon = 1'767'355'445'678'901'234;  // 2026-01-02T12:04:05.678901234Z

std::string Line(LogFormat format, std::string_view event, LogFields fields = {}) {
  LogOptions options;
  options.component = "leaf";
  options.format = format;
  return FormatLogLine(options, kNoon, LogLevel::kInfo, event, fields);
}

// Sends this process's log into a pipe, and restores the defaults.
class PipedLog {
 public:
  explicit PipedLog(LogOptions options = {}) {
    EXPECT_EQ(pipe(fds_.data()), 0);
    options.fd = fds_[1];
    ConfigureLog(options);
  }
  ~PipedLog() {
    ConfigureLog({});
    if (fds_[1] >= 0) close(fds_[1]);
    close(fds_[0]);
  }

  std::vector<std::string> Lines() {
    ConfigureLog({});
    close(std::exchange(fds_[1], -1));
    std::string all;
    char buffer[1 << 16];
    for (ssize_t n; (n = read(fds_[0], buffer, sizeof(buffer))) > 0;) all.append(buffer, n);
    std::vector<std::string> lines;
    std::istringstream stream(all);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

 private:
  std::array<int, 2> fds_;
};

TEST(LogTest, LogfmtQuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(Line(LogFormat::kLogfmt, "stream refused",
                 {{"holder", "w7"},
                  {"blocks", 12},
                  {"ok", true},
                  {"load", 0.5},
                  {"after", std::chrono::milliseconds(1500)},
                  {"reason", absl::NotFoundError("no \"x\"")},
                  {"empty", ""}}),
            "time=2026-01-02T12:04:05.678901Z level=info component=leaf event=\"stream refused\" "
            "holder=w7 blocks=12 ok=true load=0.5 after=1.5s reason=\"NOT_FOUND: no \\\"x\\\"\" "
            "empty=\"\"\n");
}

TEST(LogTest, TextIsTheTimeAMarkAndWhatHappened) {
  LogOptions options;
  options.component = "leaf";
  options.format = LogFormat::kText;
  EXPECT_THAT(FormatLogLine(options, kNoon, LogLevel::kInfo, "engine \"a\" is there", {}),
              ::testing::MatchesRegex("..:..:..   engine \"a\" is there\n"));
  EXPECT_THAT(FormatLogLine(options, kNoon, LogLevel::kWarning, "gap\x1b[2J\n",
                            {{"holder", "w 7"}, {"blocks", 12}}),
              ::testing::MatchesRegex("..:..:.. ! gap.u001b.2J.u000a  holder=\"w 7\" blocks=12\n"));
  const std::string hidden(2000, '\x01');
  EXPECT_LE(FormatLogLine(options, kNoon, LogLevel::kError, hidden, {{"a", hidden}}).size(),
            kLogLineBytesMax);
}

TEST(LogTest, JsonQuotesTextAndNotNumbers) {
  EXPECT_EQ(Line(LogFormat::kJson, "start",
                 {{"holder", std::string("w7")},
                  {"blocks", uint64_t{18446744073709551615u}},
                  {"ok", false},
                  {"load", std::numeric_limits<double>::infinity()}}),
            "{\"time\":\"2026-01-02T12:04:05.678901Z\",\"level\":\"info\",\"component\":\"leaf\","
            "\"event\":\"start\",\"holder\":\"w7\",\"blocks\":18446744073709551615,\"ok\":false,"
            "\"load\":\"inf\"}\n");
}

TEST(LogTest, HostileTextStaysOnOneLine) {
  for (const LogFormat format : {LogFormat::kLogfmt, LogFormat::kJson}) {
    const std::string line = Line(format, "x", {{"name", "a\nlevel=error\x1b[31m\xff"}});
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_THAT(line, HasSubstr("a\\nlevel=error\\u001b[31m\xef\xbf\xbd"));
  }
}

TEST(LogTest, LineIsBoundedAndSaysWhatItLeftOut) {
  const std::string huge(100'000, '\x01');  // six bytes each once escaped
  const std::string large(100'000, 'x');
  for (const LogFormat format : {LogFormat::kLogfmt, LogFormat::kJson}) {
    const std::string line =
        Line(format, large, {{"a", huge}, {"b", large}, {"c", huge}, {"d", 1}});
    EXPECT_LE(line.size(), kLogLineBytesMax);
    EXPECT_THAT(line, Not(HasSubstr("\\u0001")));
    EXPECT_THAT(line, HasSubstr(std::string(kLogTextBytesMax, 'x')));
    EXPECT_THAT(line, HasSubstr("fields_dropped"));
    EXPECT_THAT(line, EndsWith(format == LogFormat::kJson ? ":1,\"fields_dropped\":2}\n"
                                                          : " d=1 fields_dropped=2\n"));
  }
}

TEST(LogTest, RecordsBelowTheLevelAreNotWritten) {
  LogOptions options;
  options.level_min = LogLevel::kWarning;
  PipedLog log(options);
  Log(LogLevel::kInfo, "no");
  Log(LogLevel::kWarning, "yes");
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  const std::vector<std::string> lines = log.Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], EndsWith("level=warning event=yes"));
}

TEST(LogTest, LinesOfManyThreadsNeverMix) {
  constexpr int kThreads = 4;
  constexpr int kRecords = 10;  // all of it fits the pipe
  PipedLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      const std::string filler(1000, static_cast<char>('a' + t));
      for (int i = 0; i < kRecords; ++i) Log(LogLevel::kInfo, filler, {{"end", 10 * t + i}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> tails;
  for (const std::string& line : log.Lines()) {
    EXPECT_THAT(line, StartsWith("time="));
    tails.insert(line.substr(line.find("event=")));
  }
  std::set<std::string> expected;
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kRecords; ++i) {
      expected.insert("event=" + std::string(1000, static_cast<char>('a' + t)) +
                      " end=" + std::to_string(10 * t + i));
    }
  }
  EXPECT_EQ(tails, expected);
}

TEST(LogTest, ClosedDescriptorLosesTheRecordOnly) {
  LogOptions options;
  options.fd = -1;
  ConfigureLog(options);
  Log(LogLevel::kError, "lost");
  ConfigureLog({});
}

TEST(LogLimiterTest, OnePerPeriodAndTheRestCounted) {
  LogLimiter limiter(std::chrono::seconds(10));
  const auto at = [](int s) { return Time(std::chrono::seconds(s)); };
  EXPECT_EQ(limiter.Admit("a", at(0)), 0u);
  EXPECT_EQ(limiter.Admit("a", at(1)), std::nullopt);
  EXPECT_EQ(limiter.Admit("a", at(9)), std::nullopt);
  EXPECT_EQ(limiter.Admit("b", at(9)), 0u);
  EXPECT_EQ(limiter.Admit("a", at(10)), 2u);
  EXPECT_EQ(limiter.Admit("a", at(20)), 0u);
}

TEST(LogLimiterTest, KeysAreBounded) {
  LogLimiter limiter(std::chrono::seconds(10));
  const Time start(0);
  for (size_t i = 0; i < kLogKeysMax; ++i) EXPECT_EQ(limiter.Admit(std::to_string(i), start), 0u);
  EXPECT_EQ(limiter.Admit("one more", start), 0u);  // the shared key's first
  EXPECT_EQ(limiter.Admit("and another", start), std::nullopt);
  EXPECT_EQ(limiter.Admit("0", start), std::nullopt);
  // A period later there is room again.
  EXPECT_EQ(limiter.Admit("one more", start + std::chrono::seconds(10)), 0u);
  EXPECT_EQ(limiter.Admit("one more", start + std::chrono::seconds(11)), std::nullopt);
}

TEST(LogLimiterTest, LogEverySaysHowManyWereHeldBack) {
  ManualClock clock;
  LogOptions options;
  options.clock = &clock;
  PipedLog log(options);
  LogLimiter limiter(std::chrono::seconds(1));
  for (int i = 0; i < 4; ++i) LogEvery(limiter, LogLevel::kInfo, "gap", {{"i", i}});
  clock.Advance(std::chrono::seconds(1));
  LogEvery(limiter, LogLevel::kInfo, "gap", {{"i", 4}});
  const std::vector<std::string> lines = log.Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], EndsWith("event=gap i=0"));
  EXPECT_THAT(lines[1], EndsWith("event=gap i=4 suppressed=3"));
}

}  // namespace
}  // namespace kvatlas
