// The data-parallel ranks of a mock engine: each a cache, a queue and an event stream of its own,
// behind one HTTP port.
//
//   request ─▶ Choose ─▶ rank 0: EngineService ─▶ Publisher ─▶ tcp://HOST:5557
//                   ╰──▶ rank 1: EngineService ─▶ Publisher ─▶ tcp://HOST:5558
//
// *Truth*: as vLLM does, the rank that a request asks for (`kDataParallelRankHeader`) takes it;
// else the ranks take turns. Ports of events and replay go up by the rank; where port 0 was asked
// for, ports that follow each other are taken.
// *Threads*: any. *Lifetime*: outlives who serves requests by it.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_RANKS_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_RANKS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "publisher/publisher.h"
#include "tools/testing/mock_engine/engine_model.h"
#include "tools/testing/mock_engine/engine_service.h"

namespace kvatlas {

class EngineRanks {
 public:
  // The first rank is `publishing.dp_rank`. INVALID_ARGUMENT, UNAVAILABLE: as `Publisher::Create`.
  static absl::StatusOr<std::unique_ptr<EngineRanks>> Start(const EngineOptions& options,
                                                            const PublisherOptions& publishing,
                                                            uint32_t ranks);

  size_t size() const { return ranks_.size(); }
  EngineService& engine(size_t rank) { return *ranks_[rank].engine; }
  Publisher& publisher(size_t rank) { return *ranks_[rank].publisher; }
  uint32_t number(size_t rank) const { return first_ + static_cast<uint32_t>(rank); }

  // Null: there is no rank of this number.
  EngineService* Choose(std::optional<uint32_t> number);

  void Stop(Duration flush_for);

 private:
  struct Rank {
    std::unique_ptr<Publisher> publisher;
    std::unique_ptr<EngineService> engine;
  };

  explicit EngineRanks(uint32_t first) : first_(first) {}

  const uint32_t first_;
  std::vector<Rank> ranks_;
  std::atomic<uint64_t> turn_{0};
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_RANKS_H_
