#include "tools/testing/mock_engine/engine_ranks.h"

#include <string>
#include <utility>

#include "publisher/zmq_publisher.h"

namespace kvatlas {
namespace {

// So often ports that follow each other are looked for.
constexpr int kPortTriesMax = 64;

bool TakesFreePort(const std::string& endpoint) {
  return endpoint.ends_with(":0") || endpoint.ends_with(":*");
}

// What the others' ports are counted from: the endpoint of rank 0, as that of the first rank was
// bound.
std::string EndpointOfRank0(const std::string& bound, uint32_t first) {
  const size_t colon = bound.rfind(':');
  const uint32_t port = static_cast<uint32_t>(std::stoul(bound.substr(colon + 1)));
  return bound.substr(0, colon + 1) + std::to_string(port > first ? port - first : port);
}

using Publishers = std::vector<std::unique_ptr<Publisher>>;

absl::StatusOr<Publishers> CreatePublishers(PublisherOptions options, uint32_t ranks) {
  const uint32_t first = options.dp_rank;
  // Also at ports that are given from the second rank on.
  if (ZmqBinds(options.zmq.endpoint, options.zmq.attach)) options.zmq.attach = ZmqAttach::kBind;
  Publishers made;
  for (uint32_t i = 0; i < ranks; ++i) {
    options.dp_rank = first + i;
    absl::StatusOr<std::unique_ptr<Publisher>> publisher = Publisher::Create(options);
    if (!publisher.ok()) return publisher.status();
    made.push_back(*std::move(publisher));
    const std::optional<ZmqPublisherStats> zmq = made.back()->Stats().zmq;
    if (i > 0 || !zmq.has_value()) continue;
    for (auto [given, bound] : {std::pair(&options.zmq.endpoint, &zmq->endpoint),
                                std::pair(&options.zmq.replay_endpoint, &zmq->replay_endpoint)})
      if (TakesFreePort(*given)) *given = EndpointOfRank0(*bound, first);
  }
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineRanks>> EngineRanks::Start(const EngineOptions& options,
                                                                const PublisherOptions& publishing,
                                                                uint32_t ranks) {
  const bool free_ports = ranks > 1 && (TakesFreePort(publishing.zmq.endpoint) ||
                                        TakesFreePort(publishing.zmq.replay_endpoint));
  absl::StatusOr<Publishers> publishers = CreatePublishers(publishing, ranks);
  for (int i = 1; free_ports && absl::IsUnavailable(publishers.status()) && i < kPortTriesMax; ++i)
    publishers = CreatePublishers(publishing, ranks);
  if (!publishers.ok()) return publishers.status();
  std::unique_ptr<EngineRanks> made(new EngineRanks(publishing.dp_rank));
  for (std::unique_ptr<Publisher>& publisher : *publishers) {
    auto engine = std::make_unique<EngineService>(options, publisher.get(),
                                                  /*say_tokens=*/!publishing.zmq.endpoint.empty());
    made->ranks_.push_back({.publisher = std::move(publisher), .engine = std::move(engine)});
  }
  return made;
}

EngineService* EngineRanks::Choose(std::optional<uint32_t> number) {
  if (!number.has_value())
    return ranks_[turn_.fetch_add(1, std::memory_order_relaxed) % ranks_.size()].engine.get();
  if (*number < first_ || *number - first_ >= ranks_.size()) return nullptr;
  return ranks_[*number - first_].engine.get();
}

void EngineRanks::Stop(Duration flush_for) {
  for (Rank& rank : ranks_) rank.publisher->Stop(/*goodbye=*/true, flush_for);
}

}  // namespace kvatlas
