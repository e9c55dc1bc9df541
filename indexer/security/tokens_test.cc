#include "indexer/security/tokens.h"

#include <gtest/gtest.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rsa.h>
#include <stdlib.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

constexpr int64_t kNow = 1'800'000'000;

using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

std::string Base64(const std::string& bytes) {
  std::string text;
  absl::WebSafeBase64Escape(bytes, &text);
  while (!text.empty() && text.back() == '=') text.pop_back();
  return text;
}

std::string NumberOf(EVP_PKEY* key, const char* name, size_t size = 0) {
  BIGNUM* number = nullptr;
  EXPECT_EQ(EVP_PKEY_get_bn_param(key, name, &number), 1);
  std::string bytes(std::max<size_t>(size, static_cast<size_t>(BN_num_bytes(number))), '\0');
  BN_bn2binpad(number, reinterpret_cast<unsigned char*>(bytes.data()),
               static_cast<int>(bytes.size()));
  BN_free(number);
  return Base64(bytes);
}

std::string Sign(EVP_PKEY* key, const std::string& algorithm, const std::string& text) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_PKEY_CTX* options = nullptr;
  EXPECT_EQ(EVP_DigestSignInit(context.get(), &options,
                               algorithm == "EdDSA" ? nullptr : EVP_sha256(), nullptr, key),
            1);
  if (algorithm == "PS256") {
    EVP_PKEY_CTX_set_rsa_padding(options, RSA_PKCS1_PSS_PADDING);
    EVP_PKEY_CTX_set_rsa_pss_saltlen(options, RSA_PSS_SALTLEN_DIGEST);
  }
  size_t size = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  EVP_DigestSign(context.get(), nullptr, &size, bytes, text.size());
  std::string signature(size, '\0');
  EXPECT_EQ(EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                           bytes, text.size()),
            1);
  signature.resize(size);
  if (algorithm != "ES256") return signature;
  const auto* der = reinterpret_cast<const unsigned char*>(signature.data());
  ECDSA_SIG* const parts = d2i_ECDSA_SIG(nullptr, &der, static_cast<long>(signature.size()));
  std::string raw(64, '\0');
  BN_bn2binpad(ECDSA_SIG_get0_r(parts), reinterpret_cast<unsigned char*>(raw.data()), 32);
  BN_bn2binpad(ECDSA_SIG_get0_s(parts), reinterpret_cast<unsigned char*>(raw.data()) + 32, 32);
  ECDSA_SIG_free(parts);
  return raw;
}

class TokensTest : public testing::Test {
 protected:
  TokensTest()
      : rsa_(EVP_RSA_gen(2048), EVP_PKEY_free),
        ec_(EVP_EC_gen("P-256"), EVP_PKEY_free),
        ed_(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free) {
    std::string directory = testing::TempDir() + "/tokens_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
    return directory_ + "/" + name;
  }

  std::string Jwks() {
    unsigned char raw[32];
    size_t size = sizeof(raw);
    EVP_PKEY_get_raw_public_key(ed_.get(), raw, &size);
    return absl::StrCat(R"({"keys":[{"kty":"RSA","kid":"r","n":")",
                        NumberOf(rsa_.get(), OSSL_PKEY_PARAM_RSA_N), R"(","e":")",
                        NumberOf(rsa_.get(), OSSL_PKEY_PARAM_RSA_E),
                        R"("},{"kty":"EC","crv":"P-256","kid":"e","x":")",
                        NumberOf(ec_.get(), OSSL_PKEY_PARAM_EC_PUB_X, 32), R"(","y":")",
                        NumberOf(ec_.get(), OSSL_PKEY_PARAM_EC_PUB_Y, 32),
                        R"("},{"kty":"OKP","crv":"Ed25519","kid":"d","x":")",
                        Base64(std::string(reinterpret_cast<char*>(raw), size)),
                        R"("},{"kty":"oct","kid":"secret","k":"AAAA"}]})");
  }

  std::shared_ptr<const Tokens> Read() {
    const auto tokens = Tokens::Read({.tokens = "",
                                      .jwks = Write("jwks", Jwks()),
                                      .jwt_issuer = "https://idp",
                                      .jwt_audience = "kvatlas"});
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens.ok() ? *tokens : nullptr;
  }

  static std::string Claims(const std::string& more = "") {
    return absl::StrCat(R"({"iss":"https://idp","aud":"kvatlas","sub":"team x","exp":)", kNow + 60,
                        more, "}");
  }

  std::string Jwt(EVP_PKEY* key, const std::string& algorithm, const std::string& claims = Claims(),
                  const std::string& header_more = "") const {
    const std::string text =
        absl::StrCat(Base64(absl::StrCat(R"({"alg":")", algorithm, "\"", header_more, "}")), ".",
                     Base64(claims));
    return absl::StrCat(text, ".", Base64(Sign(key, algorithm, text)));
  }

  KeyPtr rsa_;
  KeyPtr ec_;
  KeyPtr ed_;
  std::string directory_;
};

