#include "tools/bench/service_bench_engines.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "publisher/zmq_events.h"
#include "tools/bench/service_bench_query.h"

namespace kvatlas {
namespace {

// Kept of what is held at the end, for checks.
constexpr size_t kPromptsKept = 8;
// Frames carry some time; nothing depends on it.
constexpr double kFrameTime = 1700000000.5;
constexpr int kSendHwm = 256;  // batches an engine may have under way

uint64_t Mixed(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

uint64_t NameOf(SequenceHash block, BlockNames names) {
  return names == BlockNames::kContract ? Raw(block) : Mixed(Raw(block));
}

// Steps of one run of blocks.
template <typename Visit>
void StoreInSteps(const BenchPrompt& prompt, uint32_t block_size, uint32_t event_blocks,
                  const Visit& visit) {
  for (size_t at = 0; at < prompt.names.size(); at += event_blocks) {
    const size_t count = std::min<size_t>(event_blocks, prompt.names.size() - at);
    BenchStep step{.removed = {},
                   .position = static_cast<Position>(at),
                   .parent = std::nullopt,
                   .stored = std::span(prompt.names).subspan(at, count),
                   .tokens = std::span(prompt.tokens).subspan(at * block_size, count * block_size)};
    if (at > 0) step.parent = prompt.names[at - 1];
    visit(step);
  }
}

}  // namespace

BenchPrompt MakePrompt(std::vector<TokenId> tokens, uint32_t block_size, BlockNames names) {
  BenchPrompt prompt{.tokens = std::move(tokens), .locals = {}, .blocks = {}, .names = {}};
  prompt.locals = LocalHashes(prompt.tokens, {.block_size = block_size}, BlockSeed({}));
  prompt.blocks = SequenceHashes(prompt.locals);
  for (const SequenceHash block : prompt.blocks) prompt.names.push_back(NameOf(block, names));
  return prompt;
}

BenchPrompt RandomPrompt(uint32_t blocks, uint32_t block_size, BlockNames names,
                         std::mt19937_64& random) {
  std::vector<TokenId> tokens(size_t{blocks} * block_size);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() >> 47);
  return MakePrompt(std::move(tokens), block_size, names);
}

EngineOutcome RunEngine(const EngineLoad& load, std::mt19937_64& random,
                        const std::function<void(const BenchStep&)>& visit) {
  EngineOutcome outcome;
  std::deque<HeldPrompt> pool;  // least recently stored first
  std::optional<HeldPrompt> evicted;
  std::vector<uint64_t> removed;
  while (outcome.stored < load.blocks) {
    const uint32_t blocks = static_cast<uint32_t>(
        std::min<uint64_t>(load.sequence_blocks, load.blocks - outcome.stored));
    pool.push_back({RandomPrompt(blocks, load.block_size, load.names, random), 0});
    StoreInSteps(pool.back().prompt, load.block_size, load.event_blocks, [&](BenchStep step) {
      removed.clear();
      while (load.capacity != 0 && outcome.held + step.stored.size() > load.capacity) {
        HeldPrompt& oldest = pool.front();
        removed.push_back(oldest.prompt.names[--oldest.blocks]);
        --outcome.held;
        if (oldest.blocks == 0) {
          evicted = std::move(oldest);
          pool.pop_front();
        }
      }
      step.removed = removed;
      visit(step);
      outcome.removed += removed.size();
      outcome.stored += step.stored.size();
      outcome.held += step.stored.size();
      pool.back().blocks += static_cast<uint32_t>(step.stored.size());
    });
    // Without evictions only the last ones are of interest.
    while (load.capacity == 0 && pool.size() > kPromptsKept) pool.pop_front();
  }
  // The oldest is the one that is held in part.
  if (!pool.empty()) outcome.prompts.push_back(std::move(pool.front()));
  for (size_t i = pool.size(); i-- > 1 && outcome.prompts.size() < kPromptsKept;) {
    outcome.prompts.push_back(std::move(pool[i]));
  }
  if (evicted) outcome.prompts.push_back(*std::move(evicted));
  return outcome;
}

std::string FrameOf(const BenchStep& step, uint32_t block_size) {
  ZmqEventEncoder encoder(ZmqEventForm::kMap, block_size, /*rank=*/0);
  for (const uint64_t& name : step.removed) encoder.Removed(Tier::kDevice, {&name, 1});
  if (!step.stored.empty()) {
    encoder.Stored({.hashes = step.stored, .parent = step.parent, .tokens = step.tokens});
  }
  return encoder.Finish(kFrameTime);
}

std::vector<std::string> FramesOf(const BenchPrompt& prompt, uint32_t block_size,
                                  uint32_t event_blocks) {
  std::vector<std::string> frames;
  StoreInSteps(prompt, block_size, event_blocks,
               [&](const BenchStep& step) { frames.push_back(FrameOf(step, block_size)); });
  return frames;
}

// ---- Sockets ----

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
