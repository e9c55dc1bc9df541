#include "indexer/security/identity.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>
#include <string>

#include "indexer/security/pki.h"

namespace kvatlas {
namespace {

TEST(IdentityTest, EveryTextFormIsReadBack) {
  for (const char* text : {"worker/a/7", "leaf/cell-1/-", "leaf/a/r1", "node/n", "frontend/f-0",
                           "gateway/team.x", "operator/ops", "viewer/v", "anonymous"}) {
    const absl::StatusOr<Identity> identity = ParseIdentity(text);
    ASSERT_TRUE(identity.ok()) << identity.status();
    EXPECT_EQ(identity->Text(), text);
  }
}

TEST(IdentityTest, WhatIsNoIdentityIsRefused) {
  for (const char* text :
       {"", "worker", "worker/a", "worker/a/b/c", "leaf/a", "node", "node/", "node/a/b", "nodes/a",
        "worker//b", "worker/*/b", "node/a b", "node/a\n", "anonymous/x", "Worker/a/b"}) {
    EXPECT_FALSE(ParseIdentity(text).ok()) << text;
  }
}

TEST(IdentityTest, SpiffeIdsAreOfTheTrustDomain) {
  EXPECT_EQ(ParseSpiffeId("spiffe://t/kvatlas/worker/a/7", "t")->Text(), "worker/a/7");
  for (const char* uri :
       {"spiffe://u/kvatlas/worker/a/7", "spiffe://t/worker/a/7", "spiffe://t/kvatlas/worker/a",
        "spiffe://t.evil/kvatlas/worker/a/7", "https://t/kvatlas/worker/a/7",
        "spiffe://t/kvatlas/anonymous", "spiffe://t/kvatlas/operator/a/../../x"}) {
    EXPECT_FALSE(ParseSpiffeId(uri, "t").ok()) << uri;
  }
}

TEST(IdentityTest, ACertificateTellsItsNames) {
  std::string directory = testing::TempDir() + "/identity_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const absl::StatusOr<Pki> pki = Pki::Create(directory + "/pki", "t.example");
  ASSERT_TRUE(pki.ok()) << pki.status();
  const absl::StatusOr<TlsPaths> paths = pki->Issue({.identity = "leaf/a/-",
                                                     .common_name = "legacy",
                                                     .dns = {"leaf.example"},
                                                     .ips = {"10.0.0.1", "::1"}});
  ASSERT_TRUE(paths.ok()) << paths.status();
  std::stringstream pem;
  pem << std::ifstream(paths->certificate).rdbuf();
  const absl::StatusOr<CertificateNames> names = ReadCertificate(pem.str());
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_EQ(names->uris, std::vector<std::string>{"spiffe://t.example/kvatlas/leaf/a/-"});
  EXPECT_EQ(names->dns, std::vector<std::string>{"leaf.example"});
  EXPECT_EQ(names->ips, (std::vector<std::string>{"10.0.0.1", "::1"}));
  EXPECT_EQ(names->common_name, "legacy");
  EXPECT_EQ(names->sha256.size(), 64);
  EXPECT_FALSE(names->serial.empty());
  EXPECT_LT(names->not_before_unix_s, names->not_after_unix_s);
  EXPECT_FALSE(ReadCertificate("").ok());
  EXPECT_FALSE(
      ReadCertificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----").ok());
}

}  // namespace
}  // namespace kvatlas
