// CA, certificates, tokens and policy change under load: no route fails, and what is not allowed
// any more is refused.
//
// A rotation is what docs/security.md says: the new CA beside the old one, certificates by the new
// one, the old CA away; a token beside the old one, then alone; a policy that revokes a worker.
// TEST_ROTATIONS of them, two unless said; where it is said, times are held against their bounds
// too:
//   bazel run -c opt --test_env=TEST_ROTATIONS=20 //tests:security_rotation_test

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/security/pki.h"
#include "indexer/security/secret_file.h"
#include "indexer/security/tokens.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"
#include "tests/security_test_util.h"

namespace kvatlas {
namespace {

constexpr char kRotationRules[] = R"(
  {"identity": "worker/*/*", "allow": ["publish"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "leaf/*/*", "allow": ["report", "snapshot", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "node/*", "allow": ["report", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "frontend/*", "allow": ["query", "status"]},
  {"identity": "gateway/*", "allow": ["route", "feedback"]},
  {"identity": "operator/*", "allow": ["*"], "tenants": ["*"], "url_hosts": ["127.0.0.0/8"]})";

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

double SecondsSince(Time from) {
  return std::chrono::duration<double>(Clock::Real().Now() - from).count();
}

// Routes without end, one after the other over one channel, from when the frontend first reaches
// its fleet.
class Load {
 public:
  using Credential = std::function<std::string()>;  // a bearer token; empty: none

  Load(std::shared_ptr<grpc::Channel> channel, Credential credential)
      : stub_(v1::Frontend::NewStub(std::move(channel))), credential_(std::move(credential)) {
    grpc::Status last;
    const bool reached =
        Await([&] { return (last = Route(0, nullptr)).ok(); }, std::chrono::seconds(60));
    EXPECT_TRUE(reached) << last.error_message();
    thread_ = std::thread([this] { Run(); });
  }
  ~Load() { Stop(); }

  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

  uint64_t routed() const { return routed_; }
  // Of them, with the answers of leaves.
  uint64_t whole() const { return whole_; }
  std::vector<std::string> failures() const {
    MutexLock lock(&mutex_);
    return failures_;
  }

 private:
  grpc::Status Route(uint32_t number, bool* whole) {
    v1::RouteRequest request;
    request.mutable_domain()->set_model("mock");
    for (uint32_t k = 0; k < 2 * kTokensPerHashId; ++k)
      request.mutable_tokens()->add_ids((number % 64) * 1000 + k);
    v1::RouteResponse answer;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kLong);
    if (const std::string token = credential_(); !token.empty())
      context.AddMetadata("authorization", "Bearer " + token);
    grpc::Status status = stub_->Route(&context, request, &answer);
    if (whole != nullptr) *whole = answer.receipt().fallback() == v1::FALLBACK_NONE;
    return status;
  }

  void Run() {
    for (uint32_t i = 0; !stopping_; ++i) {
      bool whole = false;
      const grpc::Status status = Route(i, &whole);
      if (!status.ok()) {
        MutexLock lock(&mutex_);
        failures_.push_back(
            absl::StrCat(status.error_code(), " ", status.error_message(), " at route ", i));
        continue;
      }
      ++routed_;
      if (whole) ++whole_;
    }
  }

  const std::unique_ptr<v1::Frontend::Stub> stub_;
  const Credential credential_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> routed_{0};
  std::atomic<uint64_t> whole_{0};
  mutable Mutex mutex_;
  std::vector<std::string> failures_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

class SecurityRotationTest : public SecurityTest {
 protected:
  // A certificate's files of its own for each call.
  static TlsPaths IssueOf(const Pki& pki, const std::string& identity, PkiIssue issue = {}) {
    issue.identity = identity;
    absl::StatusOr<TlsPaths> paths = pki.Issue(issue);
    EXPECT_TRUE(paths.ok()) << paths.status();
    return paths.ok() ? *paths : TlsPaths();
  }

  static std::shared_ptr<Security> With(TlsPaths files) {
    SecurityOptions options;
    options.process = "test";
    options.tls = std::move(files);
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }

  std::vector<std::string> GrpcAddresses() const {
    return {cluster_->leaf(0), cluster_->leaf(1), cluster_->hierarchy(), cluster_->frontend()};
  }

  // An operator with these files is let in by every process, over gRPC and HTTP; or by none.
  bool Everywhere(const TlsPaths& files, bool let_in) {
    const std::shared_ptr<Security> as = With(files);
    for (const std::string& address : GrpcAddresses()) {
      const auto stub =
          v1::Leaf::NewStub(MakeChannel(address, {.security = as, .own_connection = true}));
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kLong);
      v1::StatsResponse answer;
      const grpc::StatusCode code = stub->Stats(&context, {}, &answer).error_code();
      // Of a service that a process does not have; it is looked for when the caller was let in.
      if ((code == grpc::StatusCode::OK || code == grpc::StatusCode::UNIMPLEMENTED) != let_in)
        return false;
    }
    for (const char* const process : {"leaf-0", "leaf-1", "hierarchy", "frontend"}) {
      const std::string out =
          OutputOf(absl::StrCat("curl -s -m 60 -o /dev/null -w '%{http_code}' --cacert ", files.ca,
                                " --cert ", files.certificate, " --key ", files.key, " https://",
                                cluster_->address(process, "http"), "/status"));
      if ((out == "200") != let_in) return false;
    }
    return true;
  }

  void WriteTokens(const std::vector<std::string>& tokens) {
    std::string text;
    for (const std::string& token : tokens)
      absl::StrAppend(&text, "sha256:", TokenHash(token), " gateway/by-token\n");
    ASSERT_TRUE(WriteFileByRename(tokens_path_, text, 0600).ok());
  }

  bool TokenPasses(const std::string& token) {
    const std::string out =
        OutputOf(absl::StrCat("curl -s -m 60 -o /dev/null -w '%{http_code}' --cacert ",
                              cluster_->pki()->ca_path(), " -H 'authorization: Bearer ", token,
                              "' https://", cluster_->address("frontend", "http"), "/v1/models"));
    EXPECT_TRUE(out == "200" || out == "401" || out == "404") << out;
    return out != "401";
  }

  // A worker's stream at leaf 0.
  struct OpenStream {
    std::unique_ptr<v1::Holdings::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::SenderMessage, v1::ReceiverMessage>> call;
  };
  grpc::Status SayHello(const TlsPaths& files, const std::string& holder, OpenStream* stream) {
    SecurityOptions options;
    options.process = "test";
    options.tls = files;
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
    if (!security.ok()) return {grpc::StatusCode::INTERNAL, security.status().ToString()};
    stream->stub = v1::Holdings::NewStub(
        MakeChannel(cluster_->leaf(0), {.security = *std::move(security), .own_connection = true}));
    stream->context.set_deadline(std::chrono::system_clock::now() + kLong);
    stream->call = stream->stub->Stream(&stream->context);
    Hello hello;
    hello.holder = {holder, 0, ""};
    hello.domain = {"mock", ""};
    hello.block_size = kTokensPerHashId / kSplit;
    hello.contract_id = HashContract().Id();
    hello.epoch = 1;
    hello.instance_id = 7;
    hello.first_kept = 1;
    hello.starting = true;
    v1::SenderMessage message;
    ToProto(SenderMessage(hello), &message);
    stream->call->Write(message);
    v1::ReceiverMessage reply;
    if (!stream->call->Read(&reply)) return stream->call->Finish();
    return grpc::Status::OK;
  }
  // How long until the stream is ended by the leaf.
  static double SecondsUntilTheEnd(OpenStream* stream, Time from) {
    v1::ReceiverMessage reply;
    while (stream->call->Read(&reply)) {
    }
    EXPECT_NE(stream->call->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    return SecondsSince(from);
  }

  void Bound(const std::string& what, double seconds, double at_most) {
    std::fprintf(stderr, "%-48s %.2f s\n", what.c_str(), seconds);
    if (timed_) {
      EXPECT_LE(seconds, at_most) << what;
    }
  }

  void RotateCa(int number);
  void RotateTokens();
  void RevokeAWorker(int number);
  void RefuseWhatWasNeverAllowed(int number);
  void AwaitWholeRoutes(const Load& load) {
    const uint64_t before = load.whole();
    EXPECT_TRUE(Await([&] { return load.whole() > before + 3; }, kLong)) << "only by load";
  }

  std::string tokens_path_;
  Mutex token_mutex_;
  std::string token_ ABSL_GUARDED_BY(token_mutex_) = NewBearerToken();
  std::string old_token_ ABSL_GUARDED_BY(token_mutex_);  // of the rotation before
  std::vector<std::unique_ptr<Pki>> pkis_;               // the present one last
  bool timed_ = false;
};

void SecurityRotationTest::RotateCa(int number) {
  const std::string folder = absl::StrCat(cluster_->logs(), "/pki-", number);
  absl::StatusOr<Pki> made = Pki::Create(folder, cluster_->pki()->trust_domain());
  ASSERT_TRUE(made.ok()) << made.status();
  pkis_.push_back(std::make_unique<Pki>(*std::move(made)));
  const Pki& fresh = *pkis_.back();
  const Pki& old = pkis_.size() > 1 ? *pkis_[pkis_.size() - 2] : *cluster_->pki();
  const std::string ca = cluster_->pki()->ca_path();
  const std::string old_root = TextOf(ca);
  const std::string fresh_root = TextOf(fresh.ca_path());
  const std::string both_path = absl::StrCat(folder, "/both.pem");
  ASSERT_TRUE(WriteFileByRename(both_path, old_root + fresh_root, 0600).ok());
  const auto probe = [&](const Pki& pki, const std::string& roots) {
    PkiIssue issue;
    issue.name = absl::StrCat("probe-", number);
    TlsPaths files = IssueOf(pki, "operator/probe", issue);
    files.ca = roots;
    return files;
  };
  // 1. The new CA beside the old one.
  ASSERT_TRUE(WriteFileByRename(ca, old_root + fresh_root, 0600).ok());
  const TlsPaths by_fresh = probe(fresh, both_path);
  ASSERT_TRUE(Await([&] { return Everywhere(by_fresh, true); }, kLong));
  // 2. Certificates by the new one, of the processes and of the clients here.
  for (const std::string identity :
       {"leaf/cell-0/-", "leaf/cell-1/-", "node/hierarchy", "frontend/frontend",
        "worker/cell-0/worker-0-0", "worker/cell-0/worker-0-1", "worker/cell-1/worker-1-0",
        "worker/cell-1/worker-1-1", "operator/runner", "gateway/load"}) {
    const TlsPaths files = IssueOf(fresh, identity);
    std::string name = identity;
    std::replace(name.begin(), name.end(), '/', '-');
    const std::string there = ca.substr(0, ca.rfind('/') + 1) + name;
    ASSERT_TRUE(WriteFileByRename(there + ".key", TextOf(files.key), 0600).ok());
    ASSERT_TRUE(WriteFileByRename(there + ".pem", TextOf(files.certificate), 0600).ok());
  }
  const Time replaced = Clock::Real().Now();
  // Servers that show it: the old CA is not needed to reach them.
  TlsPaths fresh_alone = by_fresh;
  fresh_alone.ca = fresh.ca_path();
  ASSERT_TRUE(Await([&] { return Everywhere(fresh_alone, true); }, kLong));
  // As docs/security.md says: a file is read within a second, and a connection keeps its
  // certificate for --tls_connection_age.
  ASSERT_TRUE(Await([&] { return SecondsSince(replaced) > 4; }, kLong));
  // 3. The old CA away: what it vouched for is refused.
  const TlsPaths by_old = probe(old, both_path);
  ASSERT_TRUE(Everywhere(by_old, true));
  ASSERT_TRUE(WriteFileByRename(ca, fresh_root, 0600).ok());
  const Time removed = Clock::Real().Now();
  ASSERT_TRUE(Await([&] { return Everywhere(by_old, false); }, kLong));
  // Every process reads its files once a second, and is then asked by some thirty connections.
  Bound("certificates of the old CA are refused after", SecondsSince(removed), 3);
  ASSERT_TRUE(Everywhere(fresh_alone, true));
}

void SecurityRotationTest::RotateTokens() {
  const std::string fresh = NewBearerToken();
  std::string old;
  {
    MutexLock lock(&token_mutex_);
    old = token_;
  }
  WriteTokens({old, fresh});
  ASSERT_TRUE(Await([&] { return TokenPasses(fresh); }, kLong));
  {
    MutexLock lock(&token_mutex_);
    token_ = fresh;
  }
  EXPECT_TRUE(TokenPasses(old));
}

void SecurityRotationTest::RevokeAWorker(int number) {
  const std::string name = absl::StrCat("revoked-", number);
  const TlsPaths files = IssueOf(*pkis_.back(), "worker/cell-0/" + name);
  OpenStream open;
  const grpc::Status hello = SayHello(files, name, &open);
  ASSERT_TRUE(hello.ok()) << hello.error_message();
  WritePolicy("[\"worker/cell-0/" + name + "\"]", kRotationRules);
  const Time revoked = Clock::Real().Now();
  Bound("the open stream of a revoked worker ends after", SecondsUntilTheEnd(&open, revoked), 5);
  OpenStream again;
  EXPECT_FALSE(SayHello(files, name, &again).ok());
  Bound("a revoked worker is refused within", SecondsSince(revoked), 6);
}

void SecurityRotationTest::RefuseWhatWasNeverAllowed(int number) {
  // Of another name.
  const std::string name = absl::StrCat("one-", number);
  const TlsPaths files = IssueOf(*pkis_.back(), "worker/cell-0/" + name);
  Time asked = Clock::Real().Now();
  OpenStream other;
  EXPECT_EQ(SayHello(files, "worker-0-0", &other).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  Bound("a wrong name is refused within", SecondsSince(asked), 1);
  // One that expires while its stream is open, and is refused from then on. It lives longer where a
  // busy machine takes longer to say hello than it lived.
  constexpr int64_t kIssuedBefore = 300;  // seconds
  constexpr int64_t kLivesMax = 60;
  const std::string holder = absl::StrCat("brief-", number);
  TlsPaths expiring;
  for (int64_t lives = 2;; lives *= 3) {
    PkiIssue brief;
    brief.valid_for_s = kIssuedBefore + lives;
    expiring = IssueOf(*pkis_.back(), "worker/cell-0/" + holder, brief);
    const Time expires = Clock::Real().Now() + std::chrono::seconds(lives);
    OpenStream open;
    const grpc::Status hello = SayHello(expiring, holder, &open);
    if (!hello.ok() && Clock::Real().Now() >= expires && lives < kLivesMax) continue;
    ASSERT_TRUE(hello.ok()) << hello.error_message();
    Bound("the stream of an expired certificate ends after", SecondsUntilTheEnd(&open, expires), 5);
    break;
  }
  asked = Clock::Real().Now();
  SecurityOptions options;
  options.tls = expiring;
  EXPECT_FALSE(Security::Start(options).ok()) << "it would not even be shown";
  const std::string out =
      OutputOf(absl::StrCat("curl -s -m 60 -o /dev/null -w '%{http_code}' --cacert ", expiring.ca,
                            " --cert ", expiring.certificate, " --key ", expiring.key, " https://",
                            cluster_->address("leaf-0", "http"), "/status"));
  EXPECT_TRUE(out == "000" || out == "401") << out;
  Bound("an expired certificate is refused within", SecondsSince(asked), 1);
}

TEST_F(SecurityRotationTest, CasCertificatesTokensAndPoliciesRotateUnderLoad) {
  const char* const told = std::getenv("TEST_ROTATIONS");
  timed_ = told != nullptr;
  const int rotations = timed_ ? std::stoi(told) : 2;
  tokens_path_ = testing::TempDir() + "/rotation.tokens";
  {
    MutexLock lock(&token_mutex_);
    WriteTokens({token_});
  }
  ClusterOptions options;
  options.cells = 2;
  options.workers = 2;
  options.capacity = 400;
  const std::string age = "--tls_connection_age=1s";
  options.leaf_args = options.hierarchy_args = {age};
  options.frontend_args = {age, "--access_tokens=" + tokens_path_};
  StartCluster(std::move(options));
  WritePolicy("[]", kRotationRules);
  AwaitReloads(1);
  const TlsPaths of_load = IssueOf(*cluster_->pki(), "gateway/load");
  const auto load_channel = [&](TlsPaths files) {
    return MakeChannel(cluster_->frontend(),
                       {.security = With(std::move(files)), .own_connection = true});
  };
  Load by_certificate(load_channel(of_load), [] { return std::string(); });
  Load by_token(load_channel({.certificate = "", .key = "", .ca = of_load.ca}), [this] {
    MutexLock lock(&token_mutex_);
    return token_;
  });
  AwaitWholeRoutes(by_certificate);
  for (int i = 0; i < rotations && !HasFatalFailure(); ++i) {
    RotateCa(i);
    RotateTokens();
    RevokeAWorker(i);
    RefuseWhatWasNeverAllowed(i);
    // Leaves are asked, and not only what is remembered of them.
    AwaitWholeRoutes(by_certificate);
    AwaitWholeRoutes(by_token);
    // No route is on its way with the tokens of before any more.
    std::string gone;
    {
      MutexLock lock(&token_mutex_);
      WriteTokens({token_});
      gone = std::exchange(old_token_, token_);
    }
    if (!gone.empty()) {
      EXPECT_TRUE(Await([&] { return !TokenPasses(gone); }, kLong));
    }
  }
  by_certificate.Stop();
  by_token.Stop();
  for (const Load* load : {&by_certificate, &by_token}) {
    EXPECT_GT(load->routed(), 0u);
    const std::vector<std::string> failures = load->failures();
    EXPECT_TRUE(failures.empty()) << failures.size() << " failed beside " << load->routed()
                                  << ", the first with "
                                  << (failures.empty() ? "" : failures.front());
  }
  std::fprintf(
      stderr, "%d rotations, %llu routes by certificate, %llu by token, of them whole %llu, %llu\n",
      rotations, static_cast<unsigned long long>(by_certificate.routed()),
      static_cast<unsigned long long>(by_token.routed()),
      static_cast<unsigned long long>(by_certificate.whole()),
      static_cast<unsigned long long>(by_token.whole()));
}

}  // namespace
}  // namespace kvatlas
