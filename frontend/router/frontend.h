// Which worker should take this prompt, and why? From token ids to a worker, with a receipt.
//
//                     ╭──── down a level ────╮
//                     ▼                      │
//   tokens ─hash─▶ hierarchy ──▶ cells ranked by expected cost ──▶ leaves of the best K, in parallel
//                                                                        │
//   receipt ◀── in flight counted ◀── cheapest worker over all answers ◀─┘
//
// The ladder, when something is missing; each step down is named in the receipt, with its reason:
//   1. hierarchy's cells        one replica after the other, the last one that answered first; of a level that is split, the
//                               one or two shards that have this prompt's waypoints; nodes below the top are asked in turn
//   2. last good cells          remembered nodes below the top; then remembered addresses and loads of cells, asked without
//                               knowing who covers what
//   3. configured leaves        the own cell
//   4. load only                remembered workers, by their last known load and what is in flight
//
// *Truth*: overlaps come from leaves' answers to this very prompt, never from memory. A late answer
// is unknown. A choice counts against its worker at once, until `Report` says that the worker has
// it, or for `in_flight_ttl`.
// *Threads*: everything may be called from any. No thread of its own: a route goes on in the
// threads that deliver the finders' answers; its callback runs there.
// A cell is asked when its bounds say that it could win over the one expected to be cheapest, or
// over what that then answers;
// one that is late is waited for as long as it could still win.
// *Cost*: a question to a hierarchy (to its shards; per level, to at most K nodes) and at most K to
// leaves, about 10 ns a block for hashing, then constant per worker answered.
// *Bounds*: `FrontendOptions`: leaves asked, deadline, blocks, what is remembered.
// *Lifetime*: the finders, the clock and the timer outlive the frontend; a route may outlive it
// only as far as its finders deliver.
//
// Example:
//   Frontend frontend({.hierarchies = {"127.0.0.1:7420"}}, &cell_finder, &overlap_finder,
//   &Clock::Real());
//   absl::StatusOr<RouteResult> route = frontend.Route({.domain = {"llama-70b", ""}, .tokens =
//   tokens});
//   if (route.ok()) { Send(route->worker); frontend.Report(route->decision_id, {.accepted = true});
//   }

#ifndef KVATLAS_FRONTEND_ROUTER_FRONTEND_H_
#define KVATLAS_FRONTEND_ROUTER_FRONTEND_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/router/cost.h"
#include "frontend/router/fleet_memory.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/outlier_ejection.h"
#include "frontend/router/policy/policy.h"
#include "frontend/router/policy/sessions.h"
#include "frontend/router/policy/worker_fit.h"
#include "frontend/router/prepared_prompt.h"
#include "frontend/router/receipt.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {

class RouteObserver;
class RoutedPrompt;
class FleetState;

inline constexpr size_t kDomainNameBytesMax = 256;  // of model and of tenant
inline constexpr size_t kSessionIdBytesMax = 256;

// A leaf known by configuration.
struct ConfiguredLeaf {
  std::string cell;
  std::string address;
};

