// The questions that `Truth` asks of leaves: prompts that an engine has finished (`PlanCheck` →
// `AskDue` → `Ask` → `OnAnswer`, again until all is there or `check_after` is used up), the same
// prompt under suppositions (`Suppose`), and what leaves say of workers (`ProbeDue` → `OnProbe`).
// Finder and prober are called without the mutex; they may call back before they return.

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "frontend/accuracy/patterns.h"
#include "frontend/accuracy/truth_state.h"

namespace kvatlas {
namespace {

// One in so many prompts is asked about even if nothing speaks for it.
constexpr uint64_t kCheckOneIn = 16;
// A worker with so many prompts asked about is known well enough.
constexpr size_t kChecksEnough = 4;
// Suppositions are asked about until so many of a worker's checks have them: about 20 questions
// each.
constexpr ptrdiff_t kSupposedEnough = 6;
// So many tokens of the first block that a worker does not have are shown.
constexpr uint32_t kMissingTokensMax = 16;
constexpr size_t kLeavesMax = 1024;
constexpr size_t kProbesAtOnce = 8;

// The most blocks that a worker of this name has, at any rank.
uint32_t DeepestOf(const WorkersAnswer& answer, const std::string& name) {
  uint32_t blocks = 0;
  for (const WorkerFound& found : answer.workers)
    if (found.worker.name == name) blocks = std::max(blocks, found.blocks);
  return blocks;
}

// Sorts the answer into the worker itself, its other ranks, and other workers; of the latter two
// the deepest.
void FillFrom(const WorkersAnswer& answer, const HolderId& worker, Check* check) {
  for (const WorkerFound& found : answer.workers) {
    if (found.worker == worker) {
      check->held = found.blocks;
      check->listed = true;
    } else if (found.worker.name == worker.name) {
      if (found.blocks <= check->other_rank_held) continue;
      check->other_rank_held = found.blocks;
      check->other_rank = found.worker.rank;
    } else if (found.blocks > check->other_worker_held) {
      check->other_worker_held = found.blocks;
      check->other_worker = found.worker;
    }
  }
}

// Block sizes that divide all cached tokens that the engine reported: their common divisor and up
// to three of its halves.
std::vector<uint32_t> LikelyBlockSizes(const std::deque<Comparison>& comparisons) {
  WorkerEvidence evidence;
  evidence.comparisons.assign(comparisons.begin(), comparisons.end());
  const Granularity granularity = GranularityOf(evidence);
  std::vector<uint32_t> sizes;
  for (uint32_t divisor = granularity.divisor; divisor >= 8 && sizes.size() < 4; divisor /= 2) {
    if (divisor <= 4096) sizes.push_back(divisor);
    if (divisor % 2 != 0) break;
  }
  return sizes;
}

std::vector<TokenId> TokensOfBlock(const PromptFacts& prompt, uint32_t block) {
  const size_t begin = std::min<size_t>(size_t{block} * prompt.block_size, prompt.tokens.size());
  const size_t end =
      std::min(begin + std::min(prompt.block_size, kMissingTokensMax), prompt.tokens.size());
  return {prompt.tokens.begin() + static_cast<ptrdiff_t>(begin),
          prompt.tokens.begin() + static_cast<ptrdiff_t>(end)};
}

// The options' seeds, and the one behind the last colon of the leaf's contract, if that is a
// number.
std::vector<uint64_t> LikelySeeds(const std::vector<uint64_t>& more,
                                  const std::optional<LeafView>& leaf) {
  std::vector<uint64_t> seeds = more;
  if (!leaf.has_value()) return seeds;
  const size_t colon = leaf->contract.rfind(':');
  if (colon == std::string::npos) return seeds;
  uint64_t seed = 0;
  for (size_t i = colon + 1; i < leaf->contract.size(); ++i) {
    if (leaf->contract[i] < '0' || leaf->contract[i] > '9') return seeds;
    seed = seed * 10 + static_cast<uint64_t>(leaf->contract[i] - '0');
  }
  seeds.push_back(seed);
  return seeds;
}

}  // namespace

// ---- Prompts asked about again ----

// Decides whether the prompt is asked about, and when. The budget is a token bucket of
// `checks_per_s` with `checks_burst`; it is filled here, since nothing else spends it. Repeated
// questions and suppositions are not charged: they follow only from prompts that are missing.
void Truth::State::PlanCheck(const DecisionRecord& record, const Comparison& comparison,
                             WorkerRecord* worker, Time now) {
  if (finder == nullptr || record.leading.empty() || worker->leaf_address.empty()) return;
  const bool lengths_differ = comparison.engine_tokens.has_value() &&
                              comparison.prompt_tokens > 0 &&
                              *comparison.engine_tokens != comparison.prompt_tokens;
  const bool wanted = ServedLess(comparison) || ServedMore(comparison) || lengths_differ ||
                      worker->checks.size() < kChecksEnough ||
                      comparison.decision % kCheckOneIn == 0;
  if (!wanted) return;
  const double passed = std::chrono::duration<double>(now - check_tokens_as_of).count();
  check_tokens =
      std::min(options.checks_burst, check_tokens + std::max(passed, 0.0) * options.checks_per_s);
  check_tokens_as_of = now;
  if (check_tokens < 1 || waiting.size() >= options.checks_waiting_max) {
    ++stats.checks_dropped;
    return;
  }
  check_tokens -= 1;
  waiting.emplace(
      now + options.check_after.front(),
      Waiting{.decision = record.result.decision_id,
              .worker = {record.domain, record.result.cell, record.result.worker},
              .leaf_address = worker->leaf_address,
              .prompt = record.prompt,
              .leading = std::make_shared<const std::vector<SequenceHash>>(record.leading),
              .head_blocks = options.decisions.leading_blocks,
              .has_lora = comparison.has_lora,
              .has_salt = comparison.has_salt,
              .form = comparison.form,
              .reported_at = now});
}

// Taken out under the mutex, asked without it.
void Truth::State::AskDue(Time now) {
  std::vector<Waiting> due;
  {
    MutexLock lock(&mutex);
    const auto end = waiting.upper_bound(now);
    for (auto at = waiting.begin(); at != end; ++at) due.push_back(std::move(at->second));
    waiting.erase(waiting.begin(), end);
    stats.checks += due.size();
  }
  for (Waiting& one : due) Ask(std::move(one));
}

// `asked` keeps the sequence alive as long as the question. A leaf that does not answer ends the
// row of questions: the check stays as the last answer left it.
void Truth::State::Ask(Waiting one) {
  auto asked = std::make_shared<Waiting>(std::move(one));
  ++asked->asked;
  const Domain& domain = std::get<0>(asked->worker);
  finder->FindOverlaps(asked->leaf_address, {.domain = &domain, .sequence = *asked->leading},
                       options.ask_deadline,
                       [state = shared_from_this(), asked](absl::StatusOr<WorkersAnswer> answer) {
                         if (answer.ok()) state->OnAnswer(asked, *answer);
                       });
}

// "All" allows for the block that the engine was still writing; "not sent" goes by the head of the
// prompt, which is all that `sent` knows.
bool Truth::State::IsAllAt(const Waiting& asked, const HolderId& holder, uint32_t held) const {
  const std::span<const SequenceHash> head = asked.head();
  return held + 1 >= asked.leading->size() &&
         sent.Find(std::get<1>(asked.worker), holder, head).blocks + 1 < head.size();
}

// Another rank is looked at before another worker. A prompt of one block is no evidence: many
// prompts begin with it.
std::optional<HolderId> Truth::State::TurnedUp(const Waiting& asked, const Check& check) const {
  if (check.asked < 2 || check.whole()) return std::nullopt;
  HolderId other = std::get<2>(asked.worker);
  other.rank = check.other_rank;
  if (IsAllAt(asked, other, check.other_rank_held)) return other;
  if (IsAllAt(asked, check.other_worker, check.other_worker_held)) return check.other_worker;
  return std::nullopt;
}

// One answer about a finished prompt:
//   1. A `Check` is made of it. `settled` when all is there, or this was the last time of asking.
//   2. It replaces the check of the same decision, which hands on what was seen first:
//      `first_held`, where it turned up, suppositions.
//   3. All there: done. Otherwise the leaf is probed soon.
//   4. Nothing there at all: suppositions are asked, once a prompt, until the worker has enough of
//      them.
//   5. The next time of asking is set, counted from the report.
void Truth::State::OnAnswer(const std::shared_ptr<Waiting>& asked, const WorkersAnswer& answer) {
  const Time now = clock->Now();
  const HolderId& id = std::get<2>(asked->worker);
  std::vector<WhatIfQuestion> questions;
  {
    MutexLock lock(&mutex);
    const auto found = workers.find(asked->worker);
    if (found == workers.end()) return;
    WorkerRecord& worker = found->second;
    Check fresh{.decision = asked->decision,
                .at = now,
                .after = now - asked->reported_at,
                .has_lora = asked->has_lora,
                .has_salt = asked->has_salt,
                .form = asked->form,
                .block_size = asked->prompt.block_size,
                .asked = static_cast<uint32_t>(asked->leading->size())};
    FillFrom(answer, id, &fresh);
    fresh.turned_up = TurnedUp(*asked, fresh);
    fresh.missing_tokens = TokensOfBlock(asked->prompt, fresh.held);
    fresh.first_held = fresh.held;
    // A later prompt with the same head was finished there meanwhile: what is there may be that
    // one's.
    fresh.sent_again = asked->asked > 1 && sent.At(std::get<1>(asked->worker), id,
                                                   asked->head().back()) > asked->reported_at;
    fresh.settled = fresh.whole() || asked->asked >= options.check_after.size();
    const auto before =
        std::find_if(worker.checks.begin(), worker.checks.end(),
                     [&](const Check& check) { return check.decision == asked->decision; });
    if (before != worker.checks.end()) {
      fresh.first_held = before->first_held;
      if (before->turned_up.has_value()) fresh.turned_up = before->turned_up;
      fresh.supposed = std::move(before->supposed);
      *before = fresh;
    } else {
      worker.checks.push_back(fresh);
      while (worker.checks.size() > options.checks_max) worker.checks.pop_front();
    }
    if (fresh.whole()) return;
    // Counted at the first time of asking alone.
    stats.checks_missed += fresh.held == 0 && asked->asked == 1;
    leaves[{asked->leaf_address, std::get<0>(asked->worker)}].wanted = true;
    const auto supposed = std::count_if(worker.checks.begin(), worker.checks.end(),
                                        [](const Check& c) { return !c.supposed.empty(); });
    if (fresh.held == 0 && !asked->supposed && supposed < kSupposedEnough) {
      asked->supposed = true;
      questions = WhatIf(asked->prompt, LikelySeeds(options.more_seeds, worker.leaf),
                         LikelyBlockSizes(worker.comparisons));
    }
    if (asked->asked < options.check_after.size() && waiting.size() < options.checks_waiting_max)
      waiting.emplace(asked->reported_at + options.check_after[asked->asked], *asked);
  }
  Suppose(asked, std::move(questions));
}

// `kept` holds the questions as long as any of their callbacks. An answer goes to the check if that
// is still kept.
void Truth::State::Suppose(const std::shared_ptr<Waiting>& asked,
                           std::vector<WhatIfQuestion> questions) {
  const auto kept = std::make_shared<const std::vector<WhatIfQuestion>>(std::move(questions));
  for (const WhatIfQuestion& question : *kept) {
    const Domain& domain = std::get<0>(asked->worker);
    finder->FindOverlaps(
        asked->leaf_address, {.domain = &domain, .sequence = question.sequence},
        options.ask_deadline,
        [state = shared_from_this(), asked, kept, &question](absl::StatusOr<WorkersAnswer> answer) {
          if (!answer.ok()) return;
          const uint32_t held = DeepestOf(*answer, std::get<2>(asked->worker).name);
          MutexLock lock(&state->mutex);
          const auto found = state->workers.find(asked->worker);
          if (found == state->workers.end()) return;
          for (Check& check : found->second.checks) {
            if (check.decision != asked->decision) continue;
            check.supposed.push_back({.what = question.what,
                                      .asked = static_cast<uint32_t>(question.sequence.size()),
                                      .held = held});
          }
        });
  }
}

// ---- What leaves say of workers ----

// At most `kProbesAtOnce` leaves a call. `under_way` keeps a leaf from being asked twice at once;
// the callback clears it whatever the answer is.
void Truth::State::ProbeDue(Time now) {
  if (prober == nullptr) return;
  std::vector<LeafKey> due;
  {
    MutexLock lock(&mutex);
    std::erase_if(leaves,
                  [&](const auto& leaf) { return leaf.second.used + options.window <= now; });
    while (leaves.size() > kLeavesMax) leaves.erase(leaves.begin());
    for (auto& [key, leaf] : leaves) {
      const Duration wait = leaf.wanted ? options.probe_again : options.probe_every;
      if (leaf.under_way || (leaf.ever && leaf.probed + wait > now)) continue;
      if (due.size() == kProbesAtOnce) break;
      leaf.under_way = true;
      leaf.wanted = false;
      leaf.ever = true;
      leaf.probed = now;
      due.push_back(key);
    }
    stats.probes += due.size();
  }
  for (const LeafKey& key : due) {
    prober->Probe(key.first, key.second, options.ask_deadline,
                  [state = shared_from_this(), key](absl::StatusOr<LeafAnswer> answer) {
                    // Takes the mutex itself.
                    if (answer.ok()) state->OnProbe(key, *answer, state->clock->Now());
                    MutexLock lock(&state->mutex);
                    state->stats.probes_failed += !answer.ok();
                    const auto leaf = state->leaves.find(key);
                    if (leaf != state->leaves.end()) leaf->second.under_way = false;
                  });
  }
}

// Every worker that this leaf answers for gets the new view, also an empty one if the leaf does not
// name it. The view before is kept to compare epochs; `no_batch_since` moves when the count of
// batches does.
void Truth::State::OnProbe(const LeafKey& key, const LeafAnswer& answer, Time now) {
  MutexLock lock(&mutex);
  for (auto& [of, worker] : workers) {
    const auto& [domain, cell, id] = of;
    if (domain != key.second || worker.leaf_address != key.first) continue;
    LeafView view;
    const auto found = answer.workers.find(id);
    if (found != answer.workers.end()) view = found->second;
    view.at = now;
    view.contract = answer.contract;
    view.block_size = answer.block_size;
    if (!worker.leaf.has_value() || worker.leaf->batches != view.batches)
      worker.no_batch_since = now;
    worker.leaf_before = std::move(worker.leaf);
    worker.leaf = std::move(view);
  }
}

}  // namespace kvatlas
