// Streams of holdings between processes with certificates: which are let in, with which hello, and
// until when.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"
#include "indexer/transport/grpc_security_test_util.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"

namespace kvatlas {
namespace {

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

struct WithWelcomer {
  Welcomer welcomer_;
};

class GrpcSecurityTest : protected WithWelcomer, public GrpcSecurityFixture {
 protected:
  GrpcSecurityTest() : GrpcSecurityFixture(&welcomer_) {}
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
      Say(StartWith({.certificate = "", .key = "", .ca = folder_.pki().ca_path()}), HelloOf("w1"));
  EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED) << none.error_message();
  EXPECT_FALSE(Say(Security::Open(), HelloOf("w1")).ok());
  EXPECT_EQ(welcomer_.hellos.load(), 0);
}

TEST_F(GrpcSecurityTest, CertificatesOfAnotherCaExpiredOnesAndForeignNamesAreRefused) {
  absl::StatusOr<Pki> foreign = Pki::Create(folder_.path() + "/foreign", "test.example");
  ASSERT_TRUE(foreign.ok());
  TlsPaths paths = *foreign->Issue({.identity = "worker/a/w1"});
  paths.ca = folder_.pki().ca_path();
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
  std::unique_ptr<Stream> stream;
  // On a slow machine it may expire before it is shown: then there is another one.
  ASSERT_TRUE(Await(
      [&] {
        stream = std::make_unique<Stream>();
        return Say(StartWith(Issue("worker/a/w1", brief)), HelloOf("w1"), stream.get()).ok();
      },
      kLong));
  v1::ReceiverMessage reply;
  while (stream->call->Read(&reply)) {
  }
  EXPECT_NE(stream->call->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
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
  const grpc::Status refused = Say(bad, HelloOf("w2"));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(refused.error_message().find("revoked"), std::string::npos) << refused.error_message();
  EXPECT_TRUE(Say(good, HelloOf("w1")).ok());
  for (const char* const said :
       {R"("event":"revoked","allowed":false,"identity":"worker/a/w2","peer":"ipv4:127.0.0.1:)",
        R"("event":"refusal","allowed":false,"identity":"worker/a/w2","verb":"publish")"}) {
    EXPECT_TRUE(Await([&] { return Audit().find(said) != std::string::npos; }, kLong))
        << said << " is not in " << Audit();
  }
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
    // A side that read certificate and key between the writing of both has no pair until it reads
    // again; callers retry.
    grpc::Status status;
    EXPECT_TRUE(Await(
        [&] {
          status = Say(worker, HelloOf("w1"));
          return status.ok();
        },
        kLong))
        << i << ": " << status.error_message();
  }
}

// gRPC reads files every second; of one that is empty it died, and others it showed whatever was
// wrong with them.
TEST_F(GrpcSecurityTest, FilesThatAreRefusedAreNotServed) {
  const TlsPaths paths = Issue("leaf/a/0");  // the server's
  const auto text_of = [](const std::string& path) {
    std::ifstream file(path);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const std::string good = text_of(paths.certificate);
  const std::string others = text_of(Issue("leaf/a/1").certificate);
  const std::shared_ptr<Security> worker = Start("worker/a/w1");
  for (const std::string& bad : {std::string(), good.substr(0, good.size() / 2), others}) {
    std::ofstream(paths.certificate, std::ios::trunc) << bad;
    grpc::Status status;
    EXPECT_FALSE(Await(
        [&] {
          status = Say(worker, HelloOf("w1"));
          return !status.ok();
        },
        std::chrono::milliseconds(2500)))
        << bad.size() << " bytes: " << status.error_message();
    std::ofstream(paths.certificate, std::ios::trunc) << good;
  }
}

class ShortLivedTest : protected WithWelcomer, public GrpcSecurityFixture {
 protected:
  ShortLivedTest() : GrpcSecurityFixture(&welcomer_, "", "{}", std::chrono::milliseconds(500)) {}
};

// One channel for the process's whole life, as those of publishers and frontends.
TEST_F(ShortLivedTest, AChannelGoesOnWithTheNextCertificate) {
  PkiIssue brief;
  brief.valid_for_s = 304;  // from 300 seconds ago
  std::shared_ptr<grpc::Channel> channel;
  const auto say = [&] {
    Stream stream;
    stream.stub = v1::Holdings::NewStub(channel);
    stream.context.set_deadline(std::chrono::system_clock::now() + kLong);
    stream.call = stream.stub->Stream(&stream.context);
    v1::SenderMessage message;
    ToProto(SenderMessage(HelloOf("w1")), &message);
    stream.call->Write(message);
    v1::ReceiverMessage reply;
    const bool welcomed = stream.call->Read(&reply);
    stream.context.TryCancel();
    const grpc::Status status = stream.call->Finish();
    return welcomed ? grpc::Status::OK : status;
  };
  // On a slow machine it may expire before it is shown: then there is another one.
  ASSERT_TRUE(Await(
      [&] {
        // The channel alone keeps what looks for other files.
        channel = MakeChannel(
            server_->address().ToString(),
            {.security = StartWith(Issue("worker/a/w1", brief)), .own_connection = true});
        return say().ok();
      },
      kLong));
  Issue("worker/a/w1");
  // Until long after the first one has expired.
  const Time until = Clock::Real().Now() + std::chrono::seconds(7);
  while (Clock::Real().Now() < until) {
    const grpc::Status status = say();
    // A call that is begun while its connection is given up may be told so, and comes again; it is
    // never refused.
    ASSERT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE)
        << status.error_message();
  }
  EXPECT_TRUE(Await([&] { return say().ok(); }, kLong));
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
