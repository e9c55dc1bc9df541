// An engine with a publisher in it: prefill a prompt, reuse its prefix, evict. Run beside a leaf:
//
//   kvatlas-leaf & example_engine 127.0.0.1:7410

#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/tier.h"
#include "publisher/publisher.h"

using kvatlas::EngineHash;
using kvatlas::Publisher;
using kvatlas::Tier;
using kvatlas::TokenId;

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    std::fprintf(stderr, "usage: example_engine [HOST:PORT of a leaf's gRPC, 127.0.0.1:7410]\n");
    return 2;
  }
  absl::StatusOr<std::unique_ptr<Publisher>> created =
      Publisher::Create({.leaves = {argc > 1 ? argv[1] : "127.0.0.1:7410"},
                         .worker = "example-worker",
                         .domain = {.model = "example-model", .tenant = ""},
                         .block_size = 16});
  if (!created.ok()) {
    std::fprintf(stderr, "%s\n", created.status().ToString().c_str());
    return 1;
  }
  Publisher& publisher = **created;

  // A prompt of 64 tokens is prefilled: four blocks, under the engine's own names.
  std::vector<TokenId> prompt(64);
  std::iota(prompt.begin(), prompt.end(), 1000);
  const std::vector<EngineHash> blocks = {0xa1, 0xa2, 0xa3, 0xa4};
  publisher.Stored(Tier::kDevice, blocks, /*parent=*/std::nullopt, prompt);

  // The next turn begins with the same blocks and adds two.
  std::vector<TokenId> turn(32);
  std::iota(turn.begin(), turn.end(), 5000);
  publisher.Stored(Tier::kDevice, {0xb1, 0xb2}, /*parent=*/blocks.back(), turn);

  // Memory runs short: the tail is offloaded to the host, then leaves the device.
  publisher.Stored(Tier::kHost, {0xb1, 0xb2}, /*parent=*/std::nullopt, /*tokens=*/{});
  publisher.Removed(Tier::kDevice, {0xb1, 0xb2});
  publisher.SetLoad({.running_requests = 1, .used_blocks = 4, .free_blocks = 996});

  // An engine never waits; an example does, to say how it went.
  const bool acknowledged = publisher.WaitAcknowledged(std::chrono::seconds(30));
  const kvatlas::PublisherStats stats = publisher.Stats();
  std::printf("%s; %zu blocks held\n", acknowledged ? "acknowledged" : "not acknowledged",
              static_cast<size_t>(stats.blocks_held));
  if (!acknowledged) std::printf("%s\n", stats.last_error.ToString().c_str());
  publisher.Stop(/*goodbye=*/true);
  return acknowledged ? 0 : 1;
}
