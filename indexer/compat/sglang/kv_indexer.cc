// Answers to SGLang's router. A name of a page (8 bytes of a SHA-256 chain) becomes one of our
// blocks in `SglangBlockHashes`, blocks become holders in the registry, and a holder becomes the
// address that its labels give.
// Whatever is not known is no match and OK: the router passes most errors on to its user.

#include "indexer/compat/sglang/kv_indexer.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/kv_events/engine_registration.h"

namespace kvatlas {
namespace {

namespace v1 = ::kv_indexer::v1;

// Bound of the trailing metadata: clients accept header lists of 8 kB at least, and a longer one
// fails the call.
constexpr size_t kTrustBytesMax = 1024;

// The interface's three tiers; blocks in external stores are not listed by `Match`.
constexpr std::array<std::pair<Tier, v1::TierType>, 3> kListedTiers = {
    {{Tier::kDevice, v1::TIER_HBM}, {Tier::kHost, v1::TIER_DRAM}, {Tier::kDisk, v1::TIER_SSD}}};

absl::Status TooMany(int hashes, int most) {
  return absl::ResourceExhaustedError(std::to_string(hashes) + " hashes, at most " +
                                      std::to_string(most) + " are answered");
}

absl::Status NoDomain() {
  return absl::UnavailableError("this leaf answers for no model: set --kv_indexer_model");
}

// The label `worker_address`, or else `url`: it must be, byte for byte, what the router knows the
// worker by. Null: neither label has a value.
const std::string* AddressOf(const HolderInfo& holder) {
  const std::string* url = nullptr;
  for (const auto& [name, value] : holder.labels) {
    if (value.empty()) continue;
    if (name == "worker_address") return &value;
    if (name == "url") url = &value;
  }
  return url;
}

// Appends "HOLDER=TRUST". Metadata takes visible characters alone, so others and the separators are
// %XX. Stops at the bound, perhaps within a name; the trust behind it is still whole.
void AppendTrust(const HolderId& holder, Trust trust, std::string* text) {
  if (text->size() >= kTrustBytesMax) return;
  constexpr char kDigits[] = "0123456789ABCDEF";
  if (!text->empty()) *text += ',';
  for (const char c : ToString(holder)) {
    if (c > ' ' && c <= '~' && c != ',' && c != '=' && c != '%') {
      *text += c;
    } else {
      *text += {'%', kDigits[static_cast<uint8_t>(c) >> 4], kDigits[c & 15]};
    }
    if (text->size() >= kTrustBytesMax) break;
  }
  *text += trust == Trust::kStale ? "=stale" : "=degraded";
}

// The wire has signed numbers; a name is their bits. No copy.
std::span<const uint64_t> NamesOf(const google::protobuf::RepeatedField<int64_t>& hashes,
                                  size_t most) {
  return {reinterpret_cast<const uint64_t*>(hashes.data()), most};
}

}  // namespace

// The last '=' separates: a model's name may have one, a tenant's may not.
absl::StatusOr<Domain> ParseKvIndexerModel(std::string_view text) {
  const size_t equals = text.rfind('=');
  const std::string_view model = text.substr(0, equals);
  if (model.empty())
    return absl::InvalidArgumentError("\"" + std::string(text) + "\" is not MODEL[=TENANT]");
  return DomainOf(model,
                  equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1));
}

KvIndexer::KvIndexer(const KvIndexerOptions& options, const HolderRegistry* registry,
                     const SglangBlockHashes* names)
    : options_(options), registry_(registry), names_(names) {}

// 1. Bounds; then only the first `max_blocks` hashes count, if the router says so.
// 2. `FindPrefix`: blocks of the leading names that are known. None: no match, `blocks_read` is 1.
// 3. `FindOverlaps` in the tiers that count: leading blocks that a holder can reuse.
// 4. Holders without an address are left out; the others are answered deepest first, then by name.
// The vectors are kept per thread: a prefix query allocates nothing for them. `found` points into
// `answer` and is valid within this call alone.
absl::Status KvIndexer::MatchPrefix(const v1::MatchExternalKvPrefixRequest& request,
                                    v1::MatchExternalKvPrefixResponse* response,
                                    std::string* trust) const {
  static thread_local std::vector<SequenceHash> blocks;
  static thread_local std::vector<std::pair<const HolderOverlap*, const std::string*>> found;
  const int given = request.hashes_size();
  if (given == 0) return absl::InvalidArgumentError("no hashes");
  if (given > kKvIndexerHashesMax) return TooMany(given, kKvIndexerHashesMax);
  if (!options_.domain.has_value()) return NoDomain();
  uint32_t limit = static_cast<uint32_t>(given);
  if (request.max_blocks() != 0) limit = std::min(limit, request.max_blocks());
  response->set_blocks_read(1);
  names_->FindPrefix(NamesOf(request.hashes(), limit), &blocks);
  if (blocks.empty()) return absl::OkStatus();
  TierMask tiers = TierMask::Routed();
  if (options_.counts_disk) tiers = tiers | Tier::kDisk;
  const absl::StatusOr<OverlapAnswer> answer =
      registry_->FindOverlaps(*options_.domain, {.blocks = blocks, .tiers = tiers});
  if (!answer.ok() || answer->holders.empty()) return absl::OkStatus();
  response->set_blocks_read(limit);
  found.clear();
  for (const HolderOverlap& overlap : answer->holders) {
    const std::string* const address = AddressOf(*overlap.holder);
    if (overlap.blocks > 0 && address != nullptr) found.emplace_back(&overlap, address);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    if (a.first->blocks != b.first->blocks) return a.first->blocks > b.first->blocks;
    return a.first->holder->id < b.first->holder->id;
  });
  response->mutable_matches()->Reserve(static_cast<int>(found.size()));
  for (const auto& [overlap, address] : found) {
    v1::ExternalKvPrefixMatch* const match = response->add_matches();
    match->set_worker_address(*address);
    match->set_matched_prefix_blocks(overlap->blocks);
    match->set_worker_id(ToString(overlap->holder->id));
    if (overlap->trust != Trust::kExact) AppendTrust(overlap->holder->id, overlap->trust, trust);
  }
  if (!found.empty()) response->set_best_prefix_blocks(found[0].first->blocks);
  return absl::OkStatus();
}

