#include "tests/hostile/attacker.h"

#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/waypoints.h"
#include "indexer/transport/wire.h"
#include "tests/hostile/siege.h"

namespace kvatlas {

Attacker::Attacker(const std::shared_ptr<grpc::Channel>& channel, const Hello& hello)
    : stream_(v1::Holdings::NewStub(channel)->Stream(&context_)) {
  v1::ReceiverMessage reply;
  if (Say(hello) && stream_->Read(&reply)) welcomed_ = reply.has_welcome();
  if (!welcomed_) refusal_ = stream_->Finish();
}

bool Attacker::Say(const SenderMessage& message) {
  v1::SenderMessage out;
  ToProto(message, &out);
  return stream_->Write(out);
}

grpc::Status Attacker::Finish() {
  v1::ReceiverMessage reply;
  while (stream_->Read(&reply)) {
  }
  return stream_->Finish();
}

Hello HelloOf(const std::string& program, const std::string& name, const std::string& model) {
  Hello hello;
  hello.holder = {name, 0, ""};
  hello.domain = {model, ""};
  hello.block_size = 16;
  hello.contract_id = HashContract().Id();
  if (program == kHierarchy) hello.schedule = WaypointSchedule::Standard().Name();
  hello.epoch = WallTimeNs();
  hello.instance_id = RandomInstanceId();
  hello.starting = true;
  return hello;
}

}  // namespace kvatlas
