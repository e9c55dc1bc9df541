// The thread that looks at files, every `look_every`: a bad one keeps the old.

#include <sys/stat.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "indexer/base/clock.h"
#include "indexer/security/real_security.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

constexpr Duration kSayInsecureEvery = std::chrono::minutes(1);

// Inode, size and time of change: a file with the same stamp is taken for unchanged.
std::string StampOfFile(const std::string& path) {
  struct stat status = {};
  if (path.empty() || stat(path.c_str(), &status) != 0) return "-;";
  return absl::StrCat(status.st_ino, ":", status.st_size, ":", status.st_mtim.tv_sec, ":",
                      status.st_mtim.tv_nsec, ";");
}

}  // namespace

std::array<std::string, 3> RealSecurity::Stamps() const {
  return {StampOfFile(options_.policy), StampOfFile(options_.tokens.tokens),
          StampOfFile(options_.tokens.jwks)};
}

// The file is read and parsed without the mutex; only the pointer is replaced under it, together
// with the identities that the former policy made.
absl::Status RealSecurity::ReadPolicy() {
  if (options_.policy.empty()) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const AccessPolicy>> policy = AccessPolicy::Read(options_.policy);
  if (!policy.ok()) return policy.status();
  MutexLock lock(&mutex_);
  policy_ = *std::move(policy);
  ForgetIdentities();
  return absl::OkStatus();
}

absl::Status RealSecurity::ReadTokens() {
  if (options_.tokens.tokens.empty() && options_.tokens.jwks.empty()) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const Tokens>> tokens = Tokens::Read(options_.tokens);
  if (!tokens.ok()) return tokens.status();
  MutexLock lock(&mutex_);
  tokens_ = *std::move(tokens);
  return absl::OkStatus();
}

// The thread: every `look_every` it looks at the files. It checks the open calls when something
// changed, and once a second, for credentials that expire. It repeats the warning about planes in
// clear every minute.
void RealSecurity::Run() {
  Time say_insecure{0};
  int64_t checked_s = NowUnixSeconds();
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) wake_.WaitFor(&mutex_, options_.look_every);
      if (stopping_) return;
    }
    const bool changed = Look();
    // Credentials expire by themselves: looked for once a second.
    const int64_t now_s = NowUnixSeconds();
    if (changed || now_s != checked_s) CheckCalls(changed);
    checked_s = now_s;
    if (!exposed_.load(std::memory_order_relaxed)) continue;
    const Time now = Clock::Real().Now();
    if (now - say_insecure < kSayInsecureEvery && say_insecure != Time{0}) continue;
    say_insecure = now;
    SayInsecure();
  }
}

void RealSecurity::SayInsecure() const {
  std::string planes;
  {
    MutexLock lock(&mutex_);
    for (const std::string& plane : in_clear_)
      absl::StrAppend(&planes, planes.empty() ? "" : ",", plane);
  }
  Log(LogLevel::kWarning, "insecure: what goes beyond loopback is in clear",
      {{"planes", planes},
       {"remedy",
        "ports: --tls_cert, --tls_key, --tls_ca and --access_policy; redis: rediss://; engines: "
        "server_key; see docs/security.md"}});
}

void RealSecurity::LogReload(std::string_view what, const std::string& path,
                             const absl::Status& status) {
  // A file that stays bad is looked at twice a second; the same reason is logged once.
  std::string& last = reload_errors_[std::string(what)];
  const std::string now = status.ok() ? "" : std::string(status.message());
  if (status.ok()) {
    reloads_.fetch_add(1, std::memory_order_relaxed);
    Log(LogLevel::kInfo, "security files read again",
        {{"what", std::string(what)}, {"path", path}});
  } else if (now != last) {
    reloads_failed_.fetch_add(1, std::memory_order_relaxed);
    Log(LogLevel::kError, "security files stay as they were",
        {{"what", std::string(what)}, {"path", path}, {"reason", now}});
  }
  if (status.ok() || now != last) {
    audit_->Write({.event = "reload",
                   .allowed = status.ok(),
                   .identity = "",
                   .target = absl::StrCat(absl::string_view(what.data(), what.size()), "=", path),
                   .reason = now});
  }
  last = now;
}

// TLS files, policy and tokens, each on its own: a bad file does not keep the others from being
// replaced. The stamp of a bad policy or token file is kept, so it is read again only when it
// changes. True: something new counts.
bool RealSecurity::Look() {
  bool any = false;
  if (tls_ != nullptr) {
    bool changed = false;
    const absl::Status status = tls_->Look(&changed);
    if (changed) {
      MutexLock lock(&mutex_);
      ForgetIdentities();
    }
    if (changed || !status.ok()) LogReload("tls", options_.tls.certificate, status);
    any |= changed;
  }
  std::array<std::string, 3> stamps = Stamps();
  if (stamps == stamps_) return any;
  if (stamps[0] != stamps_[0]) {
    const absl::Status status = ReadPolicy();
    LogReload("policy", options_.policy, status);
    any |= status.ok();
  }
  if (stamps[1] != stamps_[1] || stamps[2] != stamps_[2]) {
    const absl::Status status = ReadTokens();
    LogReload("tokens", options_.tokens.tokens, status);
    any |= status.ok();
  }
  stamps_ = std::move(stamps);
  return any;
}

}  // namespace kvatlas
