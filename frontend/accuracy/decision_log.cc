// Records by id, in a queue by age. Both containers always have the same ids: `DropOldest` is the
// only way out.

#include "frontend/accuracy/decision_log.h"

#include <algorithm>

#include "frontend/router/prepared_prompt.h"

namespace kvatlas {
namespace {

// An estimate of a string's or map node's memory beside its text.
constexpr size_t kEach = 48;
// The most that is kept of a text that a caller gives.
constexpr size_t kTextMax = 256;

size_t BytesOf(const CellAsked& asked) {
  return sizeof(asked) + asked.cell.size() + asked.address.size() + asked.error.size();
}

}  // namespace

// About right is enough: `counted_bytes` remembers the result, so the same number is added and
// subtracted.
size_t DecisionRecord::bytes() const {
  const Receipt& receipt = result.receipt;
  size_t bytes = sizeof(*this) + kEach + prompt.tokens.capacity() * sizeof(TokenId) +
                 leading.capacity() * sizeof(SequenceHash) + receipt.reason.size() +
                 prompt.lora_name.size() + prompt.cache_salt.size() + report.error.size() +
                 tokenizer.size() + no_tokens.size();
  for (const std::string& trait : traits) bytes += sizeof(trait) + trait.size();
  for (const CellAsked& asked : receipt.cells) bytes += BytesOf(asked);
  for (const CellAsked& asked : receipt.nodes) bytes += BytesOf(asked);
  for (const ReceiptCandidate& candidate : receipt.candidates) {
    bytes += sizeof(candidate) + candidate.worker.name.size() + candidate.worker.replica.size() +
             candidate.cell.size();
  }
  return bytes;
}

// Copies what a diagnosis may want, up to the bounds of the options. Reads only the options, so the
// caller needs no lock.
DecisionRecord DecisionLog::Describe(const Decided& decided) const {
  const RouteInput& input = decided.input;
  DecisionRecord record;
  record.result = decided.result;
  record.domain = input.domain;
  record.tenant = input.tenant.empty() ? input.domain.tenant : input.tenant;
  record.at = decided.at;
  record.form = input.form;
  record.tokenizer = input.tokenizer.substr(0, kTextMax);
  record.no_tokens = input.no_tokens.substr(0, kTextMax);
  for (const std::string& trait : input.traits)
    if (record.traits.size() < kTraitsMax) record.traits.push_back(trait.substr(0, kTextMax));
  // A prompt known only by its beginning is treated as one whose cache is not read: it is not known
  // what the engine could have had behind it.
  record.cache_not_read = input.cache_not_read || input.is_beginning;
  const PreparedPrompt& prompt = *decided.prompt;
  record.prompt_tokens = prompt.prompt_tokens();
  // Suppositions hash tokens without images, so a prompt with images keeps no tokens, and none is
  // asked about.
  const size_t tokens =
      prompt.items().empty() ? std::min(prompt.tokens().size(), options_.leading_tokens) : 0;
  record.prompt = {
      .tokens = {prompt.tokens().begin(), prompt.tokens().begin() + static_cast<ptrdiff_t>(tokens)},
      .lora_name = input.lora_name,
      .cache_salt = input.cache_salt,
      .eagle = input.eagle,
      .bos = input.bos,
      .block_size = prompt.block_size(),
      .contract = decided.contract};
  const std::vector<SequenceHash>& sequence = prompt.sequence();
  const size_t blocks = std::min(sequence.size(), options_.checked_blocks);
  record.leading.assign(sequence.begin(), sequence.begin() + static_cast<ptrdiff_t>(blocks));
  return record;
}

// A single record larger than `bytes_max` stays until the next one comes.
void DecisionLog::Add(DecisionRecord record, Time now) {
  const uint64_t id = record.result.decision_id;
  record.counted_bytes = record.bytes();
  bytes_ += record.counted_bytes;
  records_[id] = std::make_unique<DecisionRecord>(std::move(record));
  by_age_.emplace_back(now, id);
  while (records_.size() > options_.count_max ||
         (bytes_ > options_.bytes_max && by_age_.size() > 1))
    DropOldest();
}

DecisionRecord* DecisionLog::Find(uint64_t id) {
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : found->second.get();
}

const DecisionRecord* DecisionLog::Find(uint64_t id) const {
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : found->second.get();
}

std::vector<uint64_t> DecisionLog::Latest(size_t max) const {
  std::vector<uint64_t> latest;
  for (auto at = by_age_.rbegin(); at != by_age_.rend() && latest.size() < max; ++at)
    latest.push_back(at->second);
  return latest;
}

void DecisionLog::Expire(Time now) {
  while (!by_age_.empty() && by_age_.front().first + options_.age_max <= now) DropOldest();
}

// The checks have their own copy of the whole sequence by now.
void DecisionLog::Shorten(DecisionRecord* record) {
  if (record->leading.size() <= options_.leading_blocks) return;
  record->leading.resize(options_.leading_blocks);
  record->leading.shrink_to_fit();
  bytes_ -= record->counted_bytes;
  record->counted_bytes = record->bytes();
  bytes_ += record->counted_bytes;
}

void DecisionLog::DropOldest() {
  const auto found = records_.find(by_age_.front().second);
  bytes_ -= found->second->counted_bytes;
  records_.erase(found);
  by_age_.pop_front();
}

// Later figures replace earlier ones; of errors the first stays. Flags about reaching the worker
// are not kept here.
void Merge(const RouteReport& report, RouteReport* to) {
  to->accepted |= report.accepted;
  to->finished |= report.finished;
  if (report.cached_tokens.has_value()) to->cached_tokens = report.cached_tokens;
  if (report.prompt_tokens.has_value()) to->prompt_tokens = report.prompt_tokens;
  if (report.served_by.has_value()) to->served_by = report.served_by;
  if (!report.error.empty() && to->error.empty()) to->error = report.error.substr(0, 1024);
}

}  // namespace kvatlas