TEST_F(TokensTest, AListedTokenIsKnownByItsHash) {
  const std::string path =
      Write("list", absl::StrCat("# comment\n\nsha256:", TokenHash("one"),
                                 " gateway/g tenant=x name=first expires=2027-01-31 # end\n",
                                 "sha256:", TokenHash("two"), "\toperator/o\n"));
  const auto tokens = Tokens::Read({.tokens = path});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const auto one = (*tokens)->IdentityOf("one", 1'700'000'000);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->Text(), "gateway/g");
  EXPECT_EQ(one->tenant, "x");
  EXPECT_EQ(one->credential, std::vector<std::string>{"token:first"});
  EXPECT_FALSE((*tokens)->IdentityOf("one", 1'900'000'000).ok());
  EXPECT_EQ((*tokens)->IdentityOf("two", 1'900'000'000)->Text(), "operator/o");
  for (const std::string& bad : {std::string(), std::string("three"), std::string(100'000, 'x')}) {
    const absl::Status status = (*tokens)->IdentityOf(bad, kNow).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(status.message().find("three"), std::string::npos);
  }
}

TEST_F(TokensTest, AnErrorNamesTheLine) {
  for (const char* bad : {"nonsense", "sha256:12 gateway/g", "md5:00 gateway/g"}) {
    const auto tokens = Tokens::Read({.tokens = Write("list", absl::StrCat("# one\n", bad))});
    ASSERT_FALSE(tokens.ok());
    EXPECT_NE(tokens.status().message().find("list:2:"), std::string::npos) << tokens.status();
  }
  const std::string hash = "sha256:" + TokenHash("t");
  for (const char* rest : {"", " stranger/x", " gateway/g what=1", " gateway/g expires=soon"}) {
    EXPECT_FALSE(Tokens::Read({.tokens = Write("list", hash + rest)}).ok()) << rest;
  }
  EXPECT_FALSE(Tokens::Read({.tokens = directory_ + "/none"}).ok());
}

TEST_F(TokensTest, AJwtOfEachAlgorithmIsTaken) {
  const auto tokens = Read();
  for (const auto& [algorithm, key] :
       {std::pair("RS256", rsa_.get()), std::pair("PS256", rsa_.get()),
        std::pair("ES256", ec_.get()), std::pair("EdDSA", ed_.get())}) {
    const auto identity =
        tokens->IdentityOf(Jwt(key, algorithm, Claims(R"(,"kvatlas_tenant":"x")")), kNow);
    ASSERT_TRUE(identity.ok()) << algorithm << ": " << identity.status();
    EXPECT_EQ(identity->Text(), "gateway/team_x");
    EXPECT_EQ(identity->tenant, "x");
    EXPECT_EQ(identity->not_after_unix_s, kNow + 60);
  }
  EXPECT_EQ(tokens
                ->IdentityOf(Jwt(ec_.get(), "ES256", Claims(R"(,"kvatlas_identity":"operator/o")"),
                                 R"(,"kid":"e")"),
                             kNow)
                ->Text(),
            "operator/o");
}

TEST_F(TokensTest, ClaimsThatAreNotForUsAreRefused) {
  const auto tokens = Read();
  const auto refused = [&](const std::string& claims) {
    return !tokens->IdentityOf(Jwt(ec_.get(), "ES256", claims), kNow).ok();
  };
  EXPECT_FALSE(refused(Claims()));
  EXPECT_FALSE(refused(absl::StrCat(
      R"({"iss":"https://idp","aud":["other","kvatlas"],"sub":"s","exp":)", kNow + 1, "}")));
  for (const std::string& claims : std::vector<std::string>{
           R"({"iss":"https://idp","aud":"kvatlas","sub":"s"})",
           absl::StrCat(R"({"iss":"https://idp","aud":"kvatlas","sub":"s","exp":)", kNow, "}"),
           absl::StrCat(R"({"iss":"https://evil","aud":"kvatlas","sub":"s","exp":)", kNow + 9, "}"),
           absl::StrCat(R"({"iss":"https://idp","aud":"other","sub":"s","exp":)", kNow + 9, "}"),
           absl::StrCat(R"({"iss":"https://idp","aud":"kvatlas","exp":)", kNow + 9, "}"),
           Claims(absl::StrCat(R"(,"nbf":)", kNow + 3600)), Claims(R"(,"kvatlas_tenant":["x"])"),
           Claims(R"(,"kvatlas_identity":7)"), Claims(R"(,"kvatlas_identity":"root")"), "[]",
           "nonsense"}) {
    EXPECT_TRUE(refused(claims)) << claims;
  }
}

TEST_F(TokensTest, NoSignatureButThatOfAKeyOfTheFileCounts) {
  const auto tokens = Read();
  const auto refused = [&](const std::string& token) {
    return !tokens->IdentityOf(token, kNow).ok();
  };
  const std::string good = Jwt(ec_.get(), "ES256");
  EXPECT_FALSE(refused(good));
  const KeyPtr other(EVP_EC_gen("P-256"), EVP_PKEY_free);
  EXPECT_TRUE(refused(Jwt(other.get(), "ES256")));
  EXPECT_TRUE(refused(Jwt(ec_.get(), "ES256", Claims(), R"(,"kid":"r")")));
  EXPECT_TRUE(refused(Jwt(ec_.get(), "ES256", Claims(), R"(,"crit":["x"])")));
  const std::string body = Base64(Claims());
  EXPECT_TRUE(refused(absl::StrCat(Base64(R"({"alg":"none"})"), ".", body, ".")));
  EXPECT_TRUE(refused(absl::StrCat(Base64(R"({"alg":"none"})"), ".", body, ".AAAA")));
  // HMAC with the public key as its secret, which libraries that trust "alg" accept.
  const std::string head = Base64(R"({"alg":"HS256"})") + "." + body;
  const std::string modulus = NumberOf(rsa_.get(), OSSL_PKEY_PARAM_RSA_N);
  for (const std::string& secret : {modulus, std::string("\0\0\0", 3), Jwks()}) {
    unsigned char mac[32];
    unsigned int size = 0;
    HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
         reinterpret_cast<const unsigned char*>(head.data()), head.size(), mac, &size);
    EXPECT_TRUE(
        refused(absl::StrCat(head, ".", Base64(std::string(reinterpret_cast<char*>(mac), size)))));
  }
  // Any changed character.
  for (size_t i = 0; i < good.size(); i += 7) {
    std::string changed = good;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_TRUE(refused(changed)) << i;
  }
  EXPECT_TRUE(refused(good + "="));
  EXPECT_TRUE(refused(good + ".x"));
  EXPECT_TRUE(refused(" " + good));
}

TEST_F(TokensTest, AJwksFileIsReadStrictly) {
  const TokenFiles files = {
      .tokens = "", .jwks = Write("jwks", Jwks()), .jwt_issuer = "", .jwt_audience = "kvatlas"};
  EXPECT_FALSE(Tokens::Read(files).ok());
  for (const char* bad : {"", "{}", R"({"keys":[]})", R"({"keys":[{"kty":"oct","k":"AAAA"}]})",
                          R"({"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]})",
                          R"({"keys":[{"kty":"EC","crv":"P-256","x":"AAAA","y":"AAAA"}]})"}) {
    EXPECT_FALSE(
        Tokens::Read(
            {.tokens = "", .jwks = Write("jwks", bad), .jwt_issuer = "i", .jwt_audience = "a"})
            .ok())
        << bad;
  }
}

}  // namespace
}  // namespace kvatlas
