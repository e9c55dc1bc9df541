#include "indexer/security/policy.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvatlas {
namespace {

std::shared_ptr<const AccessPolicy> Parsed(const std::string& rules, const std::string& more = "") {
  const auto policy = AccessPolicy::Parse(
      absl::StrCat(R"({"version": 1, "trust_domain": "t", "rules": [)", rules, "]", more, "}"));
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.ok() ? *policy : std::make_shared<const AccessPolicy>();
}

Identity Of(const char* text) { return *ParseIdentity(text); }

bool Allowed(const AccessPolicy& policy, const char* identity, Verb verb,
             const PolicyTarget& target = {}) {
  return policy.Decide(Of(identity), verb, target).allowed;
}

TEST(AccessPolicyTest, AnErrorSaysItsPlaceAndWhatWasExpected) {
  struct Case {
    const char* json;
    const char* said;
  };
  for (const Case& one : std::vector<Case>{
           {"", "not JSON"},
           {"[]", "expected an object"},
           {R"({"rules": []})", "version: expected 1"},
           {R"({"version": 2, "rules": []})", "version: expected 1"},
           {R"({"version": 1})", "rules: expected a list"},
           {R"({"version": 1, "rule": []})", "did you mean rules?"},
           {R"({"version": 1, "rules": [{}]})", "rules[0].identity: expected"},
           {R"({"version": 1, "rules": [{"identity": "worker/*", "allow": []}]})",
            "rules[0].identity"},
           {R"({"version": 1, "rules": [{"identity": "node/**", "allow": []}]})",
            "rules[0].identity"},
           {R"({"version": 1, "rules": [{"identity": "*", "allow": ["publsh"]}]})",
            "rules[0].allow[0]: unknown verb \"publsh\"; did you mean publish?"},
           {R"({"version": 1, "rules": [{"identity": "*", "allow": "publish"}]})",
            "rules[0].allow: expected a list"},
           {R"({"version": 1, "rules": [{"identity": "*", "allow": [], "url_hosts": ["a/b"]}]})",
            "rules[0].url_hosts[0]"},
           {R"({"version": 1, "rules": [{"identity": "*", "allow": [], "quota": {"streams": 0}}]})",
            "rules[0].quota.streams: expected a number above 0"},
           {R"({"version": 1, "rules": [{"identity": "*", "allow": [], "quota": {"stream": 1}}]})",
            "did you mean streams?"},
           {R"({"version": 1, "rules": [], "revoked": ["nonsense"]})", "revoked[0]"},
           {R"({"version": 1, "rules": [], "revoked": ["serial:zz"]})", "revoked[0]"},
           {R"({"version": 1, "rules": [], "revoked": ["sha256:AA:BB"]})", "64 digits"},
           {R"({"version": 1, "rules": [], "names": {"leaf": "leaf/a/0"}})", "dns:NAME"},
           {R"({"version": 1, "rules": [], "tenants": {"a": {"salt": "secret"}}})", "@FILE"},
           {R"({"version": 1, "rules": [], "tenants": {"a": {"pool": ""}}})", "need a \"salt\""},
           {R"({"version": 1, "rules": [], "rules": []})", "given twice"},
       }) {
    const auto policy = AccessPolicy::Parse(one.json);
    ASSERT_FALSE(policy.ok()) << one.json;
    EXPECT_NE(policy.status().message().find(one.said), std::string::npos)
        << one.json << " says: " << policy.status();
  }
}

TEST(AccessPolicyTest, NothingIsAllowedButHealth) {
  const AccessPolicy none;
  EXPECT_FALSE(Allowed(none, "operator/o", Verb::kStatus));
  EXPECT_TRUE(Allowed(none, "anonymous", Verb::kHealth));
}

TEST(AccessPolicyTest, AWorkerIsItselfInItsOwnCell) {
  const auto policy = Parsed(R"({"identity": "worker/*/*", "allow": ["publish"]})");
  EXPECT_TRUE(
      Allowed(*policy, "worker/a/1", Verb::kPublish, {.tenant = "", .holder = "1", .cell = "a"}));
  EXPECT_FALSE(Allowed(*policy, "worker/a/1", Verb::kPublish, {.holder = "2", .cell = "a"}));
  EXPECT_FALSE(Allowed(*policy, "worker/a/1", Verb::kPublish, {.holder = "1", .cell = "b"}));
  EXPECT_FALSE(Allowed(*policy, "worker/a/1", Verb::kQuery));
  const auto relay =
      Parsed(R"({"identity": "worker/*/relay", "allow": ["publish"], "holders": ["gpu-*"]})");
  EXPECT_TRUE(Allowed(*relay, "worker/a/relay", Verb::kPublish, {.holder = "gpu-7", .cell = "a"}));
  EXPECT_FALSE(Allowed(*relay, "worker/a/relay", Verb::kPublish, {.holder = "relay", .cell = "a"}));
  EXPECT_FALSE(Allowed(*relay, "worker/a/relay", Verb::kPublish, {.holder = "gpu-7", .cell = "b"}));
}

TEST(AccessPolicyTest, ALeafReportsAndTakesSnapshotsForItsOwnCell) {
  const auto policy = Parsed(R"({"identity": "*", "allow": ["report", "snapshot"]})");
  EXPECT_TRUE(Allowed(*policy, "leaf/a/-", Verb::kReport, {.cell = "a", .replica = ""}));
  EXPECT_FALSE(Allowed(*policy, "leaf/a/-", Verb::kReport, {.cell = "a", .replica = "r"}));
  EXPECT_FALSE(Allowed(*policy, "leaf/a/r", Verb::kReport, {.cell = "b", .replica = "r"}));
  EXPECT_FALSE(Allowed(*policy, "leaf/a/r", Verb::kSnapshot, {.cell = "b"}));
  EXPECT_TRUE(Allowed(*policy, "node/n", Verb::kReport, {.cell = "n"}));
  EXPECT_FALSE(Allowed(*policy, "node/n", Verb::kReport, {.cell = "m"}));
}

TEST(AccessPolicyTest, OneRuleMustAllowEverything) {
  const auto policy = Parsed(R"(
      {"identity": "gateway/g", "allow": ["route"], "tenants": ["x"], "models": ["small-*"]},
      {"identity": "gateway/g", "allow": ["route"], "tenants": ["y"], "models": ["*"]})");
  EXPECT_TRUE(Allowed(*policy, "gateway/g", Verb::kRoute, {.model = "small-1", .tenant = "x"}));
  EXPECT_FALSE(Allowed(*policy, "gateway/g", Verb::kRoute, {.model = "large", .tenant = "x"}));
  EXPECT_TRUE(Allowed(*policy, "gateway/g", Verb::kRoute, {.model = "large", .tenant = "y"}));
  EXPECT_FALSE(Allowed(*policy, "gateway/g", Verb::kRoute, {.model = "large", .tenant = ""}));
  EXPECT_EQ(policy->TenantsOf(Of("gateway/g"), Verb::kRoute), (std::vector<std::string>{"x", "y"}));
  const PolicyDecision decision =
      policy->Decide(Of("gateway/g"), Verb::kRoute, {.model = "large", .tenant = "z"});
  EXPECT_EQ(decision.reason, "rules[0] does not allow tenant \"z\"");
}

TEST(AccessPolicyTest, ACredentialOfATenantIsOfThatTenantAlone) {
  const auto policy = Parsed(R"({"identity": "gateway/*", "allow": ["route"], "tenants": ["*"]})");
  Identity identity = Of("gateway/g");
  identity.tenant = "x";
  EXPECT_TRUE(policy->Decide(identity, Verb::kRoute, {.tenant = "x"}).allowed);
  EXPECT_FALSE(policy->Decide(identity, Verb::kRoute, {.tenant = "y"}).allowed);
  EXPECT_FALSE(policy->Decide(identity, Verb::kRoute, {.tenant = ""}).allowed);
  EXPECT_EQ(policy->TenantsOf(identity, Verb::kRoute), std::vector<std::string>{"x"});
}

TEST(AccessPolicyTest, UrlHostsAreAddressesRangesNamesAndSuffixes) {
  const auto policy = Parsed(
      R"({"identity": "*", "allow": ["register"],
          "url_hosts": ["10.0.0.0/8", "fd00::/8", "engine.example", "*.pods"]})");
  const auto allows = [&](const std::string& host) {
    return policy->Decide(Of("operator/o"), Verb::kRegister, {.url_hosts = {host}}).allowed;
  };
  for (const char* good : {"10.255.0.1", "fd00::1", "engine.example", "a.b.pods"})
    EXPECT_TRUE(allows(good)) << good;
  for (const char* bad : {"11.0.0.1", "::1", "example", "pods", "a.pods.evil", "", "10.0.0.1.evil"})
    EXPECT_FALSE(allows(bad)) << bad;
  EXPECT_FALSE(
      policy->Decide(Of("operator/o"), Verb::kRegister, {.url_hosts = {"10.0.0.1", "evil.example"}})
          .allowed);
}

TEST(AccessPolicyTest, HostsOfUrls) {
  EXPECT_EQ(HostOfUrl("http://h:80/x"), "h");
  EXPECT_EQ(HostOfUrl("http://user:pw@h/x@y"), "h");
  EXPECT_EQ(HostOfUrl("h:7410"), "h");
  EXPECT_EQ(HostOfUrl("tcp://[::1]:5557"), "::1");
  EXPECT_EQ(HostOfUrl("http://h?@evil"), "h");
}

TEST(AccessPolicyTest, IdentitiesAndCredentialsAreRevoked) {
  const auto policy = Parsed("", R"(, "revoked": ["worker/a/7", "serial:00:1F", "token:t"])");
  Identity identity = Of("worker/a/8");
  EXPECT_FALSE(policy->Revoked(identity));
  identity.credential = {"serial:1f"};
  EXPECT_TRUE(policy->Revoked(identity));
  identity.credential = {"token:t"};
  EXPECT_TRUE(policy->Revoked(identity));
  EXPECT_TRUE(policy->Revoked(Of("worker/a/7")));
}

TEST(AccessPolicyTest, CertificatesAreMappedByTheirNames) {
  const auto policy =
      Parsed("", R"(, "names": {"dns:Leaf.example": "leaf/a/0", "cn:ops": "operator/ops"})");
  CertificateNames names;
  EXPECT_FALSE(policy->IdentityOf(names).ok());
  names.common_name = "ops";
  EXPECT_EQ(policy->IdentityOf(names)->Text(), "operator/ops");
  names.dns = {"leaf.example"};
  EXPECT_EQ(policy->IdentityOf(names)->Text(), "leaf/a/0");
  names.uris = {"spiffe://t/kvatlas/worker/a/1"};
  EXPECT_EQ(policy->IdentityOf(names)->Text(), "worker/a/1");
  // A foreign SPIFFE ID is not made good by a name.
  names.uris = {"spiffe://other/kvatlas/worker/a/1"};
  EXPECT_FALSE(policy->IdentityOf(names).ok());
}

TEST(AccessPolicyTest, SaltsComeFromFilesThatOthersCannotRead) {
  std::string path = testing::TempDir() + "/salt_XXXXXX";
  close(mkstemp(path.data()));
  std::ofstream(path) << "0123456789abcdef\n";
  const std::string json =
      absl::StrCat(R"({"version": 1, "rules": [], "tenants": {"x": {"salt": "@)", path,
                   R"(", "public_prefixes": true}}})");
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_FALSE(AccessPolicy::Parse(json).ok());
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  const auto policy = AccessPolicy::Parse(json);
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ((*policy)->Tenant("x")->salt, "0123456789abcdef");
  EXPECT_TRUE((*policy)->Tenant("x")->public_prefixes);
  EXPECT_EQ((*policy)->Tenant("y"), nullptr);
  std::ofstream(path) << "short";
  EXPECT_FALSE(AccessPolicy::Parse(json).ok());
}

TEST(AccessPolicyTest, WhatLooksLikeAnOversightIsTold) {
  EXPECT_EQ(Parsed(R"({"identity": "viewer/*", "allow": ["status"]})")->Doubts().size(), 0);
  EXPECT_EQ(Parsed(R"({"identity": "*", "allow": ["status"]})")->Doubts().size(), 1);
  EXPECT_EQ(Parsed(R"({"identity": "worker/*/*", "allow": ["operate"]})")->Doubts().size(), 1);
}

// The rules of the header, one after the other, over names of one letter.
struct SlowRule {
  std::string role;  // empty: any
  std::string cell = "*";
  std::string name = "*";
  std::vector<int> verbs;
  bool has_tenants = false;
  std::vector<std::string> tenants;
};

bool SlowMatches(const std::string& pattern, const std::string& text) {
  return pattern == "*" || pattern == text;
}

TEST(AccessPolicyTest, RandomPoliciesDecideAsTheSlowTwin) {
  std::mt19937 random(20261124);
  const auto pick = [&random](int below) { return static_cast<int>(random() % below); };
  const std::vector<std::string> kRoles = {"worker", "leaf", "gateway"};
  const std::vector<std::string> kNames = {"a", "b", "*"};
  const std::vector<std::string> kTenants = {"x", "y", "*", ""};
  int allowed = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<SlowRule> slow;
    std::vector<std::string> json;
    for (int i = pick(5); i >= 0; --i) {
      SlowRule rule;
      if (pick(6) > 0) rule.role = kRoles[pick(3)];
      rule.cell = kNames[pick(3)];
      rule.name = kNames[pick(3)];
      std::vector<std::string> verbs;
      for (int verb = 0; verb < 5; ++verb) {
        if (pick(2) == 0) continue;
        rule.verbs.push_back(verb);
        verbs.push_back(absl::StrCat("\"", std::string(VerbName(static_cast<Verb>(verb))), "\""));
      }
      std::string identity = "*";
      if (rule.role == "gateway")
        identity = "gateway/" + rule.name;
      else if (!rule.role.empty())
        identity = rule.role + "/" + rule.cell + "/" + rule.name;
      std::string text = absl::StrCat("{\"identity\": \"", identity, "\", \"allow\": [",
                                      absl::StrJoin(verbs, ","), "]");
      rule.has_tenants = pick(2) == 0;
      if (rule.has_tenants) {
        std::vector<std::string> quoted;
        for (int t = pick(3); t > 0; --t) {
          rule.tenants.push_back(kTenants[pick(4)]);
          quoted.push_back("\"" + rule.tenants.back() + "\"");
        }
        absl::StrAppend(&text, ", \"tenants\": [", absl::StrJoin(quoted, ","), "]");
      }
      slow.push_back(rule);
      json.push_back(text + "}");
    }
    const auto policy = Parsed(absl::StrJoin(json, ","));
    for (int question = 0; question < 60; ++question) {
      const std::string role = kRoles[pick(3)];
      const std::string cell = kNames[pick(2)];
      const std::string name = kNames[pick(2)];
      const Identity identity =
          *ParseIdentity(role == "gateway" ? "gateway/" + name : role + "/" + cell + "/" + name);
      const int verb = pick(5);
      const std::string tenant = kTenants[pick(2) == 0 ? 3 : pick(2)];
      bool expected = false;
      for (const SlowRule& rule : slow) {
        bool of = rule.role.empty();
        if (rule.role == role) {
          of = SlowMatches(rule.name, name) && (role == "gateway" || SlowMatches(rule.cell, cell));
        }
        bool has_verb = false;
        const auto means = [&](Verb said, Verb asked) {
          return said == asked || (said == Verb::kRoute && asked == Verb::kPick);
        };
        for (int one : rule.verbs)
          has_verb |= means(static_cast<Verb>(one), static_cast<Verb>(verb));
        bool has_tenant = !rule.has_tenants && tenant.empty();
        for (const std::string& one : rule.tenants) has_tenant |= SlowMatches(one, tenant);
        expected |= of && has_verb && has_tenant;
      }
      const PolicyDecision decision =
          policy->Decide(identity, static_cast<Verb>(verb), {.tenant = tenant});
      ASSERT_EQ(decision.allowed, expected) << absl::StrJoin(json, "\n") << "\n"
                                            << identity.Text() << " verb " << verb << " tenant \""
                                            << tenant << "\": " << decision.reason;
      allowed += expected;
    }
  }
  EXPECT_GT(allowed, 1000);
}

}  // namespace
}  // namespace kvatlas
