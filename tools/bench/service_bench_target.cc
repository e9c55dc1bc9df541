#include "tools/bench/service_bench_target.h"

#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kStart(30);
constexpr std::chrono::seconds kStop(10);

std::string TemporaryName() {
  const char* const folder = std::getenv("TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/service_bench_" +
         std::to_string(getpid()) + ".log";
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchTarget>> BenchTarget::StartLeaf(
    const std::string& binary, const std::vector<std::string>& more_args) {
  std::vector<std::string> args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--exit_with_parent",
                                   "--lease_ttl=1h"};
  args.insert(args.end(), more_args.begin(), more_args.end());
  std::unique_ptr<BenchTarget> target(new BenchTarget);
  target->name_ = "leaf";
  target->log_ = TemporaryName();
  target->process_ = std::make_unique<Process>(ProcessOptions{
      .name = "leaf", .binary = binary, .args = std::move(args), .log = target->log_});
  if (absl::Status status = target->process_->Start(kStart); !status.ok()) return status;
  target->pid_ = target->process_->pid();
  target->grpc_ = target->process_->address("grpc");
  absl::StatusOr<Address> http = Address::Parse(target->process_->address("http"));
  if (!http.ok()) return http.status();
  target->http_ = *http;
  return target;
}

absl::StatusOr<std::unique_ptr<BenchTarget>> BenchTarget::Foreign(const std::string& url,
                                                                  uint32_t pid) {
  constexpr std::string_view kHttp = "http://";
  std::string_view address = url;
  if (!address.starts_with(kHttp)) return absl::InvalidArgumentError("--url: not http://HOST:PORT");
  address.remove_prefix(kHttp.size());
  if (address.ends_with('/')) address.remove_suffix(1);
  absl::StatusOr<Address> http = Address::Parse(address);
  if (!http.ok()) return http.status();
  std::unique_ptr<BenchTarget> target(new BenchTarget);
  target->name_ = url;
  target->http_ = *http;
  target->pid_ = static_cast<pid_t>(pid);
  return target;
}

BenchTarget::~BenchTarget() {
  if (process_ == nullptr) return;
  process_->Stop(kStop);
  unlink(log_.c_str());
}

std::optional<double> BenchTarget::CpuSeconds() const { return CpuSecondsOf(pid_); }

std::optional<double> BenchTarget::CpuSecondsOf(pid_t pid) {
  clockid_t clock;
  timespec used;
  if (pid == 0 || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0) {
    return std::nullopt;
  }
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

std::optional<uint64_t> BenchTarget::RssBytes() const {
  if (pid_ == 0) return std::nullopt;
  std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
  uint64_t total = 0;
  uint64_t resident = 0;
  if (!(file >> total >> resident)) return std::nullopt;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace kvatlas
