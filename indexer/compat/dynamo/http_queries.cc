// From a query's body to the text of its answer. `SubjectOf` finds the domain or the refusal,
// `ChainOf` the prompt's sequence hashes, and the walk in the index tells a `ScoresAnswer` of each
// holder.
// Memory for a question (`Scratch`) is borrowed and given back, so that a steady load allocates
// nothing.

#include "indexer/compat/dynamo/http_queries.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/registry/explain_json.h"
#include "indexer/security/visible_domain.h"

namespace kvatlas {
namespace {

// A scratch that a huge prompt has passed through is not kept: idle scratches are as many as
// questions were ever asked at once, and each stays as large as it has grown.
constexpr size_t kKeptElementsMax = 1 << 16;

bool IsSmall(const HttpQueries::Scratch& scratch) {
  size_t elements = scratch.locals.capacity();
  for (const QueryBody& query : scratch.body.queries) {
    elements += query.tokens.capacity() + query.hashes.capacity();
  }
  return elements <= kKeptElementsMax;
}

}  // namespace

HttpQueries::HttpQueries(HashContract contract, const HolderRegistry* registry,
                         const EngineDirectory* directory, std::shared_ptr<Security> security)
    : contract_(contract),
      registry_(registry),
      directory_(directory),
      security_(std::move(security)) {}

HttpQueries::~HttpQueries() = default;

// The most recently returned scratch: its memory is most likely in a cache. A new one when all are
// lent.
HttpQueries::Lease HttpQueries::Borrow() {
  {
    MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(idle_.back());
      idle_.pop_back();
      return Lease(this, std::move(scratch));
    }
  }
  return Lease(this, std::make_unique<Scratch>());
}

HttpQueries::Lease::~Lease() {
  if (!IsSmall(*scratch_)) return;
  MutexLock lock(&queries_->mutex_);
  queries_->idle_.push_back(std::move(scratch_));
}

// The domain that the query is about, as far as this asker may see it, with the hash variants to
// ask under; or a status and its text.
// A domain with a block size of 0 (an engine's is still to be learned, or was registered so) is
// answered with 200 and no workers: the directory knows it and the registry does not yet. A domain
// that is unknown or hidden is 404 in Dynamo's words.
HttpQueries::Subject HttpQueries::SubjectOf(const QueryBody& query, const Identity& asker) const {
  Subject subject;
  if (query.by_hash && query.cache_salt.has_value()) {
    subject.status = 400;
    subject.error =
        "cache_salt is not accepted by /query_by_hash; block_hashes must already include the "
        "intended cache salt";
    return subject;
  }
  subject.domain = DomainVisibleTo(*security_, asker, DomainOf(query.model, query.group)).domain;
  if (absl::StatusOr<uint32_t> size = registry_->BlockSizeOf(subject.domain); size.ok()) {
    subject.block_size = *size;
    if (!query.by_hash && directory_ != nullptr)
      subject.look_aheads |= directory_->LookAheads(subject.domain);
    return subject;
  }
  if (directory_ != nullptr && directory_->BlockSizeOf(subject.domain).has_value()) return subject;
  subject.status = 404;
  subject.error =
      absl::StrCat("no indexer for model=", query.model, " routing_group=", query.group);
  return subject;
}

// The prompt's sequence hashes. Local hashes come as signed numbers and are taken for their bits;
// tokens are hashed under adapter and salt, and with `eagle` tokens of look-ahead behind each
// block.
std::vector<SequenceHash> HttpQueries::ChainOf(const QueryBody& query, uint32_t block_size,
                                               uint32_t eagle,
                                               std::vector<LocalHash>* locals) const {
  if (query.by_hash) {
    locals->resize(query.hashes.size());
    std::transform(query.hashes.begin(), query.hashes.end(), locals->begin(),
                   [](int64_t hash) { return LocalHash{static_cast<uint64_t>(hash)}; });
  } else {
    const uint64_t seed = BlockSeed(
        {.lora_name = query.lora_name.value_or(""), .cache_salt = query.cache_salt.value_or("")},
        contract_);
    *locals = LocalHashes(query.tokens, {.block_size = block_size, .eagle = eagle}, seed);
  }
  return SequenceHashes(*locals, contract_);
}

int HttpQueries::Answer(const QueryBody& query, const Identity& asker, bool detail,
                        Scratch* scratch, std::string* out) const {
  const Subject subject = SubjectOf(query, asker);
  if (subject.status != 200) {
    AppendJsonError(subject.error, out);
    return subject.status;
  }
  ScoresAnswer& answer = scratch->answer;
  answer.Clear();
  // One walk for each kind of hash that the domain's workers announce (bit k of `look_aheads`: k
  // tokens of look-ahead). A holder is found by one of them, or by several and then counts with the
  // larger (`ScoresAnswer::Add`).
  for (uint32_t left = subject.block_size > 0 ? subject.look_aheads : 0; left != 0;
       left &= left - 1) {
    const auto eagle = static_cast<uint32_t>(std::countr_zero(left));
    // A domain that went meanwhile had no holders left.
    registry_
        ->VisitReaches(subject.domain, ChainOf(query, subject.block_size, eagle, &scratch->locals),
                       [&answer](const HolderInfo& holder, const TierReach& reach) {
                         answer.Add(holder, reach);
                       })
        .IgnoreError();
  }
  answer.Write(subject.block_size, /*open=*/detail, out);
  if (detail) {
    AppendDetail(subject, query, scratch, out);
    *out += '}';
  }
  return 200;
}

void HttpQueries::AppendDetail(const Subject& subject, const QueryBody& query, Scratch* scratch,
                               std::string* out) const {
  RankDetails ranks;
  for (uint32_t left = subject.block_size > 0 ? subject.look_aheads : 0; left != 0;
       left &= left - 1) {
    const auto eagle = static_cast<uint32_t>(std::countr_zero(left));
    AddRankDetails(*registry_, subject.domain,
                   ChainOf(query, subject.block_size, eagle, &scratch->locals), &ranks);
  }
  *out += ",\"detail\":";
  AppendRankDetails(ranks, subject.block_size, out);
}

// The kind of hash under which some rank reaches deepest is explained; among equals plain hashes.
int HttpQueries::Explain(const QueryBody& query, const Identity& asker,
                         const ExplainOptions& options, std::string* out) const {
  const Subject subject = SubjectOf(query, asker);
  if (subject.status != 200) {
    AppendJsonError(subject.error, out);
    return subject.status;
  }
  Explanation best;
  for (uint32_t left = subject.look_aheads; left != 0; left &= left - 1) {
    const auto eagle = static_cast<uint32_t>(std::countr_zero(left));
    std::vector<LocalHash> locals;
    Explanation explanation;
    explanation.eagle = eagle != 0;
    explanation.blocks = subject.block_size == 0
                             ? std::vector<SequenceHash>()
                             : ChainOf(query, subject.block_size, eagle, &locals);
    explanation.locals = std::move(locals);
    explanation.Read(*registry_, subject.domain, subject.block_size, options.ranks_max);
    if (eagle == 0 || explanation.deepest() > best.deepest()) best = std::move(explanation);
  }
  best.Append({.model = query.model,
               .group = query.group,
               .block_size = subject.block_size,
               .tokens = query.by_hash ? uint64_t{query.hashes.size()} * subject.block_size
                                       : uint64_t{query.tokens.size()},
               .lora_name = query.lora_name.value_or(""),
               .cache_salt = query.cache_salt.value_or(""),
               .contract = contract_.Id(),
               .blocks_max = options.blocks_max},
              out);
  return 200;
}

}  // namespace kvatlas
