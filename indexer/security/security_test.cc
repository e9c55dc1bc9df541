#include "indexer/security/security.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "indexer/base/await.h"
#include "indexer/security/security_test_folder.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);

class ProcessSecurityTest : public testing::Test {
 protected:
  ProcessSecurityTest() { security_ = SecurityTestFolder::Start(Options()); }

  SecurityOptions Options() {
    SecurityOptions options = folder_.ServerOf(folder_.Issue("leaf/a/0"));
    options.look_every = std::chrono::milliseconds(5);
    return options;
  }

  std::string ChainOf(const std::string& identity) {
    std::stringstream text;
    text << std::ifstream(folder_.Issue(identity).certificate).rdbuf();
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

  const SecurityTestFolder folder_{R"("rules": [
      {"identity": "frontend/*", "allow": ["query"], "tenants": ["x"],
       "quota": {"connections": 1, "unread_bytes": 100}},
      {"identity": "worker/*/*", "allow": ["publish"]}],
      "tenants": {"x": {"quota": {"queries_per_s": 2, "blocks_per_holder": 7}}})"};
  std::shared_ptr<Security> security_;
};

TEST_F(ProcessSecurityTest, ARevokedCertificateIsNotRememberedAsAGoodOne) {
  const std::string good = ChainOf("worker/a/w1");
  const std::string bad = ChainOf("worker/a/w2");
  for (const std::string& chain : {good, bad, bad, good}) {
    EXPECT_TRUE(security_->Authenticate(chain, "").ok());
  }
  folder_.WritePolicy(R"(["worker/a/w2"])");
  EXPECT_TRUE(Await([&] { return !security_->Authenticate(bad, "").ok(); }, kLong));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(security_->Authenticate(bad, "").ok());
    const auto still = security_->Authenticate(good, "");
    ASSERT_TRUE(still.ok());
    EXPECT_EQ((*still)->Text(), "worker/a/w1");
  }
  folder_.WritePolicy("[]");
  EXPECT_TRUE(Await([&] { return security_->Authenticate(bad, "").ok(); }, kLong));
}

// The audit log has the reason, which the client does not get.
TEST_F(ProcessSecurityTest, RefusedCredentialsAreRefusedAlikeAndAuditedByNameAndReason) {
  const std::string revoked = ChainOf("worker/a/w2");
  std::stringstream expired;
  expired << std::ifstream(
                 folder_.Issue("worker/a/old", {.identity = "", .valid_for_s = 200}).certificate)
                 .rdbuf();
  folder_.WritePolicy(R"(["worker/a/w2"])");
  ASSERT_TRUE(Await([&] { return !security_->Authenticate(revoked, "").ok(); }, kLong));
  const absl::Status anonymous =
      security_->CheckMethod(**security_->Authenticate("", ""), Verb::kQuery, "10.0.0.9:1");
  EXPECT_TRUE(absl::IsUnauthenticated(anonymous)) << anonymous;
  for (const std::string& chain : {revoked, expired.str(), std::string("no certificate")}) {
    const absl::Status refused = security_->Authenticate(chain, "").status();
    EXPECT_EQ(refused.code(), anonymous.code());
    EXPECT_EQ(refused.message(), anonymous.message());
    security_->AuditUnknown(Verb::kPublish, "10.0.0.9:2", refused);
  }
  for (
      const char* const said :
      {R"("identity":"worker/a/w2","peer":"10.0.0.9:2","verb":"publish","reason":"the certificate is revoked")",
       R"("identity":"worker/a/old","peer":"10.0.0.9:2","verb":"publish","reason":"certificate: certificate has expired")",
       R"("identity":"","peer":"10.0.0.9:2","verb":"publish","reason":"expected a certificate)"}) {
    EXPECT_TRUE(Await([&] { return folder_.Audit().find(said) != std::string::npos; }, kLong))
        << said << " is not in " << folder_.Audit();
  }
}

TEST_F(ProcessSecurityTest, UnreadAnswersBeyondTheBoundCancelTheCall) {
  int cancelled = 0;
  const auto unread = security_->UnreadOf(Of("frontend/f"), "peer", [&] { ++cancelled; });
  ASSERT_TRUE(unread);
  std::shared_ptr<const void> first = unread(60);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(unread(60), nullptr);
  EXPECT_EQ(cancelled, 1);
  first = nullptr;
  EXPECT_NE(unread(60), nullptr);
  EXPECT_EQ(cancelled, 1);
  EXPECT_FALSE(security_->UnreadOf(Of("worker/a/w1"), "peer", [] {})) << "it has no bound";
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
  EXPECT_TRUE(security_->Take(*Of("frontend/f"), QuotaKind::kQueries, 1, "10.0.0.9").ok());
  EXPECT_TRUE(security_->Take(*Of("frontend/g"), QuotaKind::kQueries, 1, "10.0.0.9").ok());
  EXPECT_FALSE(security_->Take(*Of("frontend/f"), QuotaKind::kQueries, 1, "10.0.0.9").ok());
  EXPECT_TRUE(security_->Take(*Of("worker/a/w1"), QuotaKind::kQueries, 1, "10.0.0.9").ok());
  EXPECT_FALSE(security_->Take(*Of("worker/a/w1"), QuotaKind::kQueries, 1, "10.0.0.9", "x").ok());
  EXPECT_EQ(security_->QuotaOf(*Of("worker/a/w1"), "x").blocks_per_holder, 7);
  EXPECT_NE(Metrics().find("kvatlas_quota_refused_total{quota=\"queries_per_s\",of=\"tenant\"} 2"),
            std::string::npos)
      << Metrics();
  EXPECT_TRUE(Await(
      [&] {
        return folder_.Audit().find(
                   R"("event":"quota","allowed":false,"identity":"frontend/f","peer":"10.0.0.9")") !=
               std::string::npos;
      },
      kLong))
      << folder_.Audit();
}

// Redis and engines beyond loopback: in clear only where a flag says so, and then it is shown.
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
    SecurityOptions options = Options();
    options.insecure = policy;
    if (!policy) options.policy.clear();
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
