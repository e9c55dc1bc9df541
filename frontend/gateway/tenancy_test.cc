#include "frontend/gateway/tenancy.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "indexer/security/pki.h"

namespace kvatlas {
namespace {

class TenancyTest : public testing::Test {
 protected:
  TenancyTest() {
    std::string directory = testing::TempDir() + "/tenancy_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    const absl::StatusOr<Pki> pki = Pki::Create(directory + "/pki", "t");
    EXPECT_TRUE(pki.ok()) << pki.status();
    const std::string salt = directory + "/salt";
    std::ofstream(salt) << "a secret of many bytes";
    chmod(salt.c_str(), 0600);
    std::ofstream(directory + "/policy") << R"({"version": 1, "trust_domain": "t", "rules": [
        {"identity": "gateway/x", "allow": ["route", "feedback"], "tenants": ["x"]},
        {"identity": "gateway/many", "allow": ["route"], "tenants": ["x", "y"]},
        {"identity": "gateway/all", "allow": ["route"], "tenants": ["*"]},
        {"identity": "gateway/pairs", "allow": ["route"], "models": ["m"], "tenants": ["x"]},
        {"identity": "gateway/pairs", "allow": ["route"], "models": ["n"], "tenants": ["y"]},
        {"identity": "gateway/none", "allow": ["route"]}],
      "tenants": {"x": {"salt": "@)" << salt
                                         << R"("},
                  "y": {"salt": "@)" << salt
                                         << R"(", "pool": ""},
                  "open": {"salt": "@)" << salt
                                         << R"(", "public_prefixes": true}}})";
    SecurityOptions options;
    options.process = "test";
    options.tls = *pki->Issue({.identity = "frontend/f"});
    options.policy = directory + "/policy";
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(options);
    EXPECT_TRUE(security.ok()) << security.status();
    tenancy_ = std::make_unique<Tenancy>(*security);
  }

  std::string TenantOf(const char* identity, const char* claimed) const {
    const absl::StatusOr<std::string> tenant =
        tenancy_->Admit(*ParseIdentity(identity), {.tenant = claimed});
    return tenant.ok() ? "\"" + *tenant + "\"" : std::string(tenant.status().message());
  }

  nlohmann::json Put(const char* tenant, const std::string& body) const {
    auto text = std::make_shared<const std::string>(body);
    const absl::StatusOr<std::string> salt = tenancy_->PutSalt(tenant, &text);
    EXPECT_TRUE(salt.ok()) << salt.status();
    return nlohmann::json::parse(*text);
  }

  std::unique_ptr<Tenancy> tenancy_;
};

TEST_F(TenancyTest, TheCredentialDecidesTheTenant) {
  const std::string refused(kNotAllowed);
  EXPECT_EQ(TenantOf("gateway/x", ""), "\"x\"");
  EXPECT_EQ(TenantOf("gateway/x", "x"), "\"x\"");
  EXPECT_EQ(TenantOf("gateway/x", "y"), refused);
  EXPECT_EQ(TenantOf("gateway/x", "no such tenant"), refused);
  EXPECT_EQ(TenantOf("gateway/many", "y"), "\"y\"");
  EXPECT_EQ(TenantOf("gateway/many", ""), refused);
  EXPECT_EQ(TenantOf("gateway/all", "any"), "\"any\"");
  EXPECT_EQ(TenantOf("gateway/all", ""), "\"\"");
  EXPECT_EQ(TenantOf("gateway/none", ""), "\"\"");
  EXPECT_EQ(TenantOf("gateway/none", "x"), refused);
  Identity bound = *ParseIdentity("gateway/all");
  bound.tenant = "b";
  EXPECT_EQ(*tenancy_->Admit(bound, {}), "b");
  EXPECT_FALSE(tenancy_->Admit(bound, {.tenant = "c"}).ok());
}

TEST_F(TenancyTest, WithoutAPolicyTheClaimCounts) {
  const Tenancy open(Security::Open());
  EXPECT_EQ(*open.Admit({}, {.tenant = "any", .model = "m"}), "any");
  EXPECT_EQ(open.MayUseOf(std::make_shared<const Identity>(), "any"), nullptr);
  EXPECT_EQ(open.SaltOf("x", "m", "mine"), "mine");
  EXPECT_TRUE(open.Sees({}, "any"));
}

