// The proxy by TLS and under a policy, with Debian's curl as the client: what a client gets, and
// what its engine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/security/security.h"
#include "indexer/security/security_test_folder.h"
#include "indexer/security/tokens.h"

namespace kvatlas {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class ProxySecurityTest : public ProxyTest {
 protected:
  ProxySecurityTest() {
    const std::string tokens = folder_.path() + "/tokens";
    std::ofstream(tokens) << "sha256:" << TokenHash("let-me-in") << " operator/ops name=ops\n";
    SecurityOptions options = folder_.ServerOf(folder_.Issue("leaf/a/0"));
    options.tokens.tokens = tokens;
    Security::SetOfProcess(SecurityTestFolder::Start(options));
  }
  ~ProxySecurityTest() override {
    proxy_->Stop();
    Security::SetOfProcess(Security::Open());
  }

  // Head and body of the answer.
  std::string Curl(const std::string& arguments, const std::string& path) const {
    return folder_.Curl("-i " + arguments,
                        absl::StrCat("https://127.0.0.1:", proxy_->address().port, path));
  }

  const SecurityTestFolder folder_{R"("rules": [
      {"identity": "operator/*", "allow": ["route"], "tenants": ["*"]}])"};
};

// The token that it is known by was for this process alone.
TEST_F(ProxySecurityTest, ForAClientThatIsKnownHereTheEngineGetsItsApiKey) {
  LastMessage got;
  TestEngine engine([&](TestSocket& connection) {
    while (got.ReadFrom(connection)) connection.Send(kOk);
  });
  options_.engine.reach.given->Set({engine.address().ToString()});
  options_.engine.reach.given->SetApiKey("k1");
  Start({engine.url()});
  EXPECT_THAT(Curl(absl::StrCat("-H 'Authorization: Bearer let-me-in' -d '", kChat, "'"),
                   "/v1/chat/completions"),
              HasSubstr(" 200 "));
  EXPECT_THAT(got.text(),
              AllOf(HasSubstr("authorization: Bearer k1\r\n"), Not(HasSubstr("let-me-in"))));
  Curl("-H 'Authorization: Bearer let-me-in'", "/v1/models");
  EXPECT_THAT(got.text(),
              AllOf(HasSubstr("GET /v1/models "), HasSubstr("authorization: Bearer k1\r\n")));
}

TEST_F(ProxySecurityTest, WhoIsNotLetInIsToldSoAsOpenAisClientsReadIt) {
  Start({});
  for (const char* token : {"", "-H 'Authorization: Bearer let-me-out'"}) {
    const std::string answer = Curl(token, "/v1/models");
    EXPECT_THAT(answer, HasSubstr(" 401 "));
    EXPECT_EQ(ErrorOf(answer)["type"], "AuthenticationError") << answer;
  }
}

}  // namespace
}  // namespace kvatlas
