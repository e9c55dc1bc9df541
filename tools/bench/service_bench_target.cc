#include "tools/bench/service_bench_target.h"

#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "indexer/security/pki.h"
#include "indexer/security/security.h"

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

absl::StatusOr<std::unique_ptr<BenchTarget>> BenchTarget::StartSecureLeaf(
    const std::string& binary, std::vector<std::string> more_args) {
  const std::string folder = TemporaryName() + ".pki";
  const absl::StatusOr<Pki> pki = Pki::Create(folder, "bench.local");
  if (!pki.ok()) return pki.status();
  if (absl::Status bad = pki->WriteExamplePolicy(); !bad.ok()) return bad;
  const absl::StatusOr<TlsPaths> of_leaf = pki->Issue({.identity = "leaf/cell/-"});
  const absl::StatusOr<TlsPaths> own = pki->Issue({.identity = "operator/bench"});
  if (!of_leaf.ok() || !own.ok()) return of_leaf.ok() ? own.status() : of_leaf.status();
  more_args.insert(more_args.end(),
                   {"--tls_cert=" + of_leaf->certificate, "--tls_key=" + of_leaf->key,
                    "--tls_ca=" + of_leaf->ca, "--access_policy=" + pki->policy_path()});
  SecurityOptions options;
  options.tls = *own;
  absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
  if (!security.ok()) return security.status();
  Security::SetOfProcess(*std::move(security));
  absl::StatusOr<std::unique_ptr<BenchTarget>> target = StartLeaf(binary, more_args);
  if (target.ok()) {
    (*target)->name_ = "leaf by mTLS";
    (*target)->pki_ = folder;
  }
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
  std::error_code ignored;
  if (!pki_.empty()) std::filesystem::remove_all(pki_, ignored);
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
