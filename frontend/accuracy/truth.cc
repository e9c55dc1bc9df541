// `Truth` keeps a log of decisions, a record per worker, and findings. A request passes through it
// in three calls, each of which takes the one mutex: `OnDecided` remembers, `OnReported` compares
// and may plan a check (truth_checks.cc), `Tick` asks and judges. Diagnoses run on copies, without
// the mutex.

#include "frontend/accuracy/truth.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_join.h"
#include "frontend/accuracy/diagnosis.h"
#include "frontend/accuracy/patterns.h"
#include "frontend/accuracy/truth_state.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// A line per five minutes and finding.
LogLimiter& FindingLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::minutes(5));
  return limiter;
}

// "all": a finding about the domain.
std::string WorkerText(const HolderId& worker) {
  return worker.name.empty() ? "all" : worker.name + "/" + std::to_string(worker.rank);
}

// Evidence and confidence change from one judgement to the next; a finding is the same by cause and
// place.
bool IsSame(const Finding& a, const Finding& b) {
  return a.cause == b.cause && a.domain == b.domain && a.cell == b.cell && a.worker == b.worker;
}

// Every judgement logs its findings; the limiter makes that one line while a finding lasts.
void LogFinding(const Finding& finding) {
  const std::string worker = WorkerText(finding.worker);
  const std::string domain = ToString(finding.domain);
  const std::string cause(CauseName(finding.cause));
  LogEvery(FindingLog(), cause + domain + finding.cell + worker, LogLevel::kWarning,
           finding.cause == Cause::kNoTokens            ? "requests are routed by load alone"
           : finding.cause == Cause::kEngineUnreachable ? "an engine does not answer"
                                                        : "index and engine disagree",
           {{"cause", cause},
            {"confidence", finding.confidence},
            {"domain", domain},
            {"cell", finding.cell},
            {"worker", worker},
            {"evidence", absl::StrJoin(finding.evidence, "; ")},
            {"remedy", RemedyOf(finding)}});
}

// Trust and age of the chosen worker, and the deepest of its other ranks, among the candidates that
// the receipt has.
void FillOtherRank(const RouteResult& result, uint32_t block_size, Comparison* comparison) {
  for (const ReceiptCandidate& candidate : result.receipt.candidates) {
    if (candidate.cell != result.cell || candidate.worker.name != result.worker.name) continue;
    if (candidate.worker == result.worker) {
      comparison->trust = candidate.trust;
      comparison->age_ms = candidate.age_ms;
      continue;
    }
    const uint32_t tokens = candidate.overlap_blocks * block_size;
    if (tokens <= comparison->other_rank_predicted) continue;
    comparison->other_rank_predicted = tokens;
    comparison->other_rank = candidate.worker.rank;
  }
}

// A report without a worker's name means another rank of the chosen one.
void FillServedBy(const RouteResult& result, const RouteReport& report, Comparison* comparison) {
  if (!report.served_by.has_value()) return;
  comparison->served_by = *report.served_by;
  if (comparison->served_by.name.empty()) comparison->served_by.name = result.worker.name;
  comparison->other_worker_served = comparison->served_by.name != result.worker.name;
  comparison->other_rank_served =
      !comparison->other_worker_served && comparison->served_by.rank != result.worker.rank;
}

// Everything in tokens, so that engines' figures compare with ours whatever the block size.
Comparison ComparisonOf(const DecisionRecord& record, Time now) {
  const PromptFacts& prompt = record.prompt;
  Comparison comparison{.decision = record.result.decision_id,
                        .at = now,
                        .chosen = record.at,
                        .form = record.form,
                        .has_lora = !prompt.lora_name.empty(),
                        .has_salt = !prompt.cache_salt.empty(),
                        .block_size = prompt.block_size,
                        .blocks = record.result.receipt.blocks,
                        .prompt_tokens = record.prompt_tokens,
                        .engine_tokens = record.report.prompt_tokens,
                        .predicted = record.result.overlap_blocks * prompt.block_size,
                        .served = record.report.cached_tokens,
                        .sent_before = record.sent_before_blocks * prompt.block_size,
                        .sent_before_at = record.sent_before_at,
                        .promised_sent_at = record.promised_sent_at,
                        .tokenizer = record.tokenizer,
                        .traits = record.traits};
  // 0 is a field that was filled in without a value: no prompt has no tokens.
  if (comparison.engine_tokens == 0u) comparison.engine_tokens.reset();
  const std::vector<TokenId>& tokens = prompt.tokens;
  comparison.first_token_twice = tokens.size() >= 2 && tokens[0] == tokens[1];
  if (prompt.bos.has_value() && !tokens.empty())
    comparison.begins_with_bos = tokens[0] == *prompt.bos;
  FillOtherRank(record.result, prompt.block_size, &comparison);
  FillServedBy(record.result, record.report, &comparison);
  // Cached tokens of another worker say nothing of this one.
  if (comparison.other_worker_served) comparison.served.reset();
  return comparison;
}