TEST_F(TenancyTest, ARuleMustAllowModelAndTenantTogether) {
  const auto may = [&](const char* identity, const char* tenant, const char* model) {
    return tenancy_->Admit(*ParseIdentity(identity), {.tenant = tenant, .model = model}).ok();
  };
  EXPECT_TRUE(may("gateway/pairs", "x", "m"));
  EXPECT_TRUE(may("gateway/pairs", "y", "n"));
  EXPECT_FALSE(may("gateway/pairs", "x", "n"));
  EXPECT_FALSE(may("gateway/pairs", "y", "m"));
  EXPECT_FALSE(may("gateway/pairs", "x", kModelNotRead));
  EXPECT_TRUE(may("gateway/all", "x", kModelNotRead));
  EXPECT_TRUE(tenancy_->MayRoute(*ParseIdentity("gateway/pairs"), "x", "m"));
  EXPECT_FALSE(tenancy_->MayRoute(*ParseIdentity("gateway/pairs"), "x", "n"));
}

TEST_F(TenancyTest, WhatCannotBeSaltedIsRefusedWhereTheTenantIs) {
  const auto admit = [&](const char* tenant, const char* no_salt) {
    return tenancy_->Admit(*ParseIdentity("gateway/all"), {.tenant = tenant, .no_salt = no_salt});
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(admit("x", "say it otherwise").status()));
  EXPECT_TRUE(admit("x", "").ok());
  EXPECT_TRUE(admit("open", "say it otherwise").ok());
  EXPECT_TRUE(admit("unsalted", "say it otherwise").ok());
}

TEST_F(TenancyTest, TenantsOfAPoolAreServedByItsEngines) {
  EXPECT_EQ(tenancy_->PoolOf("x"), "x");
  EXPECT_EQ(tenancy_->PoolOf("y"), "");
  EXPECT_EQ(tenancy_->PoolOf("unknown"), "unknown");
}

TEST_F(TenancyTest, SaltsDifferByTenantModelAndCaller) {
  const std::string one = tenancy_->SaltOf("x", "m", "");
  EXPECT_EQ(one.size(), 32);
  EXPECT_EQ(tenancy_->SaltOf("x", "m", ""), one);
  EXPECT_NE(tenancy_->SaltOf("y", "m", ""), one);
  EXPECT_NE(tenancy_->SaltOf("x", "n", ""), one);
  EXPECT_NE(tenancy_->SaltOf("x", "m", "mine"), one);
  EXPECT_EQ(tenancy_->SaltOf("unsalted", "m", "mine"), "mine");
  EXPECT_EQ(tenancy_->SaltOf("open", "m", ""), "");
  EXPECT_NE(tenancy_->SaltOf("open", "m", "mine"), "mine");
}

TEST_F(TenancyTest, ABodyHasTheTenantsSaltWhateverItsCallerWrote) {
  const std::string salt = tenancy_->SaltOf("x", "m", "");
  EXPECT_EQ(Put("x", R"({"model":"m","messages":[]})")["cache_salt"], salt);
  // A field that is there twice, or in escapes, is there once afterwards.
  const nlohmann::json twice =
      Put("x", R"({"cache_salt":"a","model":"m","cache\u005fsalt":"b","n":1})");
  EXPECT_EQ(twice["cache_salt"], tenancy_->SaltOf("x", "m", "b"));
  EXPECT_EQ(twice["n"], 1);
  EXPECT_FALSE(Put("open", R"({"model":"m"})").contains("cache_salt"));
  EXPECT_TRUE(Put("open", R"({"model":"m","cache_salt":""})")["cache_salt"].is_null());
  EXPECT_EQ(Put("unsalted", R"({"model":"m","cache_salt":"a"})")["cache_salt"], "a");
  for (const char* bad : {"", "[]", "{", "\"x\"", "{} {}", "{\"cache_salt\":\"a\"", "{,}"}) {
    auto body = std::make_shared<const std::string>(bad);
    EXPECT_FALSE(tenancy_->PutSalt("x", &body).ok()) << bad;
  }
}

TEST_F(TenancyTest, DecisionsAreSeenByTheirTenant) {
  EXPECT_TRUE(tenancy_->Sees(*ParseIdentity("gateway/x"), "x"));
  EXPECT_FALSE(tenancy_->Sees(*ParseIdentity("gateway/x"), "y"));
  EXPECT_FALSE(tenancy_->Sees(*ParseIdentity("gateway/many"), "x"));
}

}  // namespace
}  // namespace kvatlas