struct FrontendOptions {
  ShardMap hierarchies =
      {};  // the top level: replicas that each know everything, or shards of such
  std::vector<ConfiguredLeaf> leaves = {};
  uint32_t ask_cells = 2;        // K: leaves asked at once when coverage is known
  uint32_t ask_cells_blind = 8;  // and when it is not
  // Leaves asked at the same time as the hierarchy, where they can be guessed: all cells when no
  // more are known, or else the one that was lately sent most of this prompt, and its session's. 0:
  // none. One saves a fifth to a third of a route's time;
  // more ask leaves that no route would have asked.
  uint32_t ask_ahead = 1;
  uint32_t asked_max = 32;   // leaves asked for one route, failures included
  uint32_t cells_best = 32;  // cells wanted from a hierarchy: no more are asked; 0: all
  uint32_t block_size = 16;  // of a domain until a leaf or a hierarchy says otherwise
  Duration deadline = std::chrono::milliseconds(50);  // of a route that names none
  // `RouteAgain` chooses among the workers that its route found for so long; after that it is a
  // whole route.
  Duration route_again_ttl = std::chrono::seconds(3);
  std::string zone = {};  // cells labelled with another `zone` are `zone_distance` away
  double zone_distance = 8;
  CostWeights weights = {};
  // By what a worker is chosen. REQUIRES: one of `PolicyNames`.
  std::string policy = std::string(kDefaultPolicy);
  std::map<std::string, CostWeights> model_weights = {};  // of models that have their own
  // Requests with one prefix, before the first one's events are back: to one worker as long as that
  // is not clearly slower than computing the prefix twice; else they spread by what is in flight
  // alone.
  bool siblings_together = true;
  // Leaves hear what was sent to their workers, and say what other frontends sent there: so that
  // all frontends of a fleet choose as one.
  bool tell_leaves = true;
  Duration sibling_ttl =
      std::chrono::seconds(5);  // so long is a prompt expected to be where it was sent
  SessionsOptions sessions = {};
  // Workers over these get no requests; when all are, a route waits, or is refused.
  OverloadThresholds overload = {};
  Duration queue_wait{0};     // so long; 0: refused at once. Needs a timer
  uint32_t queue_max = 1024;  // routes that wait at once; more are refused
  Duration queue_poll = std::chrono::milliseconds(20);
  // A guess at the engines' speed, for telling the refused when to come again.
  Duration prefill_per_block = std::chrono::milliseconds(8);
  FleetMemoryOptions memory = {};
  const MemoryBudget* memory_budget = nullptr;  // while critical, large prompts are refused
  SuspectsOptions suspects = {};
  // Where engines take requests, by worker name, for workers that have no label `url`.
  std::map<std::string, std::string> engines = {};
  // The load of configured engines, as these say themselves, while no leaf knows their workers.
  // Called from any thread, must not wait; may be null.
  std::function<std::optional<Load>(const HolderId& worker)> engine_load = nullptr;
  HashContract contract = {};
  const WaypointSchedule* schedule =
      &WaypointSchedule::Standard();  // the leaves', and so the finest
  // The schedule of a top level that is split; it may be a part of the leaves'. Null: the same.
  const WaypointSchedule* hierarchy_schedule = nullptr;
  uint32_t ask_shards = 2;            // asked at once
  RouteObserver* observer = nullptr;  // `route_observer.h`
  // After so long without an answer a replica is asked beside the first; needs a timer.
  Duration hedge_after = std::chrono::milliseconds(4);
};

// Where the tokens of a prompt come from: a diagnosis tells a template from a tokenizer by it.
enum class PromptForm { kUnknown = 0, kCompletion = 1, kChat = 2 };

inline constexpr size_t kTraitsMax = 16;

// Another way in which engines of a model read a prompt.
struct Reading {
  std::string name;                  // for the receipt: "sglang"
  std::vector<TokenId> tokens = {};  // none: not known; its engines are candidates by load
  std::vector<PromptItem> items = {};
  // As of `RouteInput`.
  bool is_beginning = false;
  std::string tokenizer = {};
  std::string no_tokens = {};
  // By `Frontend::Prepare`, in the place of the tokens.
  std::shared_ptr<const PreparedPrompt> prepared = {};
};