// Each distinct hash is looked up alone, in each listed tier: which holders have this one block
// there, whatever stands before it. So the cost is three questions of one block per hash, hence the
// lower bound `kKvIndexerListMax`. `held_only`: what is held counts, not what can be reused.
// Workers come in order of their ids.
absl::Status KvIndexer::Match(const v1::MatchExternalKvRequest& request,
                              v1::MatchExternalKvResponse* response) {
  struct Worker {
    std::string address;
    std::array<std::vector<int64_t>, kListedTiers.size()> hashes;
  };
  if (request.hashes_size() > kKvIndexerListMax)
    return TooMany(request.hashes_size(), kKvIndexerListMax);
  if (!options_.domain.has_value()) return NoDomain();
  std::map<HolderId, Worker> workers;
  absl::flat_hash_map<int64_t, bool> matched;  // of the request; whether some worker holds it
  for (const int64_t hash : request.hashes()) {
    const auto [it, is_new] = matched.try_emplace(hash, false);
    if (!is_new) continue;
    const std::optional<SequenceHash> block = names_->Find(static_cast<uint64_t>(hash));
    if (!block.has_value()) continue;
    for (size_t tier = 0; tier < kListedTiers.size(); ++tier) {
      const absl::StatusOr<OverlapAnswer> answer = registry_->FindOverlaps(
          *options_.domain, {.blocks = std::span(&*block, 1), .tiers = kListedTiers[tier].first},
          /*all_holders=*/false, /*by_tier=*/false, /*held_only=*/true);
      if (!answer.ok()) return absl::OkStatus();
      for (const HolderOverlap& overlap : answer->holders) {
        Worker& worker = workers[overlap.holder->id];
        if (const std::string* address = AddressOf(*overlap.holder)) worker.address = *address;
        worker.hashes[tier].push_back(hash);
        it->second = true;
      }
    }
  }
  for (const auto& [id, worker] : workers) {
    v1::ExternalKvNodeMatch* const match = response->add_matches();
    match->set_worker_id(ToString(id));
    match->set_address(worker.address);
    for (size_t tier = 0; tier < kListedTiers.size(); ++tier) {
      if (worker.hashes[tier].empty()) continue;
      v1::TierHashes* const held = match->add_hashes_by_tier();
      held->set_tier(kListedTiers[tier].second);
      held->mutable_hashes()->Add(worker.hashes[tier].begin(), worker.hashes[tier].end());
    }
  }
  if (request.count_as_hit()) CountHits(matched);
  return absl::OkStatus();
}

// Counts hashes that some worker held. At the bound known hashes go on counting and new ones are
// not taken; nothing is ever dropped.
void KvIndexer::CountHits(const absl::flat_hash_map<int64_t, bool>& matched) {
  MutexLock lock(&mutex_);
  for (const auto& [hash, is_held] : matched) {
    if (!is_held) continue;
    const auto found = hits_.find(hash);
    if (found != hits_.end()) {
      ++found->second;
    } else if (hits_.size() < kHitCountsMax) {
      hits_.emplace(hash, 1);
    }
  }
}

absl::Status KvIndexer::HitCounts(const v1::GetExternalKvHitCountsRequest& request,
                                  v1::GetExternalKvHitCountsResponse* response) const {
  if (request.hashes_size() > kKvIndexerListMax)
    return TooMany(request.hashes_size(), kKvIndexerListMax);
  MutexLock lock(&mutex_);
  for (const int64_t hash : request.hashes()) {
    const auto found = hits_.find(hash);
    if (found == hits_.end()) continue;
    v1::HitCountEntry* const entry = response->add_entries();
    entry->set_hash(hash);
    entry->set_hit_count_total(found->second);
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
