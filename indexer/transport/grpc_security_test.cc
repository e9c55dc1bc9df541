// Streams of holdings between processes with certificates: who is let in, with which hello, and until when.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/security/pki.h"
#include "indexer/service/security/security.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(30);

// Welcomes every hello.
class Welcomer : public StreamAcceptor {
 public:
  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    return std::make_unique<Session>(this, std::move(reply));
  }
  std::atomic<int> hellos{0};

 private:
  class Session : public ReceiverSession {
   public:
    Session(Welcomer* owner, ReplyFn reply) : owner_(owner), reply_(std::move(reply)) {}
    absl::Status OnMessage(SenderMessage message) override {
      if (!std::holds_alternative<Hello>(message)) return absl::OkStatus();
      ++owner_->hellos;
      reply_(Welcome{.next = 1, .snapshot = false, .credit = 8});
      return absl::OkStatus();
    }

   private:
    Welcomer* const owner_;
    const ReplyFn reply_;
  };
};

Hello HelloOf(const std::string& holder) {
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
class GrpcSecurityTest : public testing::Test {
 protected:
  GrpcSecurityTest() {
    std::string directory = testing::TempDir() + "/grpc_security_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
    absl::StatusOr<Pki> pki = Pki::Create(directory_ + "/pki", "test.example");
    EXPECT_TRUE(pki.ok()) << pki.status();
    pki_ = std::make_unique<Pki>(*std::move(pki));
    WritePolicy("[]");
    security_ = Start("leaf/a/0", /*policy=*/true);
    streams_ = std::make_unique<GrpcAcceptor>(
        &welcomer_, GrpcAcceptorOptions{.cell = "a", .security = security_});
    server_ = std::make_unique<GrpcServer>(
        GrpcServerOptions{.listen = {"127.0.0.1", 0}, .security = security_});
    server_->Register(streams_->service(), "kvatlas.v1.Holdings");
    const absl::Status status = server_->Start();
    EXPECT_TRUE(status.ok()) << status;
  }

  ~GrpcSecurityTest() override {
    streams_->Stop();
    server_->Stop(Duration(0));
  }

  void WritePolicy(const std::string& revoked) {
    const std::string path = directory_ + "/policy.json";
    {
      std::ofstream file(path + ".new");
      file << R"({"version": 1, "trust_domain": "test.example",
                  "names": {"cn:legacy": "worker/a/legacy"},
                  "rules": [{"identity": "worker/*/*", "allow": ["publish"],
                             "url_hosts": ["10.0.0.0/8", "*.engines"]},
                            {"identity": "operator/*", "allow": ["*"]}],
                  "revoked": )"
           << revoked << "}";
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
    if (!stream->call->Read(&reply)) return stream->call->Finish();
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

  std::string directory_;
  std::unique_ptr<Pki> pki_;
  Welcomer welcomer_;
  std::shared_ptr<Security> security_;
  std::unique_ptr<GrpcAcceptor> streams_;
  std::unique_ptr<GrpcServer> server_;
};

TEST_F(GrpcSecurityTest, AWorkerPublishesUnderItsOwnNameAlone) {
  const std::shared_ptr<Security> worker = Start("worker/a/w1");
  const grpc::Status own = Say(worker, HelloOf("w1"));
  EXPECT_TRUE(own.ok()) << own.error_message();
  const grpc::Status other = Say(worker, HelloOf("w2"));
  EXPECT_EQ(other.error_code(), grpc::StatusCode::PERMISSION_DENIED) << other.error_message();
  EXPECT_EQ(other.error_message(), kNotAllowed);
  EXPECT_EQ(welcomer_.hellos.load(), 1);
  EXPECT_TRUE(
      Await([&] { return Audit().find("under its own name only") != std::string::npos; }, kLong))
      << Audit();
}

TEST_F(GrpcSecurityTest, AWorkerOfAnotherCellIsRefused) {
  EXPECT_EQ(Say(Start("worker/b/w1"), HelloOf("w1")).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(GrpcSecurityTest, UrlsAreOfAllowedHostsAndTenantsOfTheRule) {
  const std::shared_ptr<Security> worker = Start("worker/a/w1");
  Hello hello = HelloOf("w1");
  for (const char* good : {"http://10.1.2.3:8000", "http://e1.engines/v1"}) {
    hello.labels = {{"url", good}};
    EXPECT_TRUE(Say(worker, hello).ok()) << good;
  }
  for (const char* bad : {"http://attacker.example", "http://11.0.0.1:8000",
                          "http://10.1.2.3@attacker.example/", "http://e1.engines.attacker"}) {
    hello.labels = {{"url", bad}};
    EXPECT_EQ(Say(worker, hello).error_code(), grpc::StatusCode::PERMISSION_DENIED) << bad;
  }
  hello = HelloOf("w1");
  hello.domain.tenant = "another";
  EXPECT_EQ(Say(worker, hello).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  hello = HelloOf("w1");
  hello.address = "attacker.example:7410";
  EXPECT_EQ(Say(worker, hello).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(GrpcSecurityTest, RolesThatDoNotPublishAreRefusedBeforeTheirHello) {
  for (const char* identity : {"frontend/f", "viewer/v", "leaf/a/1", "node/n"}) {
    EXPECT_EQ(Say(Start(identity), HelloOf("w1")).error_code(), grpc::StatusCode::PERMISSION_DENIED)
        << identity;
  }
  EXPECT_EQ(welcomer_.hellos.load(), 0);
}

TEST_F(GrpcSecurityTest, WithoutACertificateNothingIsSaid) {
  const grpc::Status none =
      Say(StartWith({.certificate = "", .key = "", .ca = pki_->ca_path()}), HelloOf("w1"));
  EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED) << none.error_message();
  EXPECT_FALSE(Say(Security::Open(), HelloOf("w1")).ok());
  EXPECT_EQ(welcomer_.hellos.load(), 0);
}

TEST_F(GrpcSecurityTest, CertificatesOfAnotherCaExpiredOnesAndForeignNamesAreRefused) {
  absl::StatusOr<Pki> foreign = Pki::Create(directory_ + "/foreign", "test.example");
  ASSERT_TRUE(foreign.ok());
  TlsPaths paths = *foreign->Issue({.identity = "worker/a/w1"});
  paths.ca = pki_->ca_path();
  EXPECT_FALSE(Say(StartWith(paths), HelloOf("w1")).ok());
  PkiIssue nameless;
  nameless.common_name = "legacy-not";
  nameless.name = "nameless";
  EXPECT_EQ(Say(StartWith(Issue("", nameless)), HelloOf("w1")).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  PkiIssue mapped;
  mapped.common_name = "legacy";
  mapped.name = "legacy";
  EXPECT_TRUE(Say(StartWith(Issue("", mapped)), HelloOf("legacy")).ok());
  EXPECT_EQ(welcomer_.hellos.load(), 1);
}

TEST_F(GrpcSecurityTest, ACredentialThatExpiresEndsItsStream) {
  PkiIssue brief;
  brief.valid_for_s = 302;  // from 300 seconds ago
  Stream stream;
  ASSERT_TRUE(Say(StartWith(Issue("worker/a/w1", brief)), HelloOf("w1"), &stream).ok());
  v1::ReceiverMessage reply;
  while (stream.call->Read(&reply)) {
  }
  EXPECT_NE(stream.call->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(GrpcSecurityTest, ARevokedWorkersStreamEndsAndOthersGoOn) {
  const std::shared_ptr<Security> good = Start("worker/a/w1");
  const std::shared_ptr<Security> bad = Start("worker/a/w2");
  Stream goes_on;
  Stream ends;
  ASSERT_TRUE(Say(good, HelloOf("w1"), &goes_on).ok());
  ASSERT_TRUE(Say(bad, HelloOf("w2"), &ends).ok());
  WritePolicy(R"(["worker/a/w2"])");
  v1::ReceiverMessage reply;
  while (ends.call->Read(&reply)) {
  }
  EXPECT_NE(ends.call->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(Say(bad, HelloOf("w2")).ok());
  EXPECT_TRUE(Say(good, HelloOf("w1")).ok());
  EXPECT_TRUE(Await([&] { return Audit().find("\"revoked\"") != std::string::npos; }, kLong));
  std::string metrics;
  security_->AppendMetrics(&metrics);
  EXPECT_NE(metrics.find("kvatlas_security_calls_cut_total 1"), std::string::npos) << metrics;
  goes_on.context.TryCancel();
  goes_on.call->Finish();
}

TEST_F(GrpcSecurityTest, ABadPolicyKeepsTheOneBefore) {
  const std::shared_ptr<Security> worker = Start("worker/a/w1");
  WritePolicy("[\"nonsense\"]");
  ASSERT_TRUE(Await(
      [&] {
        std::string metrics;
        security_->AppendMetrics(&metrics);
        return metrics.find("reloads_failed_total 1") != std::string::npos;
      },
      kLong));
  EXPECT_TRUE(Say(worker, HelloOf("w1")).ok());
}

TEST_F(GrpcSecurityTest, CertificatesRotateWhileStreamsAreOpened) {
  const TlsPaths paths = Issue("worker/a/w1");
  const std::shared_ptr<Security> worker = StartWith(paths);
  for (int i = 0; i < 5; ++i) {
    Issue("leaf/a/0");
    Issue("worker/a/w1");
    const grpc::Status status = Say(worker, HelloOf("w1"));
    EXPECT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
}

TEST_F(GrpcSecurityTest, AWorkersKeyIsNotTakenForALeafs) {
  GrpcServer impostor({.listen = {"127.0.0.1", 0}, .security = Start("worker/a/w9", true)});
  ASSERT_TRUE(impostor.Start().ok());
  auto stub = v1::Holdings::NewStub(MakeChannel(
      impostor.address().ToString(), {.security = Start("worker/a/w1"), .own_connection = true}));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kLong);
  auto call = stub->Stream(&context);
  call->WritesDone();
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcSecurityTest, BeyondLoopbackTlsAndAPolicyAreNeeded) {
  SecurityOptions options;
  options.process = "test";
  absl::StatusOr<std::shared_ptr<Security>> plain = Security::Start(options);
  ASSERT_TRUE(plain.ok());
  GrpcServer refused({.listen = {"0.0.0.0", 0}, .security = *plain});
  const absl::Status status = refused.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("--insecure"), std::string::npos) << status;
  GrpcServer loopback({.listen = {"127.0.0.1", 0}, .security = *plain});
  EXPECT_TRUE(loopback.Start().ok());
  EXPECT_TRUE(security_->MayListen({"0.0.0.0", 0}).ok());
  options.insecure = true;
  absl::StatusOr<std::shared_ptr<Security>> insecure = Security::Start(options);
  ASSERT_TRUE(insecure.ok());
  EXPECT_TRUE((*insecure)->MayListen({"0.0.0.0", 0}).ok());
  std::string metrics;
  (*insecure)->AppendMetrics(&metrics);
  EXPECT_NE(metrics.find("kvatlas_insecure 1"), std::string::npos);
}

}  // namespace
}  // namespace kvatlas