// Exactly one of `tokens`, `sequence_hashes` and `prepared`.
struct RouteInput {
  Domain domain;
  std::vector<TokenId> tokens = {};
  std::vector<PromptItem> items = {};  // images, audio and video among them
  // The tokens are the prompt's beginning: what follows, and how long it is, is not known.
  bool is_beginning = false;
  std::string lora_name = {};
  std::string cache_salt = {};
  bool eagle = false;
  std::vector<SequenceHash> sequence_hashes = {};
  // Length of the whole prompt, with `sequence_hashes`; 0: the hashes' blocks and no token more. An
  // engine always computes the last token, so its block is never promised.
  uint32_t prompt_tokens = 0;
  // In the place of tokens and hashes: what the prompt is could not be found out. A worker by load;
  // nothing is promised of it.
  bool unknown_prompt = false;
  // The engine computes all of the prompt anew whatever it has cached, as vLLM does for
  // `prompt_logprobs`: nothing is promised, no overlap is a reason to choose, and what was served
  // says nothing of the index. The prompt's blocks are load, and are stored.
  bool cache_not_read = false;
  // Asked for what the fleet tells of itself: the result is OK and empty where some leaf knows
  // workers of the domain. No worker is chosen, nothing is counted, and no observer hears of it.
  bool only_learns = false;
  Duration deadline{0};  // 0: the frontend's
  // For diagnoses alone.
  PromptForm form = PromptForm::kUnknown;
  std::string tokenizer =
      {};  // what made the tokens, as `PromptTokens::source` has it; empty: the caller had them
  std::string no_tokens = {};  // why the prompt is unknown, where its tokens were wanted
  // Features of the request that engines may read in different ways, a word or two each: "tools",
  // "reasoning_effort". At most `kTraitsMax` are kept.
  std::vector<std::string> traits = {};
  std::optional<TokenId> bos = {};  // the tokenizer's, where it is known
  // Requests of one session go where the last one went, unless another worker is clearly cheaper.
  // Empty: none.
  std::string session_id = {};
  // The request's tenant, where engines of another tenant's domain serve it; empty: the domain's.
  // Changes no choice.
  std::string tenant = {};
  uint32_t expected_output_tokens = 0;  // 0: not known
  // Which workers may be chosen. A worker's labels are those of its hello, and its cell's where it
  // has none of that name.
  std::vector<std::string> allowed_workers = {};   // names; empty: all
  std::vector<std::string> excluded_workers = {};  // names
  std::map<std::string, std::string> required_labels = {};
  // The data-parallel rank that will serve it, whatever is chosen, as the client has said; where no
  // worker of a cell has it, and of workers that only prefill, any.
  std::optional<uint32_t> rank = {};
  // Workers that failed to take this very request: they come last, after suspects that it has not
  // been sent to.
  std::vector<CellWorker> tried = {};
  // How long the route may wait for a worker below the thresholds; nothing: the frontend's
  // `queue_wait`.
  std::optional<Duration> queue_wait = {};
  // The caller will report `finished` or `abandoned`, in any case: until then the request counts at
  // its worker, whose own load may be asked for seldom.
  bool end_follows = false;
  TraceContext trace = {};  // whose child the route is; not valid: of no trace
  // By `Frontend::Prepare`, in the place of tokens or hashes.
  std::shared_ptr<const PreparedPrompt> prepared = {};
  // Where engines of the model read one prompt differently (`readings.h`): the name of the reading
  // that `tokens` are, the others, and for the url of an engine, which may be empty, the reading
  // that is its: 0 is the input's own, i is `other_readings[i - 1]`. REQUIRES: `reading_of` is set
  // where there are others.
  std::string reading = {};
  std::vector<Reading> other_readings = {};
  std::function<size_t(const std::string& url)> reading_of = nullptr;
};

// INVALID_ARGUMENT: no model, or a name that is too long. Every route is looked at so; a caller
// that has yet to read its prompt checks first.
absl::Status CheckNames(const Domain& domain, const std::string& session_id);

// Where the request goes on after its prefill, when that has a worker of its own.
struct DecodeChoice {
  HolderId worker;
  std::string cell;
  uint32_t overlap_blocks = 0;  // that need not be sent there
  std::string url = {};         // of its engine; empty: unknown
};

struct RouteResult {
  uint64_t decision_id = 0;
  HolderId worker;  // that prefills, and decodes too unless `decode` names another
  std::string cell;
  uint32_t overlap_blocks = 0;  // promised
  std::optional<DecodeChoice> decode = {};
  std::string url = {};  // of its engine, as the worker or the options say; empty: unknown
  // By which the worker was chosen: 0, or i of `RouteInput::other_readings[i - 1]`.
  size_t reading = 0;
  // The destination is one of several data-parallel ranks of its worker: the engine has to be told
  // which (`kDataParallelRankHeader`), by its own number.
  std::optional<uint32_t> engine_rank = {};
  Receipt receipt;
  // For `Frontend::RouteAgain`: the hashed prompt and the workers that were found. Held, it keeps
  // the prompt's tokens and its leaves' answers in memory.
  std::shared_ptr<const RoutedPrompt> routed = {};

  // Where the client's request is sent: to the worker that decodes, which has another one prefill
  // (`kPrefillerHeader`).
  const HolderId& destination() const { return decode.has_value() ? decode->worker : worker; }
  const std::string& destination_cell() const { return decode.has_value() ? decode->cell : cell; }
  const std::string& destination_url() const { return decode.has_value() ? decode->url : url; }
};

