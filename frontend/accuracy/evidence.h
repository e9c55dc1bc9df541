// The evidence about one worker's promises: figures of single requests, of questions asked
// afterwards, and what its leaf says of it. A diagnosis may look at nothing else.
//
// *Truth*: plain values. Counts of tokens unless the name says blocks. Nothing here is averaged:
// the latest so many of each are kept, so that a pattern in time or among prompts can be seen.

#ifndef KVATLAS_FRONTEND_ACCURACY_EVIDENCE_H_
#define KVATLAS_FRONTEND_ACCURACY_EVIDENCE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frontend/accuracy/what_if.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"

namespace kvatlas {

// One request: what was promised, and what the engine said.
struct Comparison {
  uint64_t decision = 0;
  Time at{0};      // of the report
  Time chosen{0};  // of the decision
  PromptForm form = PromptForm::kUnknown;
  bool has_lora = false;
  bool has_salt = false;
  uint32_t block_size = 16;
  uint32_t blocks = 0;         // full ones of the prompt
  uint32_t prompt_tokens = 0;  // ours; 0: only hashes were given
  std::optional<uint32_t> engine_tokens = {};
  uint32_t predicted = 0;
  std::optional<uint32_t> served = {};
  // This frontend itself had sent that worker so much of the prompt before, and when last: an
  // estimate of what it should have that needs no index.
  uint32_t sent_before = 0;
  Time sent_before_at{0};
  Time promised_sent_at{0};        // the same at the depth that was promised; 0: never
  HolderId served_by = {};         // no name: not said
  bool other_rank_served = false;  // by `served_by`
  bool other_worker_served = false;
  // The deepest of the other ranks of the same worker, as the receipt has them.
  uint32_t other_rank_predicted = 0;
  uint32_t other_rank = 0;
  bool first_token_twice = false;  // of ours
  std::optional<bool> begins_with_bos = {};
  Trust trust = Trust::kExact;
  uint32_t age_ms = 0;
  std::string tokenizer = {};            // `RouteInput::tokenizer`
  std::vector<std::string> traits = {};  // `RouteInput::traits`
};

// One supposition, asked of the leaf after the request.
struct Supposed {
  Supposition what;
  uint32_t asked = 0;  // blocks
  uint32_t held = 0;   // of these, by the worker that was chosen, any rank
};

// The leaf's later answer about a prompt that its worker has finished, and so should have
// announced.
struct Check {
  uint64_t decision = 0;
  Time at{0};         // of the last answer
  Duration after{0};  // the report
  bool has_lora = false;
  bool has_salt = false;
  PromptForm form = PromptForm::kUnknown;
  uint32_t block_size = 16;
  uint32_t asked = 0;       // blocks, as they were hashed for the route
  uint32_t held = 0;        // by the chosen worker rank
  uint32_t first_held = 0;  // the same at the first time of asking
  bool settled = false;     // it was asked about for the last time, or all was there
  // The deepest other ones.
  uint32_t other_rank_held = 0;
  uint32_t other_rank = 0;
  uint32_t other_worker_held = 0;
  HolderId other_worker = {};
  // All of the prompt turned up there at some time of asking, though not here, and this frontend
  // had not sent it there.
  std::optional<HolderId> turned_up = {};
  bool listed = false;  // the worker was in the answer
  // Before all of it was there a later prompt with the same beginning was finished there: it may be
  // that one's.
  bool sent_again = false;
  std::vector<Supposed> supposed = {};
  // Our tokens of the first block that the worker does not have, as far as the prompt's head is
  // kept.
  std::vector<TokenId> missing_tokens = {};

  // All but perhaps the block that the engine was still writing.
  bool whole() const { return held + 1 >= asked; }
  bool late() const { return whole() && first_held + 1 < asked && !turned_up.has_value(); }
  bool prompt() const { return whole() && first_held + 1 >= asked; }
};

// A leaf's view of an engine that it listens to itself.
struct LeafEngineView {
  uint32_t block_size = 0;
  std::string lora_name;
  bool salted = false;
  Duration silent{0};
  double lag_ms = 0;
  uint64_t clears = 0;
  uint64_t restarts = 0;
  uint64_t messages_lost = 0;
  uint64_t parked = 0;
  std::map<std::string, uint64_t> refused;
  std::string last_refusal;
};

// A leaf's view of a worker rank.
struct LeafView {
  Time at{0};
  std::string contract;     // of the leaf; empty: not said
  uint32_t block_size = 0;  // of the domain; 0: the leaf does not know it
  bool known = false;       // the leaf has such a holder
  bool masked = false;
  bool connected = false;
  Trust trust = Trust::kExact;
  Duration age{0};
  uint64_t epoch = 0;
  uint64_t blocks = 0;                   // held
  uint64_t batches = 0;                  // heard
  bool hybrid = false;                   // windows or states beside full attention
  std::optional<LeafEngineView> engine;  // where it listens to the engine itself
};

// A worker whose engine takes no requests.
struct UnreachableWorker {
  Domain domain;
  std::string cell;
  HolderId worker;
  Time since{0};  // the first try that failed; none has succeeded since
  Time last{0};
  size_t times = 1;
  std::string why;
};

// Whether tokens were made of one route's prompt.
struct TokensMade {
  uint64_t decision = 0;
  Time at{0};
  std::string no_tokens;  // why there are none; empty: there are
};

// Everything about one worker rank; in time order.
struct WorkerEvidence {
  Domain domain;
  std::string cell;
  HolderId worker;
  std::vector<Comparison> comparisons;
  std::vector<Check> checks;
  std::optional<LeafView> leaf;         // the latest
  std::optional<LeafView> leaf_before;  // an earlier one
  std::optional<Time> no_batch_since;   // then the leaf's count of its batches grew last
  // By requests that failed there; `asked_engine` where the engine itself was asked, and answers or
  // not whatever requests tell.
  std::optional<UnreachableWorker> unreachable = {};
  bool asked_engine = false;
  std::string own_contract;
  Time now{0};
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_EVIDENCE_H_
