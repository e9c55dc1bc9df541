// What was decided under this id, and what became of it? The latest receipts, bounded by count,
// bytes and age.
//
// *Truth*: what falls out by a bound is the oldest, whether it was reported on or not. Reports add
// to what earlier ones of the same id said. *Threads*: none; the owner serialises. *Cost*: a copy
// of the receipt and of the prompt's head.

#ifndef KVATLAS_FRONTEND_ACCURACY_DECISION_LOG_H_
#define KVATLAS_FRONTEND_ACCURACY_DECISION_LOG_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frontend/accuracy/what_if.h"
#include "frontend/router/frontend.h"
#include "frontend/router/route_observer.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {

struct DecisionLogOptions {
  size_t count_max = 16384;
  size_t bytes_max = 64 << 20;
  Duration age_max = std::chrono::minutes(15);
  size_t leading_tokens = 512;  // of a prompt that are kept
  size_t leading_blocks = 64;
  size_t checked_blocks = 4096;  // until the engine's figures are compared, to ask the leaf about
};

struct DecisionRecord {
  RouteResult result;  // id, worker and receipt
  Domain domain;
  std::string tenant;  // whose request it was
  Time at{0};
  PromptForm form = PromptForm::kUnknown;
  uint32_t prompt_tokens = 0;         // 0: only hashes were given
  PromptFacts prompt;                 // its head
  std::vector<SequenceHash> leading;  // of the route's question
  std::string tokenizer;              // these are `RouteInput`'s
  std::string no_tokens;
  std::vector<std::string> traits;
  bool cache_not_read = false;
  // How much of the prompt this frontend had sent that worker before.
  uint32_t sent_before_blocks = 0;
  Time sent_before_at{0};
  Time promised_sent_at{0};
  RouteReport report;
  std::optional<Time> reported_at;
  bool compared = false;
  size_t counted_bytes = 0;  // by the log

  size_t bytes() const;
  // The first of `leading`, as many as are kept of every prompt.
  std::span<const SequenceHash> Head(size_t blocks) const {
    return std::span(leading).first(std::min(blocks, leading.size()));
  }
};

class DecisionLog {
 public:
  explicit DecisionLog(const DecisionLogOptions& options) : options_(options) {}

  // The record of what was decided, without what was sent before.
  DecisionRecord Describe(const Decided& decided) const;
  // REQUIRES: no other has its id.
  void Add(DecisionRecord record, Time now);
  // Null: unknown, or forgotten. Valid until the next call that is not const.
  DecisionRecord* Find(uint64_t id);
  const DecisionRecord* Find(uint64_t id) const;
  // The latest ones, the latest first.
  std::vector<uint64_t> Latest(size_t max) const;
  void Expire(Time now);
  // It is compared: only its head is kept on.
  void Shorten(DecisionRecord* record);

  size_t size() const { return records_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  void DropOldest();

  const DecisionLogOptions options_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<DecisionRecord>> records_;
  std::deque<std::pair<Time, uint64_t>> by_age_;  // all of them
  size_t bytes_ = 0;
};

// Adds what `report` says to `to`.
void Merge(const RouteReport& report, RouteReport* to);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_DECISION_LOG_H_
