#include "tests/hostile/siege.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "tests/hostile/raw_socket.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kPause(20);

double Ms(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

// The standard health check; what went wrong, or nothing.
std::optional<std::string> CheckHealth(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const grpc::ByteBuffer empty(nullptr, 0);
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", empty, &queue);
  call->StartCall();
  grpc::Status status;
  grpc::ByteBuffer response;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (status.ok()) return std::nullopt;
  return status.error_message().empty() ? "failed" : status.error_message();
}

// Runs a function again and again on a thread of its own, with a short rest in between, and counts.
class Watcher {
 public:
  virtual ~Watcher() = default;

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    if (thread_.joinable()) thread_.join();
  }
  uint64_t answers() const {
    MutexLock lock(&mutex_);
    return answers_;
  }
  void WaitFor(uint64_t more) {
    MutexLock lock(&mutex_);
    const uint64_t until = answers_ + failures_ + more;
    while (answers_ + failures_ < until) wake_.Wait(&mutex_);
  }
  uint64_t failures() const {
    MutexLock lock(&mutex_);
    return failures_;
  }
  std::string last_failure() const {
    MutexLock lock(&mutex_);
    return last_failure_;
  }
  Duration slowest() const {
    MutexLock lock(&mutex_);
    return slowest_;
  }

 protected:
  // Nothing, or what went wrong.
  virtual std::optional<std::string> Ask() = 0;

 private:
  void Run() {
    MutexLock lock(&mutex_);
    while (!stopping_) {
      mutex_.Unlock();
      const Time start = Clock::Real().Now();
      std::optional<std::string> failure = Ask();
      const Duration took = Clock::Real().Now() - start;
      mutex_.Lock();
      slowest_ = std::max(slowest_, took);
      if (failure.has_value()) {
        ++failures_;
        last_failure_ = *std::move(failure);
      } else {
        ++answers_;
      }
      wake_.SignalAll();
      if (!stopping_) wake_.WaitFor(&mutex_, kPause);
    }
  }

  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t answers_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_failure_ ABSL_GUARDED_BY(mutex_);
  Duration slowest_ ABSL_GUARDED_BY(mutex_){0};
  std::thread thread_;
};

}  // namespace

class Siege::HealthProber : public Watcher {
 public:
  explicit HealthProber(Address http) : http_(std::move(http)) {}
  ~HealthProber() override { Stop(); }
  uint64_t cut_off() const { return cut_off_.load(); }

 private:
  std::optional<std::string> Ask() override {
    const Time until = Clock::Real().Now() + kPatience;
    while (true) {
      const Duration rest = until - Clock::Real().Now();
      if (rest <= Duration::zero()) return "no answer from /healthz";
      const std::optional<std::string> answer = HttpGet(http_, "/healthz", rest);
      if (answer.has_value() && HttpStatusIn(*answer) == 200) return std::nullopt;
      if (answer.has_value()) return "/healthz: " + *answer;
      cut_off_.fetch_add(1);
    }
  }
  std::atomic<uint64_t> cut_off_{0};
  const Address http_;
};

class Siege::Neighbour : public Watcher {
 public:
  explicit Neighbour(const Address& grpc)
      : channel_(MakeChannel(grpc.ToString(), {.own_connection = true})) {}
  ~Neighbour() override { Stop(); }

 private:
  std::optional<std::string> Ask() override { return CheckHealth(channel_); }
  const std::shared_ptr<grpc::Channel> channel_;
};

