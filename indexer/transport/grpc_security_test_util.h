// A server of streams with certificates and a policy, and clients of it, for tests.

#ifndef KVATLAS_INDEXER_TRANSPORT_GRPC_SECURITY_TEST_UTIL_H_
#define KVATLAS_INDEXER_TRANSPORT_GRPC_SECURITY_TEST_UTIL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"
#include "indexer/security/security_test_folder.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/hello_test_util.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"

namespace kvatlas {

// `acceptor` outlives it. `rules` go before those of the policy.
class GrpcSecurityFixture : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kLong{120};

  explicit GrpcSecurityFixture(StreamAcceptor* acceptor, const std::string& rules = "",
                               const std::string& tenants = "{}",
                               Duration connection_age = std::chrono::minutes(1))
      : connection_age_(connection_age), folder_(PolicyOf(rules, tenants)) {
    security_ = Start("leaf/a/0", /*policy=*/true);
    streams_ = std::make_unique<GrpcAcceptor>(
        acceptor, GrpcAcceptorOptions{.cell = "a", .security = security_});
    server_ = std::make_unique<GrpcServer>(
        GrpcServerOptions{.listen = {"127.0.0.1", 0}, .security = security_});
    server_->Register(streams_->service(), "kvatlas.v1.Holdings");
    const absl::Status status = server_->Start();
    EXPECT_TRUE(status.ok()) << status;
  }

  ~GrpcSecurityFixture() override {
    streams_->Stop();
    server_->Stop(Duration(0));
  }

  static std::string PolicyOf(const std::string& rules, const std::string& tenants) {
    return R"("names": {"cn:legacy": "worker/a/legacy"}, "rules": [)" + rules +
           R"({"identity": "worker/*/*", "allow": ["publish"],
               "url_hosts": ["10.0.0.0/8", "*.engines"]},
              {"identity": "operator/*", "allow": ["*"]}], "tenants": )" +
           tenants;
  }
  void WritePolicy(const std::string& revoked) { folder_.WritePolicy(revoked); }
  TlsPaths Issue(const std::string& identity, PkiIssue issue = {}) {
    return folder_.Issue(identity, std::move(issue));
  }
  std::string Audit() const { return folder_.Audit(); }

  std::shared_ptr<Security> Start(const std::string& identity, bool policy = false) {
    return StartWith(Issue(identity), policy);
  }
  std::shared_ptr<Security> StartWith(const TlsPaths& tls, bool policy = false) {
    SecurityOptions options = policy ? folder_.ServerOf(tls) : folder_.ClientOf(tls);
    options.connection_age = connection_age_;
    return SecurityTestFolder::Start(std::move(options));
  }

  // A stream that says `hello`; what it ends with unless it is welcomed.
  struct Stream {
    std::unique_ptr<v1::Holdings::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::SenderMessage, v1::ReceiverMessage>> call;
  };
  grpc::Status Say(const std::shared_ptr<Security>& security, const Hello& hello,
                   Stream* stream = nullptr) {
    Stream own;
    if (stream == nullptr) stream = &own;
    stream->stub = v1::Holdings::NewStub(
        MakeChannel(server_->address().ToString(),
                    {.connect_timeout = kLong, .security = security, .own_connection = true}));
    stream->context.set_deadline(std::chrono::system_clock::now() + kLong);
    stream->call = stream->stub->Stream(&stream->context);
    v1::SenderMessage message;
    ToProto(SenderMessage(hello), &message);
    stream->call->Write(message);
    v1::ReceiverMessage reply;
    if (!stream->call->Read(&reply) || reply.has_refuse()) return stream->call->Finish();
    if (stream == &own) {
      own.context.TryCancel();
      own.call->Finish();
    }
    return grpc::Status::OK;
  }

  const Duration connection_age_;
  const SecurityTestFolder folder_;
  std::shared_ptr<Security> security_;
  std::unique_ptr<GrpcAcceptor> streams_;
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_GRPC_SECURITY_TEST_UTIL_H_
