#include "tools/bench/service_bench_zmq.h"

#include <zmq.h>

#include <algorithm>
#include <array>

namespace kvatlas {
namespace {

constexpr int kSendHwm = 256;  // batches an engine may have under way

}  // namespace

absl::StatusOr<std::unique_ptr<ZmqFeeder>> ZmqFeeder::Create(uint32_t engines) {
  std::unique_ptr<ZmqFeeder> feeder(new ZmqFeeder);
  feeder->context_ = zmq_ctx_new();
  zmq_ctx_set(feeder->context_, ZMQ_MAX_SOCKETS, static_cast<int>(engines) + 16);
  for (uint32_t i = 0; i < engines; ++i) {
    // XPUB tells of subscribers, and can refuse instead of dropping.
    void* const socket = zmq_socket(feeder->context_, ZMQ_XPUB);
    if (socket == nullptr) return absl::UnavailableError("no ZMQ socket");
    feeder->sockets_.push_back({.socket = socket, .endpoint = ""});
    const int hwm = kSendHwm;
    const int on = 1;
    const int off = 0;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof(hwm));
    zmq_setsockopt(socket, ZMQ_XPUB_NODROP, &on, sizeof(on));
    zmq_setsockopt(socket, ZMQ_LINGER, &off, sizeof(off));
    if (zmq_bind(socket, "tcp://127.0.0.1:*") != 0) {
      return absl::UnavailableError(std::string("cannot bind: ") + zmq_strerror(zmq_errno()));
    }
    std::array<char, 256> endpoint;
    size_t size = endpoint.size();
    zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint.data(), &size);
    feeder->sockets_.back().endpoint = endpoint.data();
  }
  return feeder;
}

ZmqFeeder::~ZmqFeeder() {
  for (const Socket& socket : sockets_) zmq_close(socket.socket);
  if (context_ != nullptr) zmq_ctx_term(context_);
}

absl::Status ZmqFeeder::Register(HttpClient* http, uint32_t block_size, Duration timeout) {
  for (uint32_t i = 0; i < engines(); ++i) {
    const std::string body = "{\"instance_id\":" + std::to_string(i + 1) + ",\"endpoint\":\"" +
                             sockets_[i].endpoint + "\",\"model_name\":\"" + kBenchModel +
                             "\",\"block_size\":" + std::to_string(block_size) + "}";
    const absl::StatusOr<HttpAnswer> answer = http->Post("/register", body);
    if (!answer.ok()) return answer.status();
    if (answer->status != 200 && answer->status != 201) {
      return absl::UnavailableError("POST /register: " + std::to_string(answer->status) + " " +
                                    answer->body);
    }
  }
  const Time until = Clock::Real().Now() + timeout;
  for (uint32_t i = 0; i < engines(); ++i) {
    const int left_ms =
        static_cast<int>(std::max<int64_t>(0, (until - Clock::Real().Now()).count() / 1'000'000));
    zmq_setsockopt(sockets_[i].socket, ZMQ_RCVTIMEO, &left_ms, sizeof(left_ms));
    std::array<char, 64> subscription;
    if (zmq_recv(sockets_[i].socket, subscription.data(), subscription.size(), 0) < 0) {
      return absl::DeadlineExceededError("no subscriber of engine " + std::to_string(i + 1) +
                                         " at " + sockets_[i].endpoint);
    }
  }
  return absl::OkStatus();
}

bool ZmqFeeder::TrySend(uint32_t engine, const std::string& payload) {
  Socket& to = sockets_[engine];
  // Only the first frame of a message can be refused.
  if (zmq_send(to.socket, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) return false;
  std::array<char, 8> number;
  for (int i = 0; i < 8; ++i) number[i] = static_cast<char>(to.next >> (56 - 8 * i));
  zmq_send(to.socket, number.data(), number.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE);
  zmq_msg_t message;
  zmq_msg_init_data(
      &message, const_cast<char*>(payload.data()), payload.size(), [](void*, void*) {}, nullptr);
  if (zmq_msg_send(&message, to.socket, ZMQ_DONTWAIT) < 0) zmq_msg_close(&message);
  ++to.next;
  bytes_sent_ += payload.size() + number.size();
  return true;
}

}  // namespace kvatlas
