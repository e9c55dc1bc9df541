#include "indexer/discovery/directory.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/mutex.h"
#include "indexer/base/resolve_host.h"

namespace kvatlas {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Duration kLong = std::chrono::hours(1);

// A resolver that answers what the test says, and waits to be asked.
class FakeDns {
 public:
  void Answer(absl::StatusOr<std::vector<std::string>> answer) {
    MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  HostResolver Fn() {
    return [this](const std::string&) {
      MutexLock lock(&mutex_);
      ++asked_;
      changed_.SignalAll();
      return answer_;
    };
  }
  void WaitAsked(int times) {
    MutexLock lock(&mutex_);
    while (asked_ < times) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::StatusOr<std::vector<std::string>> answer_ ABSL_GUARDED_BY(mutex_) =
      absl::UnavailableError("not yet");
};

// The sets of records that a directory reported, in order.
class Recorder {
 public:
  Directory::OnChange Fn() {
    return [this](const std::vector<ServiceRecord>& records) {
      std::vector<std::string> addresses;
      for (const ServiceRecord& record : records) addresses.push_back(record.grpc);
      MutexLock lock(&mutex_);
      told_.push_back(std::move(addresses));
      changed_.SignalAll();
    };
  }
  std::vector<std::string> WaitFor(size_t times) {
    MutexLock lock(&mutex_);
    while (told_.size() < times) changed_.Wait(&mutex_);
    return told_[times - 1];
  }
  size_t times() {
    MutexLock lock(&mutex_);
    return told_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::vector<std::string>> told_ ABSL_GUARDED_BY(mutex_);
};

DirectoryOptions Options(std::vector<std::string> entries) {
  DirectoryOptions options;
  options.entries = std::move(entries);
  options.refresh = kLong;
  options.first_answer = std::chrono::minutes(1);
  return options;
}

TEST(DirectoryTest, FixedEntriesAreThereAtOnceOncePerAddress) {
  Recorder told;
  auto directory = Directory::Open(Options({"h:2", "cell-a=h:1", "h:1", "[::1]:3"}), told.Fn());
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_THAT(told.WaitFor(1), ElementsAre("[::1]:3", "h:2", "h:1"));
  const DirectoryView view = (*directory)->View();
  EXPECT_EQ(view.records.back().name, "cell-a");
  EXPECT_TRUE(view.status.ok());
}

TEST(DirectoryTest, NoEntriesAreNobody) {
  Recorder told;
  ASSERT_TRUE(Directory::Open(Options({}), told.Fn()).ok());
  EXPECT_THAT(told.WaitFor(1), IsEmpty());
}

TEST(DirectoryTest, NamesTheEntryItCannotUnderstand) {
  for (std::string entry : {"nowhere", "h:0", "=h:1", "dns:h", "dns:h:0", "http://h:1"}) {
    Recorder told;
    const auto directory = Directory::Open(Options({"h:1", entry}), told.Fn());
    EXPECT_EQ(directory.status().code(), absl::StatusCode::kInvalidArgument) << entry;
    EXPECT_THAT(std::string(directory.status().message()), HasSubstr(entry));
    EXPECT_FALSE(CheckDirectoryEntry(entry).ok());
    EXPECT_EQ(told.times(), 0u);
  }
}

TEST(DirectoryTest, DnsAddressesComeAndGoAndFailuresChangeNothing) {
  FakeDns dns;
  dns.Answer(std::vector<std::string>{"10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1"});
  DirectoryOptions options = Options({"dns:hierarchy.prod:7420"});
  options.resolve = dns.Fn();
  Recorder told;
  auto directory = Directory::Open(options, told.Fn());
  ASSERT_TRUE(directory.ok());
  EXPECT_THAT(told.WaitFor(1), ElementsAre("10.0.0.1:7420", "10.0.0.2:7420", "[fd00::1]:7420"));

  dns.Answer(absl::UnavailableError("the resolver is away"));
  (*directory)->Refresh();
  dns.WaitAsked(2);
  dns.Answer(std::vector<std::string>{});  // no better
  (*directory)->Refresh();
  dns.WaitAsked(3);
  dns.Answer(std::vector<std::string>{"10.0.0.2", "10.0.0.3"});
  (*directory)->Refresh();
  EXPECT_THAT(told.WaitFor(2), ElementsAre("10.0.0.2:7420", "10.0.0.3:7420"));
}

TEST(DirectoryTest, StatusSaysWhichSourceFails) {
  FakeDns dns;
  DirectoryOptions options = Options({"h:1", "dns:gone:7420"});
  options.resolve = dns.Fn();
  Recorder told;
  auto directory = Directory::Open(options, told.Fn());
  ASSERT_TRUE(directory.ok());
  EXPECT_THAT(told.WaitFor(1), ElementsAre("h:1"));
  const DirectoryView view = (*directory)->View();
  EXPECT_EQ(view.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(view.sources[0].status.ok());
  EXPECT_EQ(view.sources[1].entry, "dns:gone:7420");
  EXPECT_FALSE(view.sources[1].status.ok());
}

TEST(DirectoryTest, AnswersThatAreTheSameAreNotTold) {
  FakeDns dns;
  dns.Answer(std::vector<std::string>{"10.0.0.1"});
  DirectoryOptions options = Options({"dns:a:1"});
  options.resolve = dns.Fn();
  Recorder told;
  auto directory = Directory::Open(options, told.Fn());
  ASSERT_TRUE(directory.ok());
  for (int asked = 2; asked < 5; ++asked) {
    (*directory)->Refresh();
    dns.WaitAsked(asked);
  }
  directory->reset();
  EXPECT_EQ(told.times(), 1u);
}

TEST(DirectoryTest, AsksDnsAgainByItself) {
  FakeDns dns;
  dns.Answer(std::vector<std::string>{"10.0.0.1"});
  DirectoryOptions options = Options({"dns:a:1"});
  options.resolve = dns.Fn();
  options.refresh = std::chrono::milliseconds(1);
  Recorder told;
  auto directory = Directory::Open(options, told.Fn());
  ASSERT_TRUE(directory.ok());
  dns.WaitAsked(3);
  dns.Answer(std::vector<std::string>{"10.0.0.2"});
  EXPECT_THAT(told.WaitFor(2), ElementsAre("10.0.0.2:1"));
}

TEST(DirectoryTest, ResolvesTheNameOfThisMachine) {
  absl::StatusOr<std::vector<std::string>> hosts = ResolveHost("localhost");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, Contains(AnyOf("127.0.0.1", "::1")));
  EXPECT_EQ(ResolveHost("no.such.host.invalid").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvatlas
