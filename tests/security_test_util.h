// A cluster in which every process has a certificate and a policy, and clients of every role.

#ifndef KVATLAS_TESTS_SECURITY_TEST_UTIL_H_
#define KVATLAS_TESTS_SECURITY_TEST_UTIL_H_

#include <grpcpp/channel.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/trace/trace.h"

namespace kvatlas {

inline constexpr std::chrono::seconds kLong(60);
inline constexpr uint32_t kSplit = 4;

// What the roles may do in the tests here; a test has rules of its own where it asks for more.
inline constexpr char kRules[] = R"(
  {"identity": "worker/*/*", "allow": ["publish"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "leaf/*/*", "allow": ["report", "snapshot", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "node/*", "allow": ["report", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "frontend/*", "allow": ["query", "status"], "tenants": ["", "x"]},
  {"identity": "gateway/g", "allow": ["route", "feedback"], "tenants": ["x"]},
  {"identity": "operator/*", "allow": ["*"], "tenants": ["*"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "viewer/*", "allow": ["status", "metrics"]})";

class SecurityTest : public testing::Test {
 protected:
  void StartCluster(uint32_t cells, uint32_t workers, uint64_t capacity = 400,
                    std::vector<std::string> engine_args = {},
                    std::vector<std::string> leaf_args = {}) {
    ClusterOptions options;
    options.cells = cells;
    options.workers = workers;
    options.capacity = capacity;
    options.engine_args = std::move(engine_args);
    options.leaf_args = std::move(leaf_args);
    StartCluster(std::move(options));
  }

  void StartCluster(ClusterOptions options) {
    options.block_size = kTokensPerHashId / kSplit;
    options.secure = true;
    absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(std::move(options));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  ~SecurityTest() override { Security::SetOfProcess(Security::Open()); }

  void WritePolicy(const std::string& revoked, const std::string& rules = kRules,
                   const std::string& more = "") {
    const std::string path = cluster_->pki()->policy_path();
    {
      std::ofstream file(path + ".new");
      file << R"({"version": 1, "trust_domain": ")" << cluster_->pki()->trust_domain()
           << R"(", "rules": [)" << rules << R"(], "revoked": )" << revoked << more << "}";
    }
    ASSERT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
  }

  // Every process has read the policy again so many times.
  void AwaitReloads(int times) {
    for (const char* process : {"leaf-0", "hierarchy", "frontend"}) {
      EXPECT_TRUE(Await(
          [&] {
            const std::string text =
                Curl("operator/o", cluster_->address(process, "http"), "/metrics");
            const std::string name = "\nkvatlas_security_reloads_total ";
            const size_t at = text.find(name);
            return at != std::string::npos && std::stoi(text.substr(at + name.size())) >= times;
          },
          kLong))
          << process;
    }
  }

  const TlsPaths& FilesOf(const std::string& identity) {
    TlsPaths& paths = files_[identity];
    if (paths.ca.empty()) {
      absl::StatusOr<TlsPaths> issued = cluster_->pki()->Issue(
          {.identity = identity, .name = "test-" + std::to_string(files_.size())});
      EXPECT_TRUE(issued.ok()) << issued.status();
      if (issued.ok()) paths = *std::move(issued);
    }
    return paths;
  }

  // The body, and the status as its last three characters.
  std::string Curl(const std::string& identity, const std::string& address, const std::string& path,
                   const std::string& more = "") {
    std::string command = absl::StrCat("curl -sS -m 60 -o - -w '%{http_code}' --cacert ",
                                       cluster_->pki()->ca_path(), " ", more);
    if (!identity.empty()) {
      const TlsPaths& files = FilesOf(identity);
      absl::StrAppend(&command, " --cert ", files.certificate, " --key ", files.key);
    }
    absl::StrAppend(&command, " 'https://", address, path, "' 2>&1");
    return OutputOf(command);
  }

  static std::string OutputOf(const std::string& command) {
    FILE* const pipe = popen(command.c_str(), "r");
    std::string out;
    char bytes[4096];
    for (size_t got; (got = fread(bytes, 1, sizeof(bytes), pipe)) > 0;) out.append(bytes, got);
    pclose(pipe);
    return out;
  }

  std::shared_ptr<Security> As(const std::string& identity) {
    SecurityOptions options;
    options.process = "test";
    if (identity.empty()) {
      options.tls.ca = cluster_->pki()->ca_path();
    } else {
      options.tls = FilesOf(identity);
    }
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }

  std::shared_ptr<grpc::Channel> ChannelAs(const std::string& identity,
                                           const std::string& address) {
    return MakeChannel(address, {.security = As(identity), .own_connection = true});
  }

  std::string AuditOf(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(cluster_->logs() + "/" + name + ".audit").rdbuf();
    return text.str();
  }

  std::unique_ptr<Cluster> cluster_;
  std::map<std::string, TlsPaths> files_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_SECURITY_TEST_UTIL_H_
