// One mock engine as a process sees it: the model behind gRPC, its events and load going into a
// publisher.
//
// *Threads*: calls may come from any; the model is locked, waiting for acknowledgements is not.
// *Truth*: what a call caused is said to the publisher before it returns, in the order of the
// calls.
// *Lifetime*: the publisher outlives the service.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_SERVICE_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_SERVICE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "publisher/publisher.h"
#include "tools/testing/mock_engine/engine.grpc.pb.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {

class EngineService final : public engine::v1::Engine::Service {
 public:
  // With `say_tokens` blocks are published with tokens, as raw engine events need them: a block's
  // own where the prompt came as tokens (`Serve`), else made from its hash (`mock_tokens.h`).
  // Without it by the trace's hashes. REQUIRES: not `say_tokens` of a hybrid model, since its side
  // blocks have no such events here.
  EngineService(const EngineOptions& options, Publisher* publisher, bool say_tokens = false);

  grpc::Status Submit(grpc::ServerContext* context, const engine::v1::SubmitRequest* request,
                      engine::v1::StepResponse* response) override;
  grpc::Status Advance(grpc::ServerContext* context, const engine::v1::AdvanceRequest* request,
                       engine::v1::StepResponse* response) override;
  grpc::Status WaitAcknowledged(grpc::ServerContext* context,
                                const engine::v1::WaitAcknowledgedRequest* request,
                                engine::v1::WaitAcknowledgedResponse* response) override;
  grpc::Status Contents(grpc::ServerContext* context, const engine::v1::ContentsRequest* request,
                        engine::v1::ContentsResponse* response) override;

  // A whole request at once: all its time passes. Tokens of its prompt that were cached on arrival;
  // nothing: it is too long. Its blocks are told with its salt.
  std::optional<uint32_t> Serve(std::span<const TokenId> tokens, const std::string& cache_salt,
                                uint32_t output_tokens);

  Load CurrentLoad();
  uint64_t capacity_blocks() const { return capacity_blocks_; }

 private:
  struct Content {
    std::vector<TokenId> tokens;
    std::string cache_salt;
  };

  void KeepContent(const std::vector<SequenceHash>& blocks, std::span<const TokenId> tokens,
                   const std::string& cache_salt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishTokens(const Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(const EngineStep& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Describe(const EngineStep& step, engine::v1::StepResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Connected() const;
  bool Wait(uint32_t wait_ms);

  Publisher* const publisher_;
  const bool say_tokens_;
  const uint64_t capacity_blocks_;
  Mutex mutex_;
  // With `say_tokens`: of blocks that came as tokens, until they are removed.
  absl::flat_hash_map<SequenceHash, Content> contents_ ABSL_GUARDED_BY(mutex_);
  uint64_t served_ ABSL_GUARDED_BY(mutex_) = 0;
  EngineModel model_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_SERVICE_H_
