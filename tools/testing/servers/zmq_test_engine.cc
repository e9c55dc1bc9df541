#include "tools/testing/servers/zmq_test_engine.h"

#include <zmq.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "indexer/base/big_endian.h"

namespace kvatlas {
namespace {

constexpr uint64_t kEndOfReplay = UINT64_MAX;

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "test engine: %s: %s\n", what, zmq_strerror(zmq_errno()));
  std::abort();
}

// Never waits: a message that finds no room is lost, as with every PUB and ROUTER.
void Send(void* socket, const std::vector<std::string>& frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int more = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    zmq_send(socket, frames[i].data(), frames[i].size(), ZMQ_DONTWAIT | more);
  }
}

// Empty: nothing came in time.
std::vector<std::string> Receive(void* socket, int timeout_ms) {
  zmq_pollitem_t item = {.socket = socket, .fd = 0, .events = ZMQ_POLLIN, .revents = 0};
  if (zmq_poll(&item, 1, timeout_ms) <= 0) return {};
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    Check(zmq_msg_recv(&frame, socket, 0) >= 0, "receive");
    frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
    more = zmq_msg_more(&frame);
    zmq_msg_close(&frame);
  }
  return frames;
}

// Tries again while the address is still being given back.
void Bind(void* socket, const std::string& endpoint) {
  for (int tries = 0; zmq_bind(socket, endpoint.c_str()) != 0; ++tries) {
    Check(tries < 6000, endpoint.c_str());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string BoundTo(void* socket) {
  char endpoint[1024];
  size_t size = sizeof(endpoint);
  Check(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &size) == 0, "last endpoint");
  return endpoint;
}

void SetInt(void* socket, int option, int value) {
  Check(zmq_setsockopt(socket, option, &value, sizeof(value)) == 0, "option");
}

}  // namespace

ZmqTestEngine::ZmqTestEngine(ZmqTestEngineOptions options)
    : options_(std::move(options)),
      context_(options_.zmq_context != nullptr ? options_.zmq_context : zmq_ctx_new()),
      endpoint_(options_.endpoint),
      replay_endpoint_(options_.replay_endpoint),
      next_number_(options_.first_number),
      manner_(options_.manner) {
  Start();
}

ZmqTestEngine::~ZmqTestEngine() {
  Stop();
  if (options_.zmq_context == nullptr) zmq_ctx_term(context_);
}

void ZmqTestEngine::Encrypt(void* socket) const {
  if (options_.curve_secret.empty()) return;
  SetInt(socket, ZMQ_CURVE_SERVER, 1);
  Check(zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, options_.curve_secret.data(),
                       options_.curve_secret.size()) == 0,
        "key");
}

void ZmqTestEngine::Start() {
  // XPUB: a PUB that shows subscriptions to its owner.
  publisher_ = zmq_socket(context_, ZMQ_XPUB);
  Check(publisher_ != nullptr, "socket");
  SetInt(publisher_, ZMQ_LINGER, 0);
  SetInt(publisher_, ZMQ_SNDHWM, 100000);
  SetInt(publisher_, ZMQ_XPUB_VERBOSER, 1);
  SetInt(publisher_, ZMQ_IPV6, 1);
  SetInt(publisher_, ZMQ_RECONNECT_IVL, 10);
  Encrypt(publisher_);
  if (options_.dial) {
    Check(zmq_connect(publisher_, endpoint_.c_str()) == 0, "connect");
  } else {
    Bind(publisher_, endpoint_);
    endpoint_ = BoundTo(publisher_);
  }
  if (!options_.replay) return;
  router_ = zmq_socket(context_, ZMQ_ROUTER);
  Check(router_ != nullptr, "socket");
  SetInt(router_, ZMQ_LINGER, 0);
  SetInt(router_, ZMQ_SNDHWM, 100000);
  SetInt(router_, ZMQ_IPV6, 1);
  Encrypt(router_);
  Bind(router_, replay_endpoint_);
  replay_endpoint_ = BoundTo(router_);
  {
    MutexLock lock(&mutex_);
    stopping_ = false;
  }
  thread_ = std::thread([this] { RunReplay(); });
}

void ZmqTestEngine::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    askers_.clear();
  }
  if (thread_.joinable()) thread_.join();
  for (void** socket : {&publisher_, &router_}) {
    if (*socket != nullptr) zmq_close(*socket);
    *socket = nullptr;
  }
}