// In a request that goes to the decoder: HOST:PORT of the engine that is to prefill it, as the
// Kubernetes inference gateway's sidecars beside such engines read it.
inline constexpr char kPrefillerHeader[] = "x-prefiller-host-port";
// Which rank takes the request, as vLLM and SGLang read it.
inline constexpr char kDataParallelRankHeader[] = "x-data-parallel-rank";

// The outcome of a choice; fields that are not known are left out. The engine's figures come with
// the end of an answer (OpenAI's `usage`): a report that has them should say `finished` too.
struct RouteReport {
  bool accepted = false;  // its worker's own load counts it from now on
  bool finished = false;
  std::optional<uint32_t> cached_tokens = {};  // of `prompt_tokens_details`; absent is not 0
  std::optional<uint32_t> prompt_tokens = {};  // as the engine counted
  std::optional<HolderId> served_by = {};      // the one that had it; no name: another rank of it
  std::string error = {};                      // of a request that failed there
  bool abandoned = false;                      // not sent there, or given up before it was taken
  // The worker did not take it, as if it were gone (`outlier_ejection.h`): the one that prefills;
  // and the one that decodes, which is the same unless the choice named two.
  bool unreachable = false;
  bool decode_unreachable = false;
};

struct KnownEngine {
  Domain domain;
  std::string cell;
  HolderId worker;
  std::string url;
  bool suspect = false;
};

// A cell as the frontend last saw it.
struct SeenCell {
  Domain domain;
  std::string cell;
  std::string address;                    // of the leaf that is asked
  Duration seen{0};                       // since it was last named
  std::optional<Duration> answered = {};  // since its leaf last answered; nothing: never
  size_t workers = 0;                     // in that answer
};

struct FrontendStats {
  uint64_t routes = 0;
  uint64_t failed = 0;
  uint64_t by_fallback[kFallbacks] = {};
  uint64_t expired_choices = 0;
  uint64_t asked_ahead = 0;       // leaves,
  uint64_t asked_ahead_used = 0;  // and those whose answers were wanted
  uint64_t prompt_blocks = 0;     // full blocks of routed prompts
  uint64_t chosen_blocks = 0;     // of these, what the chosen workers are predicted to reuse
  uint64_t best_blocks = 0;       // `Choice::best_blocks`
  size_t in_flight = 0;
  size_t cells = 0;  // remembered
  size_t workers = 0;
  uint64_t refused_by_nodes = 0;  // questions, for their schedule
  uint64_t rejected = 0;          // of the failed: every worker was over its thresholds
  size_t waiting = 0;             // for one below them
  size_t sessions = 0;
  size_t suspects = 0;
};

// When to come again, of a route that may be asked again: every worker is over its thresholds, or
// too many prompts wait (RESOURCE_EXHAUSTED); or no peer that would know of workers answered
// (UNAVAILABLE). Nothing: refused for something else.
std::optional<Duration> RetryAfter(const absl::Status& refused);
absl::Status WithRetryAfter(absl::Status refused, Duration retry_after);

// NOT_FOUND in vLLM's words (`openai/models/serving.py`, check_model): the peers that answered know
// no such model.
absl::Status UnknownModelError(std::string_view model);
bool IsUnknownModel(const absl::Status& why);

class Frontend {
 public:
  using Callback = std::function<void(absl::StatusOr<RouteResult>)>;

  // Without a timer a late replica is given up before the next is asked.
  Frontend(FrontendOptions options, CellFinder* cell_finder, OverlapFinder* overlap_finder,
           const Clock* clock, Timer* timer = nullptr);
  ~Frontend();  // stops

  Frontend(const Frontend&) = delete;
  Frontend& operator=(const Frontend&) = delete;

  // Calls `callback` exactly once, possibly before it returns. INVALID_ARGUMENT: no prompt, two
  // prompts, or no model. RESOURCE_EXHAUSTED: more than `kRouteBlocksMax` blocks, or more than
  // 1,024 while memory is critical, or every worker is over its thresholds (`RetryAfter`).
  // NOT_FOUND: the peers that answered know no worker of the domain, or none that is allowed.
  // UNAVAILABLE: nothing that would know of workers answered (`RetryAfter`), or the frontend stops.
  void RouteAsync(RouteInput input, Callback callback);