// Bounds: bytes of a caller's error, routes kept of a domain, and domains.
constexpr size_t kReasonMax = 256;
constexpr size_t kTokensMadeMax = 256;
constexpr size_t kDomainsMax = 1024;

template <typename T>
void Push(T value, size_t max, std::deque<T>* values) {
  values->push_back(std::move(value));
  while (values->size() > max) values->pop_front();
}

}  // namespace

// ---- State ----

// The worker's record, made if needed. At the bound the one touched longest ago is forgotten; the
// key's own sorts last, so it is never that one.
Truth::State::WorkerRecord& Truth::State::Touch(const WorkerKey& key, Time now) {
  const auto [at, is_new] = workers.try_emplace(key, options.half_life);
  at->second.touched = now;
  if (is_new && workers.size() > options.workers_max) {
    workers.erase(
        std::min_element(workers.begin(), workers.end(), [&](const auto& a, const auto& b) {
          return std::pair(a.first == key, a.second.touched) <
                 std::pair(b.first == key, b.second.touched);
        }));
  }
  return workers.at(key);
}

// One request is over, and its figures are known. Once for each decision:
//   1. The worker's record is found, and the leaf that answered for the choice is noted, to be
//      asked later.
//   2. `Count`: sums for metrics and for the worker.
//   3. The blocks sent are remembered under the worker that really had them, before the check is
//      planned.
//   4. A check is planned, unless another worker served: its leaf's answer would be about this one.
//   5. The log keeps only the head of the prompt.
void Truth::State::Compare(DecisionRecord* record, Time now) {
  record->compared = true;
  const RouteResult& result = record->result;
  const Comparison comparison = ComparisonOf(*record, now);
  WorkerRecord& worker = Touch({record->domain, result.cell, result.worker}, now);
  worker.own_contract = record->prompt.contract.Id();
  for (const CellAsked& asked : result.receipt.cells)
    if (asked.cell == result.cell && asked.error.empty()) worker.leaf_address = asked.address;
  if (!worker.leaf_address.empty()) leaves[{worker.leaf_address, record->domain}].used = now;
  Count(comparison, &worker, now);
  const HolderId& had_it = comparison.served_by.name.empty() ? result.worker : comparison.served_by;
  sent.Sent(result.cell, had_it, record->Head(options.decisions.leading_blocks), now);
  if (!comparison.other_worker_served) PlanCheck(*record, comparison, &worker, now);
  Push(comparison, options.comparisons_max, &worker.comparisons);
  decisions.Shorten(record);
}

// Requests whose prompts were to be hashed: those with tokens, and those of which none could be
// made. Others came as hashes.
void Truth::State::CountTokens(const DecisionRecord& record) {
  if (record.no_tokens.empty() && record.prompt_tokens == 0) return;
  if (!tokens_made.contains(record.domain) && tokens_made.size() >= kDomainsMax)
    tokens_made.erase(tokens_made.begin());
  Push<TokensMade>(
      {.decision = record.result.decision_id, .at = record.at, .no_tokens = record.no_tokens},
      kTokensMadeMax, &tokens_made[record.domain]);
}

