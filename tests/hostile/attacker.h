// What does a client without manners tell a leaf or a hierarchy? One call of `Holdings.Stream`,
// message by message.
//
// *Threads*: one. *Bounds*: none; the receiver ends the call.

#ifndef KVATLAS_TESTS_HOSTILE_ATTACKER_H_
#define KVATLAS_TESTS_HOSTILE_ATTACKER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "indexer/stream/messages.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"

namespace kvatlas {

class Attacker {
 public:
  Attacker(const std::shared_ptr<grpc::Channel>& channel, const Hello& hello);
  ~Attacker() { context_.TryCancel(); }

  bool welcomed() const { return welcomed_; }
  const grpc::Status& refusal() const { return refusal_; }
  bool Say(const SenderMessage& message);
  // Why the receiver ended the call.
  grpc::Status Finish();

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SenderMessage, v1::ReceiverMessage>> stream_;
  bool welcomed_ = false;
  grpc::Status refusal_;
};

// A correct one, for `kLeaf` of a worker and for `kHierarchy` of a cell.
Hello HelloOf(const std::string& program, const std::string& name, const std::string& model);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_HOSTILE_ATTACKER_H_
