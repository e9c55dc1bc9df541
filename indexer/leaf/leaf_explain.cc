// Leaf.Explain: the first blocks of a prompt, and for the workers that reach deepest, in which
// tiers each has each of them.

#include "indexer/leaf/leaf_explain.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/durations.h"
#include "indexer/base/memory_budget.h"
#include "indexer/net/long_answers.h"
#include "indexer/registry/explain_json.h"
#include "indexer/security/visible_domain.h"
#include "indexer/transport/holders_wire.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

constexpr uint32_t kWorkersByDefault = 4;

// The sequence hashes of the prompt's first `kExplainedPromptBlocks` blocks. Tokens beyond are
// neither copied nor hashed; one more is read, since a look-ahead hash (EAGLE) covers the token
// behind its block.
std::vector<SequenceHash> SequenceOf(const v1::Tokens& tokens, uint32_t block_size,
                                     const HashContract& contract) {
  const size_t read = std::min<size_t>(static_cast<size_t>(tokens.ids_size()),
                                       size_t{kExplainedPromptBlocks} * block_size + 1);
  const std::vector<TokenId> ids(tokens.ids().begin(),
                                 tokens.ids().begin() + static_cast<ptrdiff_t>(read));
  const CacheNamespace of{.lora_name = tokens.lora_name(), .cache_salt = tokens.cache_salt()};
  std::vector<SequenceHash> sequence =
      SequenceHashes(LocalHashes(ids, {.block_size = block_size, .eagle = tokens.eagle()},
                                 BlockSeed(of, contract)),
                     contract);
  if (sequence.size() > kExplainedPromptBlocks) sequence.resize(kExplainedPromptBlocks);
  return sequence;
}

// A byte per position: the bits of the tiers that hold the block; 0 where the rank lacks it.
void Fill(const Explanation::Rank& rank, v1::ExplainedWorker* worker) {
  worker->mutable_worker()->set_name(rank.instance);
  worker->mutable_worker()->set_rank(rank.rank);
  worker->set_blocks(rank.detail.any);
  worker->set_held_blocks(rank.detail.held);
  worker->set_trust(ToProto(rank.detail.trust));
  worker->set_age_ms(Milliseconds(rank.detail.age));
  std::string* const tiers = worker->mutable_tiers();
  for (const TierMask held : rank.held) tiers->push_back(static_cast<char>(held.bits()));
}

}  // namespace

// 1. The domain as this asker may see it; a hidden one is answered as an unknown one.
// 2. Memory and one of the process's places for long answers, before anything is hashed: both are
//    given up when this returns.
// 3. `Explanation::Read` copies the holdings of the `workers` deepest ranks; the others are not
//    reported.
absl::Status ExplainPrompt(const HolderRegistry& registry, const HashContract& contract,
                           Security& security, const Identity& asker,
                           const v1::ExplainRequest& request, v1::ExplainResponse* response) {
  Domain asked;
  if (absl::Status bad = FromProto(request.domain(), &asked); !bad.ok()) return bad;
  const VisibleDomain visible = DomainVisibleTo(security, asker, asked);
  const absl::StatusOr<uint32_t> block_size = registry.BlockSizeOf(visible.domain);
  if (!block_size.ok()) return visible.hidden ? NoSuchDomain(asked) : block_size.status();
  if (absl::Status full = CheckMemory(registry.memory(), MemoryLevel::kFull, "explanations");
      !full.ok())
    return full;
  const LongAnswers::Place place = LongAnswers::Process().Take();
  if (place == nullptr) return absl::ResourceExhaustedError(kTooManyLongAnswers);
  Explanation explanation;
  explanation.blocks = SequenceOf(request.tokens(), *block_size, contract);
  if (explanation.blocks.empty()) {
    return absl::InvalidArgumentError(
        "the prompt has " + std::to_string(request.tokens().ids_size()) +
        " tokens, and no full block of " + std::to_string(*block_size));
  }
  const uint32_t wanted = request.workers() == 0 ? kWorkersByDefault : request.workers();
  const uint32_t workers = std::min(wanted, kExplainedWorkersMax);
  explanation.Read(registry, visible.domain, *block_size, workers);
  response->set_block_size(*block_size);
  response->set_blocks(static_cast<uint32_t>(explanation.blocks.size()));
  for (const Explanation::Rank& rank : explanation.ranks)
    if (rank.read) Fill(rank, response->add_workers());
  return absl::OkStatus();
}

}  // namespace kvatlas
