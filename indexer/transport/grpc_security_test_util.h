// A server of streams with certificates and a policy, and clients of it, for tests.

#ifndef KVATLAS_INDEXER_TRANSPORT_GRPC_SECURITY_TEST_UTIL_H_
#define KVATLAS_INDEXER_TRANSPORT_GRPC_SECURITY_TEST_UTIL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/security/pki.h"
#include "indexer/service/security/security.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"

namespace kvatlas {

inline Hello HelloOf(const std::string& holder) {
  return {.holder = {holder, 0, ""},
          .domain = {"m", ""},
          .block_size = 16,
          .contract_id = "c",
          .schedule = "",
          .epoch = 1,
          .instance_id = 7,
          .first_kept = 1,
          .last_sent = 0,
          .starting = true,
          .address = "",
          .labels = {}};
}

// A folder of its own for a test; a CA in it.
// `acceptor` outlives it. `rules` go before those of the policy.
class GrpcSecurityFixture : public testing::Test {
 protected:
  static constexpr std::chrono::seconds kLong{30};

  explicit GrpcSecurityFixture(StreamAcceptor* acceptor, std::string rules = "",
                               std::string tenants = "{}",
                               Duration connection_age = std::chrono::minutes(1))
      : rules_(std::move(rules)), tenants_(std::move(tenants)), connection_age_(connection_age) {
    std::string directory = testing::TempDir() + "/grpc_security_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    absl::StatusOr<Pki> pki = Pki::Create(directory_ + "/pki", "test.example");
    EXPECT_TRUE(pki.ok()) << pki.status();
    pki_ = std::make_unique<Pki>(*std::move(pki));
    WritePolicy("[]");
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

  void WritePolicy(const std::string& revoked) {
    const std::string path = directory_ + "/policy.json";
    {
      std::ofstream file(path + ".new");
      file << R"({"version": 1, "trust_domain": "test.example",
                  "names": {"cn:legacy": "worker/a/legacy"},
                  "rules": [)"
           << rules_ << R"({"identity": "worker/*/*", "allow": ["publish"],
                             "url_hosts": ["10.0.0.0/8", "*.engines"]},
                            {"identity": "operator/*", "allow": ["*"]}],
                  "revoked": )"
           << revoked << R"(, "tenants": )" << tenants_ << "}";
    }
    EXPECT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
  }

  TlsPaths Issue(const std::string& identity, PkiIssue issue = {}) {
    issue.identity = identity;
    absl::StatusOr<TlsPaths> paths = pki_->Issue(issue);
    EXPECT_TRUE(paths.ok()) << paths.status();
    return paths.ok() ? *paths : TlsPaths();
  }

  std::shared_ptr<Security> Start(const std::string& identity, bool policy = false) {
    return StartWith(Issue(identity), policy);
  }
  std::shared_ptr<Security> StartWith(const TlsPaths& tls, bool policy = false) {
    SecurityOptions options;
    options.process = "test";
    options.tls = tls;
    options.look_every = std::chrono::milliseconds(20);
    options.connection_age = connection_age_;
    if (policy) {
      options.policy = directory_ + "/policy.json";
      options.audit_log = directory_ + "/audit.log";
    }
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(options);
    EXPECT_TRUE(security.ok()) << security.status();
    return security.ok() ? *security : Security::Open();
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
        MakeChannel(server_->address().ToString(), {.security = security, .own_connection = true}));
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

  std::string Audit() const {
    std::ifstream file(directory_ + "/audit.log");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  const std::string rules_;
  const std::string tenants_;
  const Duration connection_age_;
  std::string directory_;
  std::unique_ptr<Pki> pki_;
  std::shared_ptr<Security> security_;
  std::unique_ptr<GrpcAcceptor> streams_;
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_GRPC_SECURITY_TEST_UTIL_H_