double CpuSecondsOf(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream rest(line.substr(line.rfind(')') + 1));
  std::string word;
  constexpr int kUser = 14, kFirst = 3;  // as proc(5) counts them
  for (int field = kFirst; field < kUser; ++field) rest >> word;
  uint64_t user = 0, system = 0;
  rest >> user >> system;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Siege::Siege(SiegeOptions options) : options_(std::move(options)) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string name = std::filesystem::path(options_.program).filename();
  static std::atomic<int> count{0};
  log_ = std::string(folder == nullptr ? "/tmp" : folder) + "/" + name + "-" +
         std::to_string(count.fetch_add(1)) + ".log";
  std::vector<std::string> args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0"};
  // A frontend is ready once a leaf has answered it.
  if (options_.program == kFrontend) {
    leaf_ = std::make_unique<Process>(
        ProcessOptions{.name = "leaf of " + name,
                       .binary = kLeaf,
                       .args = {"--cell=own", "--grpc=127.0.0.1:0", "--http=127.0.0.1:0"},
                       .log = log_ + ".leaf"});
    if (absl::Status status = leaf_->Start(std::chrono::seconds(60)); !status.ok()) {
      ADD_FAILURE() << status.ToString();
      return;
    }
    args.push_back("--leaves=own=" + leaf_->address("grpc"));
  }
  args.insert(args.end(), options_.args.begin(), options_.args.end());
  std::string binary = options_.program;
  std::string limits;
  if (options_.descriptors_soft > 0) {
    limits += "ulimit -Sn " + std::to_string(options_.descriptors_soft) + " && ulimit -Hn " +
              std::to_string(std::max(options_.descriptors_hard, options_.descriptors_soft)) +
              " && ";
  }
  if (options_.addresses_max > 0)
    limits += "ulimit -v " + std::to_string(options_.addresses_max >> 10) + " && ";
  if (!limits.empty()) {
    args.insert(args.begin(), {"-c", limits + "exec \"$0\" \"$@\"", binary});
    binary = "/bin/sh";
  }
  process_ = std::make_unique<Process>(
      ProcessOptions{.name = name, .binary = binary, .args = std::move(args), .log = log_});
  if (absl::Status status = process_->Start(std::chrono::seconds(60)); !status.ok()) {
    ADD_FAILURE() << status.ToString();
    return;
  }
  const Time until = Clock::Real().Now() + std::chrono::minutes(1);
  while (options_.watch_when_ready.value_or(leaf_ != nullptr) && HttpStatus("/ready") != 200) {
    if (Clock::Real().Now() > until) {
      ADD_FAILURE() << options_.program << " is not ready after a minute:\n" << LogTail();
      return;
    }
    Mutex mutex;
    MutexLock lock(&mutex);
    CondVar().WaitFor(&mutex, std::chrono::milliseconds(50));
  }
  health_ = std::make_unique<HealthProber>(http());
  neighbour_ = std::make_unique<Neighbour>(grpc());
  health_->Start();
  neighbour_->Start();
  Watch(5);
  rss_before_ = RssBytes();
}

Siege::~Siege() {
  health_.reset();
  neighbour_.reset();
}

bool Siege::ok() const { return neighbour_ != nullptr; }

Address Siege::Of(const std::string& name) const {
  const absl::StatusOr<Address> address = Address::Parse(process_->address(name));
  return address.ok() ? *address : Address{};
}

bool Siege::Alive() const {
  if (!process_->running() || kill(process_->pid(), 0) != 0) return false;
  std::ifstream stat("/proc/" + std::to_string(process_->pid()) + "/stat");
  std::string line;
  std::getline(stat, line);
  const size_t end = line.rfind(") ");
  return end != std::string::npos && line[end + 2] != 'Z';
}

uint64_t Siege::RssBytes() const {
  std::ifstream statm("/proc/" + std::to_string(process_->pid()) + "/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  statm >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t Siege::RssPeakBytes() const {
  std::ifstream status("/proc/" + std::to_string(process_->pid()) + "/status");
  std::string word;
  uint64_t kib = 0;
  while (status >> word && word != "VmHWM:") {
  }
  status >> kib;
  return kib << 10;
}

size_t Siege::Descriptors() const {
  std::error_code ignored;
  const std::filesystem::directory_iterator found(
      "/proc/" + std::to_string(process_->pid()) + "/fd", ignored);
  return static_cast<size_t>(std::distance(begin(found), end(found)));
}

std::string Siege::LogTail(size_t lines) const { return TailOf(log_, lines); }

std::optional<std::string> Siege::NewGrpcConnectionFails() const {
  return CheckHealth(MakeChannel(grpc().ToString(), {.own_connection = true}));
}

int Siege::HttpStatus(const std::string& path) const {
  return HttpStatusIn(HttpGet(http(), path, kPatience).value_or(""));
}

void Siege::Watch(uint32_t answers) {
  health_->WaitFor(answers);
  neighbour_->WaitFor(answers);
}

void Siege::ExpectUnharmed() {
  if (!ok()) return;
  if (!Alive()) {
    ADD_FAILURE() << options_.program << " died:\n" << LogTail();
    return;
  }
  Watch(5);
  const uint64_t rss = RssBytes();
  std::cout << options_.program << ": " << health_->answers() << " health answers, slowest "
            << Ms(health_->slowest()) << " ms, " << health_->cut_off() << " cut off; "
            << neighbour_->answers() << " of the neighbour's, slowest " << Ms(neighbour_->slowest())
            << " ms; memory " << (rss_before_ >> 20) << " -> " << (rss >> 20) << " MiB, peak "
            << (RssPeakBytes() >> 20) << " MiB; " << Descriptors() << " descriptors\n";
  EXPECT_EQ(health_->failures(), 0u) << health_->last_failure();
  EXPECT_EQ(neighbour_->failures(), 0u) << neighbour_->last_failure();
  EXPECT_LE(rss, rss_before_ + options_.memory_growth_max);
  const std::optional<std::string> failed = NewGrpcConnectionFails();
  EXPECT_FALSE(failed.has_value()) << "a new gRPC connection: " << failed.value_or("");
  if (testing::Test::HasFailure()) std::cout << LogTail() << "\n";
}

}  // namespace kvatlas