void ZmqTestEngine::Restart(const std::vector<std::string>& unheard) {
  Stop();
  {
    MutexLock lock(&mutex_);
    next_number_ = options_.first_number;
    ring_.clear();
  }
  for (const std::string& payload : unheard) Drop(payload);
  Start();
}

void ZmqTestEngine::WaitForSubscribers(size_t count) {
  for (size_t come = 0; come < count;) {
    const std::vector<std::string> frames = Receive(publisher_, 60'000);
    Check(!frames.empty(), "no subscriber");
    if (!frames[0].empty() && frames[0][0] == 1) ++come;
  }
}

uint64_t ZmqTestEngine::Publish(std::string_view payload) {
  const uint64_t number = Drop(payload);
  Send(publisher_, {options_.topic, BigEndian(number), std::string(payload)});
  return number;
}

uint64_t ZmqTestEngine::Drop(std::string_view payload) {
  MutexLock lock(&mutex_);
  ring_.emplace_back(next_number_, payload);
  if (ring_.size() > options_.ring) ring_.pop_front();
  return next_number_++;
}

void ZmqTestEngine::SendRaw(const std::vector<std::string>& frames) { Send(publisher_, frames); }

uint64_t ZmqTestEngine::next_number() const {
  MutexLock lock(&mutex_);
  return next_number_;
}

void ZmqTestEngine::SetManner(Manner manner) {
  MutexLock lock(&mutex_);
  manner_ = manner;
}

std::vector<uint64_t> ZmqTestEngine::asked() const {
  MutexLock lock(&mutex_);
  return asked_;
}

void ZmqTestEngine::RunReplay() {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    if (!TakeRequest(router_)) Misbehave(router_);
  }
}

bool ZmqTestEngine::TakeRequest(void* router) {
  const std::vector<std::string> frames = Receive(router, 1);
  // [identity, "", start]
  if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != 8) return false;
  const uint64_t from = FromBigEndian(frames[2]);
  {
    MutexLock lock(&mutex_);
    asked_.push_back(from);
    askers_.push_back(frames[0]);
  }
  Answer(router, frames[0], from);
  return true;
}

void ZmqTestEngine::Answer(void* router, const std::string& identity, uint64_t from) {
  std::vector<std::pair<uint64_t, std::string>> batches;
  Manner manner;
  {
    MutexLock lock(&mutex_);
    manner = manner_;
    for (const auto& batch : ring_) {
      if (batch.first >= from) batches.push_back(batch);
    }
  }
  if (manner != Manner::kAnswer && manner != Manner::kEarlyEnd && manner != Manner::kNoEnd) return;
  if (manner == Manner::kEarlyEnd) batches.resize(batches.size() / 2);
  for (const auto& [number, payload] : batches) Reply(router, identity, number, payload);
  if (manner != Manner::kNoEnd) Reply(router, identity, kEndOfReplay, "");
}

void ZmqTestEngine::Reply(void* router, const std::string& identity, uint64_t number,
                          std::string_view payload) const {
  using Layout = ZmqTestEngineOptions::Layout;
  const bool end = number == kEndOfReplay;
  std::vector<std::string> frames = {identity};
  if (options_.layout != Layout::kNoDelimiter) frames.emplace_back();
  if (options_.layout == Layout::kTopic) frames.push_back(end ? "" : options_.topic);
  if (options_.layout == Layout::kNoDelimiter) frames.push_back(end ? "" : options_.topic);
  frames.push_back(BigEndian(number));
  frames.emplace_back(payload);
  Send(router, frames);
}

// A few unasked messages to every peer that ever asked.
void ZmqTestEngine::Misbehave(void* router) {
  constexpr int kBurst = 100;
  std::vector<std::string> askers;
  Manner manner;
  {
    MutexLock lock(&mutex_);
    manner = manner_;
    askers = askers_;
  }
  for (const std::string& identity : askers) {
    for (int i = 0; i < kBurst; ++i) {
      if (manner == Manner::kGarbage) Send(router, {identity, "not", "a", "reply", "at all"});
      if (manner == Manner::kFlood) Reply(router, identity, 0, std::string(1000, 'x'));
    }
  }
}

}  // namespace kvatlas
