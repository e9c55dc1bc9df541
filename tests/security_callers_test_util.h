// Clients of every role, what they say, and what became of it: for tables of who may do what.

#ifndef KVATLAS_TESTS_SECURITY_CALLERS_TEST_UTIL_H_
#define KVATLAS_TESTS_SECURITY_CALLERS_TEST_UTIL_H_

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/waypoints.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"
#include "proto/kvatlas/v1/truth.grpc.pb.h"
#include "tests/security_test_util.h"

namespace kvatlas {

// Who comes with which certificate. "stranger" has one of the fleet's CA, and no identity in it.
inline const std::map<std::string, std::string>& Callers() {
  static const auto* const callers =
      new std::map<std::string, std::string>{{"anonymous", ""},
                                             {"stranger", "stranger"},
                                             {"worker", "worker/cell-0/w"},
                                             {"worker_of_9", "worker/cell-9/w"},
                                             {"leaf", "leaf/cell-0/r"},
                                             {"leaf_of_9", "leaf/cell-9/r"},
                                             {"node", "node/n"},
                                             {"frontend", "frontend/f"},
                                             {"gateway", "gateway/g"},
                                             {"operator", "operator/o"},
                                             {"viewer", "viewer/v"}};
  return *callers;
}

enum class Outcome { kPasses, kRefused, kUnknown };  // kUnknown: as what was never announced

inline Outcome OutcomeOf(const grpc::Status& status) {
  EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  switch (status.error_code()) {
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      EXPECT_EQ(status.error_message().find("rules["), std::string::npos);
      return Outcome::kRefused;
    case grpc::StatusCode::NOT_FOUND:
      return Outcome::kUnknown;
    default:
      return Outcome::kPasses;
  }
}

inline Outcome OutcomeOfHttp(const std::string& out) {
  const std::string status = out.size() < 3 ? out : out.substr(out.size() - 3);
  EXPECT_NE(status, "000") << out;
  EXPECT_EQ(out.find("rules["), std::string::npos) << out;
  if (status == "401" || status == "403") return Outcome::kRefused;
  return status == "404" ? Outcome::kUnknown : Outcome::kPasses;
}

// Lines of the audit log that say that this caller was not allowed this.
inline size_t Refusals(const std::string& audit, const std::string& caller,
                       const std::string& verb) {
  const std::string& identity = Callers().at(caller);
  // One without an identity is in it as anonymous, or, where its credential was not taken, with the
  // reason alone.
  const std::string who = caller == "stranger" ? "" : identity.empty() ? "anonymous" : identity;
  size_t found = 0;
  std::istringstream lines(audit);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("\"allowed\":false") == std::string::npos) continue;
    if (line.find("\"identity\":\"" + who + "\"") == std::string::npos) continue;
    // A leaf that knocks with a stream of workers is asked as what it is.
    found += line.find("\"verb\":\"" + verb + "\"") != std::string::npos ||
             ((verb == "publish" || verb == "report") &&
              (line.find("\"verb\":\"report\"") != std::string::npos ||
               line.find("\"verb\":\"publish\"") != std::string::npos));
  }
  return found;
}

class SecurityCallersTest : public SecurityTest {
 protected:
  template <typename Stub>
  auto& StubOf(std::map<std::string, std::unique_ptr<typename Stub::Stub>>& stubs,
               const std::string& identity, const std::string& address) {
    auto& stub = stubs[identity];
    if (stub == nullptr) stub = Stub::NewStub(ChannelAs(identity, address));
    return *stub;
  }

  static void Limit(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }

  // A stream of holdings that says hello. Those that pass stay open until the test ends.
  Outcome SayHello(const std::string& identity, const std::string& address, const Hello& hello) {
    auto open = std::make_unique<OpenStream>();
    open->stub = v1::Holdings::NewStub(ChannelAs(identity, address));
    Limit(&open->context);
    open->call = open->stub->Stream(&open->context);
    v1::SenderMessage message;
    ToProto(SenderMessage(hello), &message);
    open->call->Write(message);
    v1::ReceiverMessage reply;
    if (!open->call->Read(&reply) || reply.has_refuse()) {
      const grpc::Status status = open->call->Finish();
      open->call = nullptr;  // it is over
      return OutcomeOf(status);
    }
    open_.push_back(std::move(open));
    return Outcome::kPasses;
  }

  static Hello WorkerHello() {
    Hello hello;
    hello.holder = {"w", 0, ""};
    hello.domain = {"mock", ""};
    hello.block_size = kTokensPerHashId / kSplit;
    hello.contract_id = HashContract().Id();
    hello.epoch = 1;
    hello.instance_id = 7;
    hello.first_kept = 1;
    hello.starting = true;
    return hello;
  }

  static Hello LeafHello() {
    Hello hello = WorkerHello();
    hello.holder = {"cell-0", 0, "r"};
    hello.schedule = WaypointSchedule::Standard().Name();
    hello.address = "127.0.0.1:1";
    return hello;
  }

  struct OpenStream {
    std::unique_ptr<v1::Holdings::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::SenderMessage, v1::ReceiverMessage>> call;
    ~OpenStream() {
      context.TryCancel();
      if (call != nullptr) call->Finish();
    }
  };
  std::vector<std::unique_ptr<OpenStream>> open_;
  std::map<std::string, std::unique_ptr<v1::Leaf::Stub>> leaves_;
  std::map<std::string, std::unique_ptr<v1::Hierarchy::Stub>> nodes_;
  std::map<std::string, std::unique_ptr<v1::Frontend::Stub>> frontends_;
  std::map<std::string, std::unique_ptr<v1::Truth::Stub>> truths_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_SECURITY_CALLERS_TEST_UTIL_H_