// Without a decoder `decode_unreachable` means the worker itself. A request that ended well proves
// that both were reached.
void Truth::State::CountReached(const DecisionRecord& record, const RouteReport& report, Time at) {
  const RouteResult& result = record.result;
  const bool served = report.finished && report.error.empty() && !report.served_by.has_value();
  const bool failed =
      report.unreachable || (report.decode_unreachable && !result.decode.has_value());
  if (failed) CountFailed({record.domain, result.cell, result.worker}, report, at);
  if (served) CountServed({record.domain, result.cell, result.worker});
  if (!result.decode.has_value()) return;
  const WorkerKey decoder = {record.domain, result.decode->cell, result.decode->worker};
  if (report.decode_unreachable) CountFailed(decoder, report, at);
  if (served) CountServed(decoder);
}

// `since` is the first failure after the last success.
void Truth::State::CountFailed(const WorkerKey& key, const RouteReport& report, Time at) {
  std::optional<UnreachableWorker>& of = Touch(key, at).unreachable;
  if (!of.has_value()) {
    const auto& [domain, cell, worker] = key;
    of = UnreachableWorker{
        .domain = domain, .cell = cell, .worker = worker, .since = at, .times = 0, .why = {}};
  }
  of->last = at;
  ++of->times;
  of->why = report.error.substr(0, kReasonMax);
}

// No record is made for it: there is nothing to clear then.
void Truth::State::CountServed(const WorkerKey& key) {
  const auto found = workers.find(key);
  if (found != workers.end()) found->second.unreachable.reset();
}

// The same figures twice: in all since the start, and of the worker by half-lives.
void Truth::State::Count(const Comparison& comparison, WorkerRecord* worker, Time now) {
  const bool less = ServedLess(comparison), more = ServedMore(comparison);
  const bool lengths = comparison.engine_tokens.has_value() && comparison.prompt_tokens > 0;
  const bool differ = lengths && *comparison.engine_tokens != comparison.prompt_tokens;
  stats.lengths_differ += differ;
  if (comparison.served.has_value()) {
    (less ? stats.less : more ? stats.more : stats.exact) += 1;
    stats.predicted_tokens += comparison.predicted;
    stats.served_tokens += *comparison.served;
    stats.reported_blocks += comparison.blocks;
    if (comparison.block_size > 0)
      stats.cached_blocks += *comparison.served / comparison.block_size;
  } else {
    stats.without_figures += 1;
  }
  worker->tally.Add(now, [&](TallyFigures& figures) {
    figures.lengths += lengths;
    figures.lengths_differ += differ;
    if (!comparison.served.has_value()) {
      figures.without_figures += 1;
      return;
    }
    figures.requests += 1;
    (less ? figures.less : more ? figures.more : figures.exact) += 1;
    figures.predicted_tokens += comparison.predicted;
    figures.served_tokens += *comparison.served;
  });
}

// Copies what is within the window, so that diagnoses need no lock. Where the process asks engines
// itself (`SetUnreachable`), that takes the place of what failing requests tell. Workers with
// nothing to go by are left out.
std::vector<WorkerEvidence> Truth::State::Evidence(Time now) const {
  std::vector<WorkerEvidence> all;
  for (const auto& [key, worker] : workers) {
    const auto& [domain, cell, id] = key;
    WorkerEvidence evidence{.domain = domain,
                            .cell = cell,
                            .worker = id,
                            .comparisons = {},
                            .checks = {},
                            .leaf = worker.leaf,
                            .leaf_before = worker.leaf_before,
                            .no_batch_since = worker.no_batch_since,
                            .unreachable = worker.unreachable,
                            .asked_engine = unreachable.has_value(),
                            .own_contract = worker.own_contract,
                            .now = now};
    for (const Comparison& comparison : worker.comparisons)
      if (comparison.at + options.window > now) evidence.comparisons.push_back(comparison);
    for (const Check& check : worker.checks)
      if (check.at + options.window > now) evidence.checks.push_back(check);
    if (evidence.asked_engine) {
      evidence.unreachable.reset();
      for (const UnreachableWorker& engine : *unreachable)
        if (engine.cell == cell && engine.worker.name == id.name) evidence.unreachable = engine;
    }
    const bool failed =
        evidence.unreachable.has_value() && evidence.unreachable->last + options.window > now;
    if (!failed) evidence.unreachable.reset();
    if (!evidence.comparisons.empty() || failed) all.push_back(std::move(evidence));
  }
  return all;
}