  // The same, waiting. Not from a thread that delivers the finders' answers.
  absl::StatusOr<RouteResult> Route(RouteInput input);

  // Hashes the prompt of `input`, and puts `prepared` into the place of its tokens or hashes. A
  // route does so by itself; this is for callers that ask more than once. INVALID_ARGUMENT,
  // RESOURCE_EXHAUSTED: as `RouteAsync`.
  absl::Status Prepare(RouteInput* input) const;

  // Another worker for a request that was routed, and that the workers in `tried` failed to take:
  // they are chosen last. Chooses among the workers that the route found, as they stand now, and
  // asks no peer: microseconds. When that route is older than `route_again_ttl`, or found no other
  // worker that may be chosen, this is a route like the first one, but for tokens and hashes, which
  // are not made again. `deadline` is of that; 0: the frontend's. A choice of its own: with an id
  // of its own, counted in flight, told to the observer. Errors and threads as `RouteAsync`.
  // REQUIRES: `routed` is not null.
  void RouteAgain(std::shared_ptr<const RoutedPrompt> routed, std::vector<CellWorker> tried,
                  Duration deadline, Callback callback);

  // Routes that wait for a worker below its thresholds end UNAVAILABLE, and so do those that come
  // from now on; routes that have asked their peers go on, as far as the finders deliver.
  // Idempotent.
  void Stop();

  // In any case the choice is no longer counted; if it was only accepted, it still counts for the
  // worker that is to decode it, where that is another. Unknown ids are ignored. An unreachable
  // worker is avoided for a while, until it accepts a request, or until one that it took from its
  // client ends well (`outlier_ejection.h`).
  void Report(uint64_t decision_id, const RouteReport& report);

  // The caller has seen that the worker is gone, after it had accepted.
  void Avoid(const std::string& cell, const HolderId& worker);
  // Workers that are avoided now, with their engines' urls where these are known.
  std::vector<KnownEngine> SuspectEngines() const;
  // An engine is still not reached: those of its workers that are avoided stay so for a while more.
  void KeepAvoiding(const std::vector<KnownEngine>& engines);
  // `call` is called after a worker began to be avoided, in any thread; it calls nothing here.
  // Null: nothing is called; once this returned, the one before is not called any more.
  void OnSuspect(std::function<void()> call);
  // At most so many workers whose engine's address is known, those of the options that no leaf
  // named yet included; suspects come last.
  std::vector<KnownEngine> Engines(size_t engines_max) const;
  // At most so many, those seen last first within a domain.
  std::vector<SeenCell> Cells(size_t cells_max) const;
  // The domains that answers were given about, by model and tenant.
  std::vector<Domain> Domains() const;

  // The top level, for routes that start from now on.
  void SetHierarchies(ShardMap hierarchies);
  ShardMap hierarchies() const;
  // The own cells, for routes that start from now on.
  void SetLeaves(std::vector<ConfiguredLeaf> leaves);
  std::vector<ConfiguredLeaf> leaves() const;

  // Leaves or hierarchies have told of it. *Cost*: two looks into tables.
  bool Knows(const Domain& domain) const;

  // Some hierarchy node or leaf is known to be asked.
  bool HasUpstreams() const;

  // Workers, by name, that get no requests from now on, beside those whose label `draining` says
  // so.
  void SetDraining(std::set<std::string> workers);
  std::set<std::string> draining() const;

  // Weights, thresholds and engines of the options, for what is decided from now on; routes under
  // way keep their weights.
  void SetWeights(const CostWeights& weights,
                  const std::map<std::string, CostWeights>& model_weights);
  void SetOverload(const OverloadThresholds& overload);
  void SetEngines(std::map<std::string, std::string> engines);
  // Workers that are no more, and must not be chosen from memory when a leaf does not answer.
  void Forget(const std::set<std::string>& workers);

  FrontendStats stats() const;
  // At most so many cells, the least believed first.
  std::vector<CellPromises> promises(size_t cells_max) const;
  // As it was made.
  const FrontendOptions& options() const;

 private:
  const std::shared_ptr<FleetState> fleet_;  // kept alive by routes that still run
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_FRONTEND_H_
