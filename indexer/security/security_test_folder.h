// A folder of a test: a CA, a policy that is written anew, an audit log, and processes that are
// started with them.

#ifndef KVATLAS_INDEXER_SECURITY_SECURITY_TEST_FOLDER_H_
#define KVATLAS_INDEXER_SECURITY_SECURITY_TEST_FOLDER_H_

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"

namespace kvatlas {

class SecurityTestFolder {
 public:
  // `rest`: the policy's rules and what goes with them, as `"rules": […], "tenants": {…}`.
  explicit SecurityTestFolder(std::string rest) : rest_(std::move(rest)) {
    std::string path = testing::TempDir() + "/security_XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
    absl::StatusOr<Pki> pki = Pki::Create(path_ + "/pki", "test.example");
    EXPECT_TRUE(pki.ok()) << pki.status();
    pki_ = std::make_unique<Pki>(*std::move(pki));
    WritePolicy("[]");
  }

  // A file with a salt that a policy can name.
  static std::string SaltFile() {
    std::string path = testing::TempDir() + "/salt_XXXXXX";
    const int fd = mkstemp(path.data());  // for its owner alone
    EXPECT_GE(fd, 0);
    EXPECT_EQ(write(fd, "a secret of many bytes", 22), 22);
    close(fd);
    return path;
  }

  const std::string& path() const { return path_; }
  const Pki& pki() const { return *pki_; }

  // By rename, as a careful editor writes.
  void WritePolicy(const std::string& revoked) const {
    const std::string path = path_ + "/policy.json";
    std::ofstream(path + ".new") << R"({"version": 1, "trust_domain": "test.example", )" << rest_
                                 << R"(, "revoked": )" << revoked << "}";
    EXPECT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
  }

  TlsPaths Issue(const std::string& identity, PkiIssue issue = {}) const {
    issue.identity = identity;
    absl::StatusOr<TlsPaths> paths = pki_->Issue(issue);
    EXPECT_TRUE(paths.ok()) << paths.status();
    return paths.ok() ? *paths : TlsPaths();
  }

  // The options of a process with that certificate, and of one that has the policy and the audit
  // log too.
  static SecurityOptions ClientOf(const TlsPaths& tls) {
    SecurityOptions options;
    options.process = "test";
    options.tls = tls;
    options.look_every = std::chrono::milliseconds(20);
    return options;
  }
  SecurityOptions ServerOf(const TlsPaths& tls) const {
    SecurityOptions options = ClientOf(tls);
    options.policy = path_ + "/policy.json";
    options.audit_log = path_ + "/audit.log";
    return options;
  }

  static std::shared_ptr<Security> Start(SecurityOptions options) {
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
    EXPECT_TRUE(security.ok()) << security.status();
    return security.ok() ? *security : Security::Open();
  }

  // The output of curl for `url`, checked by the folder's CA, with its error messages.
  std::string Curl(const std::string& arguments, const std::string& url) const {
    const std::string command =
        "curl -sS -m 120 --cacert " + pki().ca_path() + " " + arguments + " " + url + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    EXPECT_NE(pipe, nullptr);
    std::string out;
    char bytes[4096];
    for (size_t got; (got = fread(bytes, 1, sizeof(bytes), pipe)) > 0;) out.append(bytes, got);
    pclose(pipe);
    return out;
  }

  std::string Audit() const {
    std::stringstream text;
    text << std::ifstream(path_ + "/audit.log").rdbuf();
    return text.str();
  }

 private:
  const std::string rest_;
  std::string path_;
  std::unique_ptr<Pki> pki_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_SECURITY_TEST_FOLDER_H_