// Makes all findings anew; the mutex is held for the copies alone:
//   1. Under the mutex: evidence is copied, and findings that need no evidence of a worker are
//      made.
//   2. Without it: workers are diagnosed, domain by domain.
//   3. Under it: the new findings replace the old ones; one that was there before keeps its time.
//   4. Without it: they are logged.
std::vector<KnownFinding> Truth::State::Judge(Time now) {
  std::vector<WorkerEvidence> all;
  std::vector<Finding> found;
  {
    MutexLock lock(&mutex);
    judged = true;
    judged_at = now;
    all = Evidence(now);
    for (const UnreachableWorker& engine : unreachable.value_or(std::vector<UnreachableWorker>()))
      found.push_back(FindingOf(engine, now, 0.99));
    for (const auto& [domain, made] : tokens_made) {
      std::vector<TokensMade> lately;
      for (const TokensMade& one : made)
        if (one.at + options.window > now) lately.push_back(one);
      if (std::optional<Finding> finding = DiagnoseTokens(domain, lately))
        found.push_back(*std::move(finding));
    }
  }
  std::map<Domain, std::vector<WorkerEvidence>> by_domain;
  for (WorkerEvidence& evidence : all) {
    const Domain domain = evidence.domain;
    by_domain[domain].push_back(std::move(evidence));
  }
  for (const auto& [domain, of_domain] : by_domain)
    for (Finding& finding : DiagnoseDomain(of_domain)) found.push_back(std::move(finding));
  std::stable_sort(found.begin(), found.end(),
                   [](const Finding& a, const Finding& b) { return a.confidence > b.confidence; });
  std::vector<KnownFinding> known;
  {
    MutexLock lock(&mutex);
    std::vector<std::pair<Finding, Time>> next;
    for (Finding& finding : found) {
      Time since = now;
      for (const auto& [before, first] : findings)
        if (IsSame(before, finding)) since = first;
      known.push_back({.finding = finding, .since = now - since});
      next.emplace_back(std::move(finding), since);
    }
    findings = std::move(next);
  }
  for (const KnownFinding& finding : known) LogFinding(finding.finding);
  return known;
}

// ---- Truth ----

Truth::Truth(TruthOptions options, OverlapFinder* finder, LeafProber* prober, const Clock* clock)
    : state_(std::make_shared<State>(std::move(options), finder, prober, clock)) {}

Truth::~Truth() = default;

// Runs in the route's thread, before its caller has the result. The blocks sent before are looked
// up now: later they would include this very request.
void Truth::OnDecided(const Decided& decided) {
  State& state = *state_;
  // Copied without the lock: only options are read.
  DecisionRecord record = DecisionLog(state.options.decisions).Describe(decided);
  const HolderId& worker = record.result.worker;
  const std::string& cell = record.result.cell;
  MutexLock lock(&state.mutex);
  const std::span<const SequenceHash> head = record.Head(state.options.decisions.leading_blocks);
  const SentMemory::Reach reach = state.sent.Find(cell, worker, head);
  record.sent_before_blocks = reach.blocks;
  record.sent_before_at = reach.at;
  const size_t promised = std::min<size_t>(record.result.overlap_blocks, head.size());
  if (promised > 0) record.promised_sent_at = state.sent.At(cell, worker, head[promised - 1]);
  state.CountTokens(record);
  state.decisions.Add(std::move(record), decided.at);
  ++state.stats.decisions;
}

