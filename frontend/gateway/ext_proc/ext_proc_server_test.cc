// How the endpoint picker's port is reached: encrypted by itself, for callers without a
// certificate, and under a policy.

#include "frontend/gateway/ext_proc/ext_proc_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "frontend/gateway/ext_proc/ext_proc_test_util.h"
#include "frontend/gateway/ext_proc/proxy_test_util.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"
#include "indexer/security/security_test_folder.h"

namespace kvatlas {
namespace {

class ExtProcServerTest : public ExtProcServiceTest {
 protected:
  ~ExtProcServerTest() override {
    picker_server_ = nullptr;
    server_ = nullptr;
    Security::SetOfProcess(Security::Open());
  }

  absl::Status Serve(ExtProcFlags flags) {
    if (frontend_ == nullptr) Start();
    flags.listen = "127.0.0.1:0";
    picker_server_ = std::make_unique<ExtProcServer>(flags, frontend_.get(), &tokenizer_,
                                                     &endpoints_, &picker_metrics_);
    return picker_server_->Start();
  }

  std::shared_ptr<grpc::Channel> Reach(bool tls) {
    return GatewayChannel(picker_server_->address()->ToString(), tls);
  }

  // The endpoint of a completion; empty and `refused_`: the stream was refused.
  std::string PickOver(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    const auto stub = ext_proc::ExternalProcessor::NewStub(channel);
    const auto stream = stub->Process(&context);
    stream->Write(Mode(ext_proc::FULL_DUPLEX_STREAMED, Completion()));
    stream->Write(Body(kIds, true));
    ext_proc::ProcessingResponse answer;
    if (!stream->Read(&answer)) {
      refused_ = stream->Finish();
      return "";
    }
    const std::string endpoint = HeadersEndpoint(answer);
    context.TryCancel();
    while (stream->Read(&answer)) {
    }
    stream->Finish();
    return endpoint;
  }

  Metrics picker_metrics_;
  std::unique_ptr<ExtProcServer> picker_server_;
  grpc::Status refused_;
};

TEST_F(ExtProcServerTest, ByDefaultAGatewayWithoutACertificateReachesItOverTls) {
  ASSERT_TRUE(Serve({}).ok());
  EXPECT_EQ(PickOver(Reach(/*tls=*/true)), "10.0.0.1:8000");
  EXPECT_EQ(PickOver(Reach(/*tls=*/false)), "") << "in clear only when asked for";
}

TEST_F(ExtProcServerTest, InClearWhenAskedFor) {
  ASSERT_TRUE(Serve({.tls = "none"}).ok());
  EXPECT_EQ(PickOver(Reach(false)), "10.0.0.1:8000");
  EXPECT_EQ(PickOver(Reach(true)), "");
}

TEST_F(ExtProcServerTest, ItsOwnCertificateIsTheOneOfItsFlags) {
  const SecurityTestFolder folder(R"("rules": [])");
  const TlsPaths own =
      folder.Issue("", {.identity = "", .common_name = "picker", .dns = {"picker.test"}});
  ASSERT_TRUE(Serve({.tls_cert = own.certificate, .tls_key = own.key}).ok());
  std::ifstream file(own.ca);
  const std::string ca((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  grpc::SslCredentialsOptions trusted;
  trusted.pem_root_certs = ca;
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("picker.test");
  EXPECT_EQ(PickOver(grpc::CreateCustomChannel(picker_server_->address()->ToString(),
                                               grpc::SslCredentials(trusted), arguments)),
            "10.0.0.1:8000");
}

TEST_F(ExtProcServerTest, ACertificateThatIsNoneIsRefusedAtStart) {
  const SecurityTestFolder folder(R"("rules": [])");
  const TlsPaths one = folder.Issue("", {.identity = "", .name = "one"});
  const TlsPaths two = folder.Issue("", {.identity = "", .name = "two"});
  EXPECT_EQ(Serve({.tls_cert = one.certificate, .tls_key = two.key}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Serve({.tls_cert = one.certificate}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Serve({.tls_cert = "/none.pem", .tls_key = "/none.key"}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Serve({.tls = "none", .tls_cert = one.certificate, .tls_key = one.key}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Serve({.tls_cert = one.certificate, .tls_key = one.key}).ok());
}

class ExtProcServerPolicyTest : public ExtProcServerTest,
                                public ::testing::WithParamInterface<const char*> {
 protected:
  // The process has mutual TLS and these rules; the picker's port has TLS of its own, or none.
  void ServeUnder(const std::string& rules) {
    folder_ = std::make_unique<SecurityTestFolder>("\"rules\": [" + rules + "]");
    Security::SetOfProcess(
        SecurityTestFolder::Start(folder_->ServerOf(folder_->Issue("frontend/f"))));
    const absl::Status started = Serve({.tls = GetParam()});
    ASSERT_TRUE(started.ok()) << started;
  }
  bool tls() const { return std::string(GetParam()) == "own"; }

  std::unique_ptr<SecurityTestFolder> folder_;
};

TEST_P(ExtProcServerPolicyTest, NobodyIsLetInWithoutARule) {
  ServeUnder(R"({"identity": "gateway/*", "allow": ["pick"]})");
  EXPECT_EQ(PickOver(Reach(tls())), "");
  EXPECT_TRUE(refused_.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
              refused_.error_code() == grpc::StatusCode::UNAUTHENTICATED)
      << refused_.error_message();
}

TEST_P(ExtProcServerPolicyTest, ARuleLetsInWhoShowsNothingToAskForEndpointsAlone) {
  ServeUnder(R"({"identity": "anonymous", "allow": ["pick"]})");
  EXPECT_EQ(PickOver(Reach(tls())), "10.0.0.1:8000");
  const Identity anonymous;
  EXPECT_FALSE(Security::OfProcess()->CheckMethod(anonymous, Verb::kRoute, "").ok());
}

TEST_P(ExtProcServerPolicyTest, WhoMayRouteMayAskForEndpointsToo) {
  ServeUnder(R"({"identity": "anonymous", "allow": ["route"]})");
  EXPECT_EQ(PickOver(Reach(tls())), "10.0.0.1:8000");
}

INSTANTIATE_TEST_SUITE_P(Port, ExtProcServerPolicyTest, ::testing::Values("own", "none"));

}  // namespace
}  // namespace kvatlas
