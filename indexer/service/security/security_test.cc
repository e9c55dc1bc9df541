#include "indexer/service/security/security.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "indexer/base/await.h"
#include "indexer/service/security/pki.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(30);

class ProcessSecurityTest : public testing::Test {
 protected:
  ProcessSecurityTest() {
    std::string directory = testing::TempDir() + "/security_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    absl::StatusOr<Pki> pki = Pki::Create(directory_ + "/pki", "test.example");
    EXPECT_TRUE(pki.ok()) << pki.status();
    pki_ = std::make_unique<Pki>(*std::move(pki));
    WritePolicy("[]");
    SecurityOptions options;
    options.process = "test";
    options.tls = *pki_->Issue({.identity = "leaf/a/0"});
    options.policy = directory_ + "/policy.json";
    options.audit_log = directory_ + "/audit.log";
    options.look_every = std::chrono::milliseconds(5);
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(options);
    EXPECT_TRUE(security.ok()) << security.status();
    security_ = *security;
  }

  void WritePolicy(const std::string& revoked) {
    const std::string path = directory_ + "/policy.json";
    {
      std::ofstream file(path + ".new");
      file << R"({"version": 1, "trust_domain": "test.example", "rules": [
                  {"identity": "frontend/*", "allow": ["query"], "tenants": ["x"],
                   "quota": {"connections": 1, "unread_bytes": 100}},
                  {"identity": "worker/*/*", "allow": ["publish"]}],
                  "tenants": {"x": {"quota": {"queries_per_s": 2, "blocks_per_holder": 7}}},
                  "revoked": )"
           << revoked << "}";
    }
    EXPECT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
  }

  std::string ChainOf(const std::string& identity) {
    std::stringstream text;
    text << std::ifstream(pki_->Issue({.identity = identity})->certificate).rdbuf();
    return text.str();
  }
  std::shared_ptr<const Identity> Of(const std::string& identity) {
    return std::make_shared<const Identity>(*ParseIdentity(identity));
  }
  std::string Metrics() {
    std::string text;
    security_->AppendMetrics(&text);
    return text;
  }

  std::string directory_;
  std::unique_ptr<Pki> pki_;
  std::shared_ptr<Security> security_;
};

TEST_F(ProcessSecurityTest, ARevokedCertificateIsNotRememberedAsAGoodOne) {
  const std::string good = ChainOf("worker/a/w1");
  const std::string bad = ChainOf("worker/a/w2");
  for (const std::string& chain : {good, bad, bad, good}) {
    EXPECT_TRUE(security_->Authenticate(chain, "").ok());
  }
  WritePolicy(R"(["worker/a/w2"])");
  EXPECT_TRUE(Await([&] { return !security_->Authenticate(bad, "").ok(); }, kLong));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(security_->Authenticate(bad, "").ok());
    const auto still = security_->Authenticate(good, "");
    ASSERT_TRUE(still.ok());
    EXPECT_EQ((*still)->Text(), "worker/a/w1");
  }
  WritePolicy("[]");
  EXPECT_TRUE(Await([&] { return security_->Authenticate(bad, "").ok(); }, kLong));
}

TEST_F(ProcessSecurityTest, UnreadAnswersBeyondTheBoundCancelTheCall) {
  int cancelled = 0;
  const auto unread = security_->UnreadOf(Of("frontend/f"), [&] { ++cancelled; });
  ASSERT_TRUE(unread);
  std::shared_ptr<const void> first = unread(60);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(unread(60), nullptr);
  EXPECT_EQ(cancelled, 1);
  first = nullptr;
  EXPECT_NE(unread(60), nullptr);
  EXPECT_EQ(cancelled, 1);
  EXPECT_FALSE(security_->UnreadOf(Of("worker/a/w1"), [] {})) << "it has no bound";
}

TEST_F(ProcessSecurityTest, AConnectionCountsOnceHoweverManyCallsItHas) {
  const auto first = security_->HoldConnection(*Of("frontend/f"), "ipv4:10.0.0.1:5");
  const auto again = security_->HoldConnection(*Of("frontend/f"), "ipv4:10.0.0.1:5");
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_FALSE(security_->HoldConnection(*Of("frontend/f"), "ipv4:10.0.0.1:6").ok());
  EXPECT_TRUE(security_->HoldConnection(*Of("frontend/g"), "ipv4:10.0.0.1:6").ok());
  EXPECT_NE(Metrics().find("kvatlas_quota_held{quota=\"connections\",of=\"frontend\"} 1"),
            std::string::npos)
      << Metrics();
}

// Frontends f and g act for x, as the only tenant of their rule.
TEST_F(ProcessSecurityTest, ATenantsQuotaIsSharedAndItsRefusalsAreAudited) {
  EXPECT_TRUE(security_->Take(*Of("frontend/f"), QuotaKind::kQueries, 1).ok());
  EXPECT_TRUE(security_->Take(*Of("frontend/g"), QuotaKind::kQueries, 1).ok());
  EXPECT_FALSE(security_->Take(*Of("frontend/f"), QuotaKind::kQueries, 1).ok());
  EXPECT_TRUE(security_->Take(*Of("worker/a/w1"), QuotaKind::kQueries, 1).ok());
  EXPECT_FALSE(security_->Take(*Of("worker/a/w1"), QuotaKind::kQueries, 1, "x").ok());
  EXPECT_EQ(security_->QuotaOf(*Of("worker/a/w1"), "x").blocks_per_holder, 7);
  EXPECT_NE(Metrics().find("kvatlas_quota_refused_total{quota=\"queries_per_s\",of=\"tenant\"} 2"),
            std::string::npos)
      << Metrics();
  EXPECT_TRUE(Await(
      [&] {
        std::stringstream text;
        text << std::ifstream(directory_ + "/audit.log").rdbuf();
        return text.str().find("\"event\":\"quota\"") != std::string::npos;
      },
      kLong));
}

// Redis and engines beyond loopback: in clear only where that is said, and then it is shown.
TEST_F(ProcessSecurityTest, WhatGoesInClearBeyondLoopbackIsRefusedOrShown) {
  const std::string shown = "\nkvatlas_insecure 1\n";
  EXPECT_TRUE(security_->MayGoInClear("redis", "127.0.0.1", /*trusted=*/false).ok());
  const absl::Status refused = security_->MayGoInClear("redis", "10.0.0.9", /*trusted=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_NE(refused.message().find("--insecure"), std::string::npos) << refused;
  EXPECT_EQ(Metrics().find(shown), std::string::npos);
  EXPECT_TRUE(security_->MayGoInClear("engines", "10.0.0.9", /*trusted=*/true).ok());
  EXPECT_NE(Metrics().find(shown), std::string::npos) << Metrics();
  // Without a policy, and with --insecure, it is taken and shown.
  for (const bool policy : {false, true}) {
    SecurityOptions options;
    options.process = "test";
    options.insecure = policy;
    options.tls = *pki_->Issue({.identity = "leaf/a/0"});
    if (policy) options.policy = directory_ + "/policy.json";
    const absl::StatusOr<std::shared_ptr<Security>> other = Security::Start(options);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_TRUE((*other)->MayGoInClear("redis", "10.0.0.9", /*trusted=*/false).ok());
    std::string text;
    (*other)->AppendMetrics(&text);
    EXPECT_NE(text.find(shown), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace kvatlas
