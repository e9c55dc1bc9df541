// The endpoint picker under a policy: which models and tenants a gateway may name, and which calls
// of a salted tenant pass.

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/ext_proc/ext_proc_test_util.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/security/security.h"
#include "indexer/security/security_test_folder.h"

namespace kvatlas {
namespace {

constexpr char kForm[] = "multipart/form-data; boundary=b";

class ExtProcPolicyTest : public ExtProcServiceTest {
 protected:
  ~ExtProcPolicyTest() override {
    server_ = nullptr;
    Security::SetOfProcess(Security::Open());
  }

  void StartAs(const std::string& identity) {
    Security::SetOfProcess(
        SecurityTestFolder::Start(folder_.ServerOf(folder_.Issue("frontend/f"))));
    Start();
    channel_ = MakeChannel(server_->address().ToString(),
                           {.connect_timeout = std::chrono::minutes(1),
                            .security = SecurityTestFolder::Start(
                                SecurityTestFolder::ClientOf(folder_.Issue(identity))),
                            .own_connection = true});
  }

  // The status of a refusal; 0: it is passed on.
  int Ask(const std::string& path, const std::string& body,
          const std::string& type = "application/json",
          ext_proc::BodySendMode mode = ext_proc::FULL_DUPLEX_STREAMED) {
    ext_proc::ProcessingRequest headers = Request("POST", path, false, {});
    for (ext_proc::HeaderValue& header :
         *headers.mutable_request_headers()->mutable_headers()->mutable_headers())
      if (header.key() == "content-type") header.set_raw_value(type);
    Stream stream = Open();
    stream.Write(Mode(mode, std::move(headers)));
    if (mode != ext_proc::NONE) stream.Write(Body(body, true));
    const ext_proc::ProcessingResponse answer = stream.Read();
    return answer.has_immediate_response()
               ? static_cast<int>(answer.immediate_response().status().code())
               : 0;
  }

  static std::string Of(const std::string& model) {
    return absl::StrCat(R"({"model": ")", model, R"(", "prompt": [1, 2, 3], "input": "x"})");
  }

  const std::string salt_ = SecurityTestFolder::SaltFile();
  const SecurityTestFolder folder_{absl::StrCat(R"("rules": [
      {"identity": "gateway/small", "allow": ["route"], "models": ["small"], "tenants": [""]},
      {"identity": "gateway/any", "allow": ["route"], "tenants": [""]},
      {"identity": "gateway/salted", "allow": ["route"], "tenants": ["salted"]}],
    "tenants": {"salted": {"salt": "@)",
                                                salt_, R"(", "pool": ""}})")};
};

TEST_F(ExtProcPolicyTest, AGatewayNamesOnlyTheModelsOfItsRules) {
  StartAs("gateway/small");
  EXPECT_EQ(Ask("/v1/completions", Of("small")), 0);
  EXPECT_EQ(Ask("/v1/completions", Of("large")), 403);
  EXPECT_EQ(Ask("/v1/embeddings", Of("small")), 0);
  EXPECT_EQ(Ask("/v1/embeddings", Of("large")), 403);
  // A body that is not read may be for any model.
  EXPECT_EQ(Ask("/v1/embeddings", R"({"input": "x"})"), 403);
  EXPECT_EQ(Ask("/v1/audio/transcriptions", "--b--", kForm), 403);
  EXPECT_EQ(Ask("/v1/completions", "", "application/json", ext_proc::NONE), 403);
}

TEST_F(ExtProcPolicyTest, AGatewayOfAllModelsPassesWhatIsNotRead) {
  StartAs("gateway/any");
  EXPECT_EQ(Ask("/v1/completions", Of("large")), 0);
  EXPECT_EQ(Ask("/v1/embeddings", R"({"input": "x"})"), 0);
  EXPECT_EQ(Ask("/v1/audio/transcriptions", "--b--", kForm), 0);
  EXPECT_EQ(Ask("/v1/completions", "", "application/json", ext_proc::NONE), 0);
}

TEST_F(ExtProcPolicyTest, OfASaltedTenantOnlyWhatLeavesNoBlocksPasses) {
  StartAs("gateway/salted");
  EXPECT_EQ(Ask("/tokenize", Of("m")), 0);
  for (const char* path :
       {"/v1/completions", "/v1/messages", "/v1/embeddings", "/v1/score", "/generate"})
    EXPECT_EQ(Ask(path, Of("m")), 409) << path;
  EXPECT_EQ(Ask("/v1/audio/transcriptions", "--b--", kForm), 409);
  EXPECT_EQ(Ask("/v1/completions", "", "application/json", ext_proc::NONE), 409);
}

}  // namespace
}  // namespace kvatlas
