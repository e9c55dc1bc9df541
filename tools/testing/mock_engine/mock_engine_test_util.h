// Mock engines as processes that publish vLLM's events over ZeroMQ, and what is asked of them.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_ENGINE_TEST_UTIL_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_ENGINE_TEST_UTIL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/ids.h"
#include "indexer/base/test_seed.h"
#include "indexer/net/grpc_channel.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/mock_engine/engine.grpc.pb.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {

inline constexpr uint32_t kMockBlockSize = 16;
inline constexpr std::chrono::seconds kMockWait(60);
// The blocks of a prompt.
using MockPrompt = std::vector<SequenceHash>;

inline ProcessOptions MockProcess(const std::string& name, std::string binary,
                                  std::vector<std::string> args,
                                  const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  args.push_back("--exit_with_parent=true");
  return {.name = name,
          .binary = std::move(binary),
          .args = std::move(args),
          .log = ::testing::TempDir() + "/" + name + ".log"};
}

class MockEngine {
 public:
  explicit MockEngine(const std::string& name, const std::vector<std::string>& more = {},
                      const std::string& events = "tcp://127.0.0.1:0",
                      const std::string& replay = "tcp://127.0.0.1:0")
      : process_(
            MockProcess(name, "tools/testing/mock_engine/mock_engine",
                        {"--grpc=127.0.0.1:0", "--zmq_events=" + events, "--zmq_replay=" + replay,
                         "--zmq_attach=bind", "--zmq_topic=kv@pod@mock", "--capacity=60",
                         "--block_size=" + std::to_string(kMockBlockSize)},
                        more)) {
    const absl::Status started = process_.Start(kMockWait);
    EXPECT_TRUE(started.ok()) << started;
    stub_ = engine::v1::Engine::NewStub(MakeChannel(process_.address("grpc")));
  }

  const std::string& name() const { return process_.name(); }
  std::string events() const { return "tcp://" + process_.address("zmq_events"); }
  std::string replay() const { return "tcp://" + process_.address("zmq_replay"); }

  void Submit(const MockPrompt& prompt) {
    engine::v1::SubmitRequest request;
    request.set_id(++requests_);
    request.set_prompt_tokens(static_cast<uint32_t>(prompt.size() * kMockBlockSize));
    for (const SequenceHash block : prompt) request.add_blocks(Raw(block));
    grpc::ClientContext context;
    engine::v1::StepResponse response;
    EXPECT_TRUE(stub_->Submit(&context, request, &response).ok());
    engine::v1::AdvanceRequest all;
    all.set_time_ms(EngineModel::kForever);
    grpc::ClientContext advance;
    EXPECT_TRUE(stub_->Advance(&advance, all, &response).ok());
  }

  // Leading blocks that it has.
  uint32_t Held(const MockPrompt& prompt) {
    grpc::ClientContext context;
    engine::v1::ContentsResponse response;
    EXPECT_TRUE(stub_->Contents(&context, {}, &response).ok());
    const std::set<uint64_t> held(response.blocks().begin(), response.blocks().end());
    uint32_t blocks = 0;
    while (blocks < prompt.size() && held.contains(Raw(prompt[blocks]))) ++blocks;
    return blocks;
  }

  void Kill() { process_.Kill(); }

 private:
  Process process_;
  std::unique_ptr<engine::v1::Engine::Stub> stub_;
  uint64_t requests_ = 0;
};

// Prompts that share one of four roots.
inline std::vector<MockPrompt> MockPrompts() {
  std::vector<MockPrompt> prompts;
  for (uint64_t p = 0; p < 16; ++p) {
    MockPrompt prompt;
    for (uint64_t i = 0; i < 6; ++i) prompt.push_back(SequenceHash{(p % 4 + 1) * 1000 + i});
    for (uint64_t i = 0; i < 4 + p; ++i) prompt.push_back(SequenceHash{(p + 1) * 100000 + i});
    prompts.push_back(prompt);
  }
  return prompts;
}

// A random prompt to each of some engines, by turns.
class MockTraffic {
 public:
  MockTraffic(std::vector<MockPrompt> prompts, std::vector<MockEngine*> engines)
      : prompts_(std::move(prompts)), engines_(std::move(engines)), random_(seed_) {}

  uint64_t seed() const { return seed_; }

  void Submit(int count) {
    for (int i = 0; i < count; ++i)
      engines_[random_() % engines_.size()]->Submit(prompts_[random_() % prompts_.size()]);
  }

 private:
  const std::vector<MockPrompt> prompts_;
  const std::vector<MockEngine*> engines_;
  const uint64_t seed_ = TestSeed();
  std::mt19937 random_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_MOCK_ENGINE_TEST_UTIL_H_