// Reports of one decision add up (`Merge`), and the first one that is complete is compared:
//   * an error: counted against the worker, compared with nothing
//   * neither finished nor with figures: more reports are to come
//   * a prompt that the engine computed anew: nothing was promised; it is only remembered as sent
//   * otherwise `Compare`
void Truth::OnReported(uint64_t decision_id, const RouteReport& report, Time at) {
  State& state = *state_;
  MutexLock lock(&state.mutex);
  ++state.stats.reports;
  DecisionRecord* record = state.decisions.Find(decision_id);
  if (record == nullptr) {
    ++state.stats.reports_unknown;
    return;
  }
  Merge(report, &record->report);
  record->reported_at = at;
  state.CountReached(*record, report, at);
  if (record->compared) return;
  if (!report.error.empty()) {
    record->compared = true;
    ++state.stats.errors;
    state.Touch({record->domain, record->result.cell, record->result.worker}, at)
        .tally.Add(at, [](TallyFigures& figures) { figures.errors += 1; });
    return;
  }
  // Nothing was promised of a prompt that is unknown, whatever its engine counts.
  if (record->prompt_tokens == 0 && record->result.receipt.blocks == 0) return;
  if (!record->report.finished && !record->report.cached_tokens.has_value()) return;
  if (!record->cache_not_read) return state.Compare(record, at);
  // Nothing was promised, and what was served says nothing of the index. Its blocks have been
  // stored all the same.
  record->compared = true;
  state.sent.Sent(record->result.cell, record->result.worker,
                  record->Head(state.options.decisions.leading_blocks), at);
  state.decisions.Shorten(record);
}

void Truth::SetUnreachable(std::vector<UnreachableWorker> engines) {
  MutexLock lock(&state_->mutex);
  state_->unreachable = std::move(engines);
}

// Leaves are probed first, so that their answers may be there when findings are made a moment
// later.
void Truth::Tick() {
  const Time now = state_->clock->Now();
  state_->ProbeDue(now);
  state_->AskDue(now);
  bool judge = false;
  {
    MutexLock lock(&state_->mutex);
    state_->decisions.Expire(now);
    judge = !state_->judged || state_->judged_at + state_->options.diagnose_every <= now;
  }
  if (judge) state_->Judge(now);
}

std::optional<DecisionRecord> Truth::Find(uint64_t decision_id) const {
  MutexLock lock(&state_->mutex);
  const DecisionRecord* record = std::as_const(state_->decisions).Find(decision_id);
  if (record == nullptr) return std::nullopt;
  return *record;
}

std::vector<uint64_t> Truth::LatestDecisions(size_t max) const {
  MutexLock lock(&state_->mutex);
  return state_->decisions.Latest(max);
}

std::vector<KnownFinding> Truth::findings() const {
  const Time now = state_->clock->Now();
  MutexLock lock(&state_->mutex);
  std::vector<KnownFinding> known;
  for (const auto& [finding, since] : state_->findings)
    known.push_back({.finding = finding, .since = now - since});
  return known;
}

std::vector<KnownFinding> Truth::Diagnose() { return state_->Judge(state_->clock->Now()); }

// Sorted by the tokens by which predictions and figures differ, in either direction.
std::vector<WorkerTruth> Truth::workers(size_t max) const {
  const Time now = state_->clock->Now();
  MutexLock lock(&state_->mutex);
  std::vector<WorkerTruth> all;
  for (const auto& [key, worker] : state_->workers) {
    const auto& [domain, cell, id] = key;
    WorkerTruth truth{.domain = domain,
                      .cell = cell,
                      .worker = id,
                      .figures = worker.tally.At(now),
                      .leaf = worker.leaf};
    for (const Check& check : worker.checks) {
      ++truth.checks;
      truth.checks_whole += check.whole();
      truth.checks_missed += check.held == 0;
    }
    all.push_back(std::move(truth));
  }
  const auto missed = [](const WorkerTruth& truth) {
    return std::fabs(truth.figures.predicted_tokens - truth.figures.served_tokens);
  };
  std::stable_sort(all.begin(), all.end(), [&](const WorkerTruth& a, const WorkerTruth& b) {
    return missed(a) > missed(b);
  });
  if (all.size() > max) all.resize(max);
  return all;
}

TruthStats Truth::stats() const {
  MutexLock lock(&state_->mutex);
  TruthStats stats = state_->stats;
  stats.decisions_kept = state_->decisions.size();
  stats.decision_bytes = state_->decisions.bytes();
  return stats;
}

std::vector<WorkerEvidence> Truth::evidence() const {
  const Time now = state_->clock->Now();
  MutexLock lock(&state_->mutex);
  return state_->Evidence(now);
}

}  // namespace kvatlas
