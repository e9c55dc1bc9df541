#include "frontend/truth/diagnosis.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "frontend/truth/patterns.h"

namespace kvatlas {
namespace {

// By then a worker's first events have come, however late they are.
constexpr Duration kEventsDue = std::chrono::seconds(20);

using Kind = Supposition::Kind;

std::string Number(size_t n) { return std::to_string(n); }

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string SecondsText(Duration duration) {
  return Number(std::chrono::duration<double>(duration).count()) + " s";
}

std::string Signed(int64_t value) { return (value > 0 ? "+" : "") + std::to_string(value); }

// "5 of 6 requests"
std::string Share(size_t part, size_t all, const std::string& what) {
  return Number(part) + " of " + Number(all) + " " + what;
}

std::vector<uint64_t> Latest(std::vector<uint64_t> decisions) {
  std::reverse(decisions.begin(), decisions.end());
  std::vector<uint64_t> latest;
  for (uint64_t decision : decisions) {
    if (latest.size() == kFindingDecisionsMax) break;
    if (std::find(latest.begin(), latest.end(), decision) == latest.end())
      latest.push_back(decision);
  }
  return latest;
}

template <typename Values>
std::vector<uint64_t> DecisionsOf(const Values& values) {
  std::vector<uint64_t> decisions;
  for (const auto* value : values) decisions.push_back(value->decision);
  return decisions;
}

bool HasNamespace(const Comparison& c) { return c.has_lora || c.has_salt; }
bool HasNamespace(const Check& c) { return c.has_lora || c.has_salt; }

Among Namespaced(bool wanted) {
  return {.comparison = [wanted](const Comparison& c) { return HasNamespace(c) == wanted; },
          .check = [wanted](const Check& c) { return HasNamespace(c) == wanted; }};
}

Among OfForm(PromptForm form) {
  return {.comparison = [form](const Comparison& c) { return c.form == form; },
          .check = [form](const Check& c) { return c.form == form; }};
}

class Diagnostician {
 public:
  explicit Diagnostician(const WorkerEvidence& evidence)
      : e_(evidence), leaf_(evidence.leaf), sight_(SightOf(evidence)) {}

  // From facts to guesses; each step goes on only with what the ones before left unexplained.
  std::vector<Finding> Run() {
    SelfContradictions();
    if (findings_.empty()) Silence();
    if (waits_) return {};
    if (findings_.empty()) RankMixedUp();
    if (findings_.empty()) WorkerMixedUp();
    if (findings_.empty()) NothingServed();
    if (findings_.empty()) BlindInPart();
    if (findings_.empty()) Blind();
    if (findings_.empty()) SilenceInStream();
    if (findings_.empty()) Diverging();
    if (findings_.empty()) TooLittleServed();
    if (findings_.empty()) Unexplained();
    std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
      return a.confidence > b.confidence;
    });
    return std::move(findings_);
  }

 private:
  Finding& Add(Cause cause, double confidence, std::vector<std::string> evidence,
               std::vector<uint64_t> decisions) {
    findings_.push_back({.cause = cause,
                         .confidence = confidence,
                         .domain = e_.domain,
                         .cell = e_.cell,
                         .worker = e_.worker,
                         .evidence = std::move(evidence),
                         .decisions = Latest(std::move(decisions)),
                         .or_else = {},
                         .workers = {}});
    return findings_.back();
  }

  // All findings so far fit the same evidence.
  void AreAlternatives() {
    for (Finding& finding : findings_)
      for (const Finding& other : findings_)
        if (other.cause != finding.cause) finding.or_else.push_back(other.cause);
  }

  void SelfContradictions();
  void Silence();
  void SilenceInStream();
  bool HeardNothing();
  bool HeardUseless();
  void RankMixedUp();
  void WorkerMixedUp();
  void NothingServed();
  void Blind();
  bool SupposedRight(const Among& among);
  void NameSupposition(const Hit& hit);
  bool RegisteredNamespace();
  bool OtherGranularity();
  void NameText(const Lengths& lengths, bool chats_alone, std::vector<std::string> evidence,
                const std::vector<uint64_t>& decisions);
  void NameBos(const Lengths& lengths, std::vector<std::string> evidence,
               const std::vector<uint64_t>& decisions);
  void BlindInPart();
  bool BlindInNamespaces();
  bool BlindInChats();
  void Diverging();
  void TooLittleServed();
  void Unexplained();

  std::string BlindText() const;

  const WorkerEvidence& e_;
  const std::optional<LeafView>& leaf_;
  const Sight sight_;
  std::vector<Finding> findings_;
  bool waits_ = false;  // more is to come before anything can be said
};

// ---- What processes say of themselves ----

void Diagnostician::SelfContradictions() {
  if (!leaf_.has_value() || e_.comparisons.empty()) return;
  if (!leaf_->contract.empty() && !e_.own_contract.empty() && leaf_->contract != e_.own_contract) {
    Add(Cause::kHashContract, 0.98,
        {"the leaf hashes by " + leaf_->contract + ", this frontend by " + e_.own_contract},
        sight_.Decisions());
    return;
  }
  Comparisons other;
  for (const Comparison& c : e_.comparisons)
    if (leaf_->block_size != 0 && c.block_size != leaf_->block_size) other.push_back(&c);
  if (other.size() < kShownMin || other.size() * 2 < e_.comparisons.size()) return;
  Add(Cause::kWrongBlockSize, 0.9,
      {"the leaf's index has blocks of " + Number(size_t{leaf_->block_size}) + " tokens, " +
       Share(other.size(), e_.comparisons.size(), "requests were hashed with blocks of ") +
       Number(size_t{other.back()->block_size})},
      DecisionsOf(other));
}

void Diagnostician::Silence() {
  if (!leaf_.has_value()) return;
  if (leaf_->known && leaf_->masked) {
    size_t since = 0;
    std::vector<uint64_t> decisions;
    for (const Comparison& c : e_.comparisons) {
      if (c.at < leaf_->at - leaf_->age) continue;
      ++since;
      decisions.push_back(c.decision);
    }
    std::vector<std::string> evidence = {"the leaf has not heard the worker for " +
                                         SecondsText(leaf_->age) + " and shows none of its " +
                                         Number(size_t{leaf_->blocks}) + " blocks"};
    if (since > 0)
      evidence.push_back("its engine finished " + Number(since) + " requests since: it lives");
    Add(Cause::kPublisherDead, since > 0 ? 0.97 : 0.85, std::move(evidence), std::move(decisions));
    return;
  }
  if (leaf_->known && HeardNothing()) return;
  if (leaf_->known) HeardUseless();
}

// The stream stands, but nothing has come of it since requests finished that should have said something.
void Diagnostician::SilenceInStream() {
  if (!leaf_.has_value() || !leaf_->known || leaf_->batches == 0) return;
  if (!e_.no_batch_since.has_value()) return;
  Checks missed;
  size_t found = 0;
  for (const Check& check : e_.checks) {
    if (!check.settled || check.at - check.after < *e_.no_batch_since) continue;
    if (check.whole()) {
      ++found;
    } else if (check.other_worker_held + 1 < check.asked) {
      missed.push_back(&check);
    }
  }
  if (missed.size() < kConfirmedMin || found * 4 > missed.size()) return;
  Add(Cause::kPublisherDead, 0.8,
      {"the leaf's count of batches from it stands at " + Number(size_t{leaf_->batches}) + " for " +
           SecondsText(e_.now - *e_.no_batch_since),
       Number(missed.size()) + " prompts that it finished since are not in the index"},
      DecisionsOf(missed));
}

// A worker that the leaf knows and that never said anything.
bool Diagnostician::HeardNothing() {
  if (leaf_->blocks > 0 || leaf_->batches > 0 || !sight_.found.empty()) return false;
  Comparisons served;
  size_t silent = 0;
  for (const Comparison& c : e_.comparisons) {
    if (c.served.has_value() && *c.served >= c.block_size) served.push_back(&c);
    silent += !c.served.has_value();
  }
  std::vector<std::string> evidence = {
      "the leaf knows the worker and has never heard a batch from it"};
  if (leaf_->engine.has_value())
    evidence.push_back(leaf_->connected ? "its event socket is connected"
                                        : "its registered event endpoint does not answer");
  // Events may come late, and one that announces nothing may just not have been asked twice.
  waits_ = e_.comparisons.empty() || e_.now - e_.comparisons.front().at < kEventsDue;
  if (waits_) return true;
  if (served.size() >= kConfirmedMin) {
    evidence.push_back("its engine served cached tokens in " +
                       Share(served.size(), e_.comparisons.size(), "requests"));
    Add(Cause::kEventsOff, 0.92, std::move(evidence), DecisionsOf(served));
    return true;
  }
  if (sight_.missed.size() < kConfirmedMin || silent < e_.comparisons.size()) return false;
  evidence.push_back(Number(sight_.missed.size()) +
                     " prompts that it finished are not in the index; it reports no cached_tokens");
  Add(Cause::kEventsOff, 0.6, evidence, DecisionsOf(sight_.missed));
  Add(Cause::kPrefixCachingOff, 0.4, evidence, DecisionsOf(sight_.missed));
  AreAlternatives();
  return true;
}

// One that says much, of which nothing is held.
bool Diagnostician::HeardUseless() {
  if (!leaf_->engine.has_value() || leaf_->blocks > 0 || leaf_->batches == 0) return false;
  if (sight_.missed.size() < kConfirmedMin && sight_.blind.size() < kConfirmedMin) return false;
  const LeafEngineView& engine = *leaf_->engine;
  const std::string heard =
      "the leaf heard " + Number(size_t{leaf_->batches}) + " batches from it and holds no block";
  const auto size = engine.refused.find("block_size");
  if (size != engine.refused.end()) {
    Add(Cause::kWrongBlockSize, 0.95,
        {heard, "it refused " + Number(size_t{size->second}) +
                    " events for their block size, not " + Number(size_t{engine.block_size}) +
                    (engine.last_refusal.empty() ? "" : ": " + engine.last_refusal)},
        sight_.Decisions());
    return true;
  }
  if (engine.parked > 0) {
    Add(Cause::kBlocksOrphaned, 0.85,
        {heard, Number(size_t{engine.parked}) + " blocks wait there for parents that never came"},
        sight_.Decisions());
    return true;
  }
  uint64_t refused = 0;
  for (const auto& [reason, count] : engine.refused) refused += count;
  if (refused == 0) return false;
  Add(Cause::kEventsRefused, 0.85,
      {heard,
       "it refused " + Number(size_t{refused}) + " events or blocks: " + engine.last_refusal},
      sight_.Decisions());
  return true;
}

// ---- Another worker ----

void Diagnostician::RankMixedUp() {
  Comparisons by_rank, said, parted, fits_other;
  size_t telling = 0;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served_by.name.empty()) said.push_back(&c);
    if (c.other_rank_served) by_rank.push_back(&c);
    if (!ServedLess(c) && !ServedMore(c)) continue;
    parted.push_back(&c);
    const uint32_t other = c.other_rank_predicted;
    const uint32_t apart = other > *c.served ? other - *c.served : *c.served - other;
    if (apart >= c.block_size) continue;
    fits_other.push_back(&c);
    telling += other > 0;
  }
  Checks at_rank, whole;
  for (const Check& check : e_.checks) {
    if (!check.turned_up.has_value()) {
      if (check.whole()) whole.push_back(&check);
    } else if (check.turned_up->name == e_.worker.name) {
      at_rank.push_back(&check);
    }
  }
  const std::string rank = Number(size_t{e_.worker.rank});
  if (by_rank.size() >= kShownMin && by_rank.size() * 10 >= said.size() * 6) {
    Add(Cause::kRankMixedUp, 0.97,
        {Share(by_rank.size(), said.size(), "requests") + " for rank " + rank +
         " were served by rank " + Number(size_t{by_rank.back()->served_by.rank})},
        DecisionsOf(by_rank));
  } else if (at_rank.size() >= kConfirmedMin &&
             at_rank.size() * 10 >= (at_rank.size() + whole.size()) * 6) {
    Add(Cause::kRankMixedUp, 0.92,
        {Share(at_rank.size(), at_rank.size() + whole.size(), "prompts") + " sent to rank " + rank +
         " turned up at rank " + Number(size_t{at_rank.back()->turned_up->rank}) +
         " of the same worker, to which they were not sent"},
        DecisionsOf(at_rank));
  } else if (fits_other.size() >= kShownMin && telling >= kConfirmedMin &&
             fits_other.size() * 10 >= parted.size() * 7) {
    Add(Cause::kRankMixedUp, 0.8,
        {"in " + Share(fits_other.size(), parted.size(), "requests that missed their prediction") +
         " the engine served what the index promised for another rank of the worker"},
        DecisionsOf(fits_other));
  }
}

void Diagnostician::WorkerMixedUp() {
  Comparisons by_worker, said;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served_by.name.empty()) said.push_back(&c);
    if (c.other_worker_served) by_worker.push_back(&c);
  }
  if (by_worker.size() >= kShownMin && by_worker.size() * 10 >= said.size() * 8) {
    Add(Cause::kWorkerMixedUp, 0.9,
        {Share(by_worker.size(), said.size(), "requests") + " were served by " +
         by_worker.back()->served_by.name},
        DecisionsOf(by_worker));
    return;
  }
  Checks at_worker;
  size_t others = 0;
  for (const Check& check : e_.checks) {
    if (check.turned_up.has_value() && check.turned_up->name != e_.worker.name) {
      at_worker.push_back(&check);
    } else {
      others += check.whole() || check.settled;
    }
  }
  if (at_worker.size() < kConfirmedMin || at_worker.size() < others) return;
  const HolderId& other = *at_worker.back()->turned_up;
  size_t same = 0;
  for (const Check* check : at_worker) same += check->turned_up->name == other.name;
  if (same * 10 < at_worker.size() * 8) return;
  Add(Cause::kWorkerMixedUp, 0.85,
      {Share(at_worker.size(), at_worker.size() + others, "prompts") + " turned up at " +
       other.name + " instead, to which they were not sent"},
      DecisionsOf(at_worker));
}

// ---- Nothing from the cache ----

void Diagnostician::NothingServed() {
  const bool holds_nothing = leaf_.has_value() && leaf_->known && leaf_->blocks == 0;
  Comparisons expected;
  size_t promised = 0, sent = 0;
  Time last_served{0};
  for (const Comparison& c : e_.comparisons)
    if (c.served.value_or(0) > 0) last_served = c.chosen;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served.has_value() || c.chosen <= last_served) continue;
    const bool was_sent = c.sent_before >= 2 * c.block_size &&
                          (last_served == Time(0) || c.sent_before_at > last_served);
    const bool was_promised = Promised(c) >= 2 * c.block_size;
    if (!was_promised && !(was_sent && holds_nothing)) continue;
    expected.push_back(&c);
    promised += was_promised;
    sent += was_sent;
  }
  if (expected.size() < kShownMin + 1 || (sent < kConfirmedMin && expected.size() < 3 * kShownMin))
    return;
  std::vector<std::string> evidence = {
      "the last " + Number(expected.size()) +
      " requests that should have found something in the cache were served 0 cached tokens"};
  evidence.push_back(Number(sent) + " of them repeat what was sent there before");
  if (promised > 0) {
    evidence.push_back("the index promised something in " + Number(promised) + " of them");
    Add(Cause::kPrefixCachingOff, 0.65, evidence, DecisionsOf(expected));
    Add(Cause::kUsageNotReported, 0.35, std::move(evidence), DecisionsOf(expected));
    AreAlternatives();
    return;
  }
  evidence.push_back("the leaf holds no block of the worker, so it announces none either");
  Add(Cause::kPrefixCachingOff, 0.9, std::move(evidence), DecisionsOf(expected));
}

// ---- Blind: served, and not known ----

std::string Diagnostician::BlindText() const {
  std::string text;
  if (!sight_.blind.empty()) {
    text = Share(sight_.blind.size(), sight_.blind.size() + sight_.seen.size(),
                 "requests that the engine served from its cache were predicted to find nothing");
  }
  if (!sight_.missed.empty()) {
    if (!text.empty()) text += "; ";
    text += Share(sight_.missed.size(), sight_.missed.size() + sight_.found.size(),
                  "prompts that it finished are not in the index");
  }
  return text;
}

void Diagnostician::Blind() {
  if (!sight_.IsBlind()) return;
  if (SupposedRight({})) return;
  if (RegisteredNamespace()) return;
  if (OtherGranularity()) return;
  const std::vector<uint64_t> decisions = sight_.Decisions();
  std::vector<std::string> evidence = {BlindText()};
  const bool leaf_holds = leaf_.has_value() && leaf_->blocks > 0;
  if (leaf_holds)
    evidence.push_back("the leaf holds " + Number(size_t{leaf_->blocks}) + " blocks of the worker");
  const Lengths lengths = LengthsOf(e_);
  if (lengths.differ()) {
    const Lengths plain = LengthsOf(e_, OfForm(PromptForm::kCompletion));
    if (plain.differ() || plain.compared == 0) {
      NameText(lengths, plain.compared == 0, std::move(evidence), decisions);
      return;
    }
  }
  if (leaf_.has_value() && !leaf_holds) return;
  if (!leaf_holds) {
    // Events may be off, or blocks may have names that no query has.
    Add(Cause::kEventsOff, 0.5, evidence, decisions);
    Add(Cause::kHashContract, 0.4, std::move(evidence), decisions);
    AreAlternatives();
    return;
  }
  // What comes late is there at last.
  if (sight_.missed.size() < kConfirmedMin) return;
  if (lengths.agree()) {
    evidence.push_back("the engine counts as many tokens as we do in " +
                       Share(lengths.compared - lengths.differing, lengths.compared, "prompts"));
    Add(Cause::kHashContract, 0.75, std::move(evidence), decisions);
    return;
  }
  if (lengths.compared > 0 || e_.comparisons.size() < 2 * kShownMin) return;
  evidence.push_back("how long the engine found the prompts is not reported, or not known here");
  Add(Cause::kHashContract, 0.4, evidence, decisions);
  Add(Cause::kTokenizer, 0.3, evidence, decisions);
  Add(Cause::kChatTemplate, 0.3, std::move(evidence), decisions);
  AreAlternatives();
}

bool Diagnostician::SupposedRight(const Among& among) {
  const std::vector<Hit> hits = HitsOf(e_, among);
  if (hits.empty()) return false;
  NameSupposition(hits.front());
  return true;
}

void Diagnostician::NameSupposition(const Hit& hit) {
  std::vector<std::string> evidence = {BlindText(), "supposed " + ToString(hit.what) + ", " +
                                                        Share(hit.hits, hit.asked, "of these") +
                                                        " are in the index, with " +
                                                        Number(size_t{hit.blocks}) + " blocks"};
  size_t twice = 0;
  for (const Comparison& c : e_.comparisons) twice += c.first_token_twice;
  const bool ours_twice = twice * 2 > e_.comparisons.size();
  switch (hit.what.kind) {
    case Kind::kFirstTokenTwice:
      evidence.push_back("the engine has the first token twice, the prompts as routed once");
      Add(Cause::kBosDoubled, 0.96, std::move(evidence), hit.decisions);
      return;
    case Kind::kFirstTokenDropped:
      evidence.push_back(ours_twice ? "the prompts as routed begin with the same token twice"
                                    : "the prompts as routed begin with a token that the engine "
                                      "does not have");
      Add(ours_twice ? Cause::kBosDoubled : Cause::kBosMissing, 0.96, std::move(evidence),
          hit.decisions);
      return;
    case Kind::kBosAdded:
      evidence.push_back("the prompts as routed do not begin with BOS");
      Add(Cause::kBosMissing, 0.96, std::move(evidence), hit.decisions);
      return;
    case Kind::kBlockSize:
      Add(Cause::kWrongBlockSize, 0.96, std::move(evidence), hit.decisions);
      return;
    case Kind::kNoSalt:
      Add(Cause::kCacheSalt, 0.96, std::move(evidence), hit.decisions);
      return;
    case Kind::kNoLora:
      Add(Cause::kLoraNamespace, 0.96, std::move(evidence), hit.decisions);
      return;
    case Kind::kNoNamespace:
      Add(Cause::kCacheSalt, 0.9, evidence, hit.decisions);
      Add(Cause::kLoraNamespace, 0.9, std::move(evidence), hit.decisions);
      return;
    case Kind::kSeed:
    case Kind::kLookAhead:
      Add(Cause::kHashContract, 0.96, std::move(evidence), hit.decisions);
      return;
  }
}

// All that the leaf has of the worker is in a namespace that the requests are not in.
bool Diagnostician::RegisteredNamespace() {
  if (!leaf_.has_value() || !leaf_->engine.has_value()) return false;
  size_t without_lora = 0, without_salt = 0;
  for (const Comparison& c : e_.comparisons) {
    without_lora += !c.has_lora;
    without_salt += !c.has_salt;
  }
  const size_t most = e_.comparisons.size() * 8 / 10;
  if (!leaf_->engine->lora_name.empty() && without_lora > most) {
    Add(Cause::kLoraNamespace, 0.9,
        {BlindText(), "the worker is registered under the adapter " + leaf_->engine->lora_name +
                          ", the requests name none"},
        sight_.Decisions());
    return true;
  }
  if (leaf_->engine->salted && without_salt > most) {
    Add(Cause::kCacheSalt, 0.9,
        {BlindText(), "the worker is registered with an additional salt, the requests have none"},
        sight_.Decisions());
    return true;
  }
  return false;
}

bool Diagnostician::OtherGranularity() {
  if (e_.comparisons.empty()) return false;
  const uint32_t ours = e_.comparisons.back().block_size;
  const Granularity granularity = GranularityOf(e_);
  if (ours != 0 && granularity.values >= 2 && sight_.blind.size() >= kShownMin &&
      granularity.divisor % ours != 0) {
    Add(Cause::kWrongBlockSize, 0.85,
        {BlindText(), "the engine's cached_tokens are multiples of " +
                          Number(size_t{granularity.divisor}) + ", the index has blocks of " +
                          Number(size_t{ours})},
        sight_.Decisions());
    return true;
  }
  // Callers that hash themselves: how many tokens are in one of their blocks?
  Comparisons told, other;
  for (const Comparison& c : e_.comparisons) {
    if (c.prompt_tokens > 0 || !c.engine_tokens.has_value() || c.blocks < 3) continue;
    told.push_back(&c);
    const double tokens = static_cast<double>(*c.engine_tokens) / (c.blocks * double{1} * ours);
    if (tokens >= 1.5 || tokens <= 0.67) other.push_back(&c);
  }
  if (other.size() < kShownMin || other.size() * 10 < told.size() * 8) return false;
  const double tokens = static_cast<double>(*other.back()->engine_tokens) / other.back()->blocks;
  Add(Cause::kWrongBlockSize, 0.9,
      {BlindText(), "callers hash about " + Number(tokens) + " tokens a block, the index has " +
                        Number(size_t{ours})},
      DecisionsOf(other));
  return true;
}

// The engine counts another number of tokens.
void Diagnostician::NameText(const Lengths& lengths, bool chats_alone,
                             std::vector<std::string> evidence,
                             const std::vector<uint64_t>& decisions) {
  if (!lengths.differ()) return;
  evidence.push_back("the engine counts another number of tokens in " +
                     Share(lengths.differing, lengths.compared, "prompts") + ": " +
                     Signed(lengths.least) + " to " + Signed(lengths.most));
  if (lengths.constant() && (lengths.least == lengths.most) &&
      (lengths.least == 1 || lengths.least == -1)) {
    return NameBos(lengths, std::move(evidence), decisions);
  }
  if (!chats_alone) {
    evidence.push_back("plain completions differ too");
    Add(Cause::kTokenizer, 0.85, std::move(evidence), decisions);
    return;
  }
  evidence.push_back("no plain completion was among them, which would tell which of the two");
  const bool proportional = lengths.proportional();
  evidence.push_back(proportional ? "the difference grows with the prompt, " +
                                        Number(lengths.per_token * 100) + " in 100 tokens"
                                  : "the difference does not grow with the prompt");
  Add(Cause::kTokenizer, proportional ? 0.6 : 0.3, evidence, decisions);
  Add(Cause::kChatTemplate, proportional ? 0.35 : 0.6, std::move(evidence), decisions);
  AreAlternatives();
}

void Diagnostician::NameBos(const Lengths& lengths, std::vector<std::string> evidence,
                            const std::vector<uint64_t>& decisions) {
  size_t twice = 0, with = 0, without = 0;
  for (const Comparison& c : e_.comparisons) {
    twice += c.first_token_twice;
    with += c.begins_with_bos == true;
    without += c.begins_with_bos == false;
  }
  if (lengths.least < 0) {
    const bool ours_twice = twice * 2 > e_.comparisons.size();
    evidence.push_back(ours_twice ? "the prompts as routed begin with the same token twice"
                                  : "the prompts as routed begin with one token only");
    Add(ours_twice ? Cause::kBosDoubled : Cause::kBosMissing, 0.8, std::move(evidence), decisions);
    return;
  }
  if (without > with) {
    evidence.push_back("the prompts as routed do not begin with BOS");
    Add(Cause::kBosMissing, 0.8, std::move(evidence), decisions);
    return;
  }
  if (with > 0) {
    evidence.push_back("the prompts as routed begin with BOS");
    Add(Cause::kBosDoubled, 0.8, std::move(evidence), decisions);
    return;
  }
  Add(Cause::kBosDoubled, 0.55, evidence, decisions);
  Add(Cause::kBosMissing, 0.4, std::move(evidence), decisions);
  AreAlternatives();
}

// ---- Blind to some requests ----

void Diagnostician::BlindInPart() {
  if (!BlindInNamespaces()) BlindInChats();
}

bool Diagnostician::BlindInNamespaces() {
  const Sight inside = SightOf(e_, Namespaced(true));
  if (!inside.IsBlind() || !SightOf(e_, Namespaced(false)).SeesSomething()) return false;
  if (SupposedRight(Namespaced(true))) return true;
  size_t lora = 0, salt = 0;
  const auto count = [&](const auto& of) {
    for (const auto* one : of) {
      lora += one->has_lora;
      salt += one->has_salt;
    }
  };
  count(inside.blind);
  count(inside.missed);
  const std::vector<std::string> evidence = {
      Share(inside.blind.size() + inside.missed.size(),
            inside.blind.size() + inside.missed.size() + inside.seen.size() + inside.found.size(),
            "looks at requests with a salt or an adapter found nothing in the index"),
      "requests without are found"};
  if (salt > 0) Add(Cause::kCacheSalt, lora > 0 ? 0.5 : 0.85, evidence, inside.Decisions());
  if (lora > 0) Add(Cause::kLoraNamespace, salt > 0 ? 0.5 : 0.85, evidence, inside.Decisions());
  AreAlternatives();
  return true;
}

bool Diagnostician::BlindInChats() {
  const Among chats = OfForm(PromptForm::kChat), plain = OfForm(PromptForm::kCompletion);
  const Sight sight = SightOf(e_, chats);
  if (!sight.IsBlind() || !SightOf(e_, plain).SeesSomething()) return false;
  if (SupposedRight(chats)) return true;
  const Lengths of_chats = LengthsOf(e_, chats), of_plain = LengthsOf(e_, plain);
  if (of_plain.differ()) {
    NameText(of_chats, /*chats_alone=*/false, {BlindText()}, sight.Decisions());
    return true;
  }
  if (of_chats.compared > 0 && !of_chats.differ()) return false;
  std::vector<std::string> evidence = {
      Share(sight.blind.size() + sight.missed.size(),
            sight.blind.size() + sight.missed.size() + sight.seen.size() + sight.found.size(),
            "looks at chats found nothing in the index"),
      "plain completions are found"};
  if (of_chats.compared > 0) {
    evidence.push_back("the engine counts " + Signed(of_chats.least) + " to " +
                       Signed(of_chats.most) + " tokens in chats, " + Signed(of_plain.least) +
                       " to " + Signed(of_plain.most) + " in completions");
  }
  Add(Cause::kChatTemplate, of_chats.differ() ? 0.95 : 0.8, std::move(evidence), sight.Decisions());
  return true;
}

// The heads are known, and behind them ours and the engine's prompts part.
void Diagnostician::Diverging() {
  const Lengths lengths = LengthsOf(e_);
  if (!lengths.differ()) return;
  Checks at_head;
  size_t whole = 0;
  for (const Check& check : e_.checks) {
    whole += check.whole();
    if (!check.whole() && check.held * 2 <= check.asked) at_head.push_back(&check);
  }
  if (at_head.size() < kConfirmedMin || at_head.size() < 4 * whole) return;
  const Lengths plain = LengthsOf(e_, OfForm(PromptForm::kCompletion));
  std::vector<std::string> evidence = {
      Share(at_head.size(), at_head.size() + whole, "prompts that it finished") +
      " are in the index up to block " + Number(size_t{at_head.back()->held}) + " or so alone"};
  NameText(lengths, plain.compared == 0, std::move(evidence), DecisionsOf(at_head));
}

// ---- Less than promised ----

void Diagnostician::TooLittleServed() {
  const Break broke = BreakOf(e_);
  if (broke.found) {
    std::vector<std::string> evidence = {
        Share(broke.kept_before, broke.promises_before, "promises were kept until ") +
            SecondsText(e_.now - broke.at) + " ago",
        Number(broke.broken_after) +
            " about older prompts were broken since; of prompts sent "
            "again since, " +
            Number(broke.kept_again) + " were kept"};
    const bool anew =
        leaf_.has_value() && e_.leaf_before.has_value() && leaf_->epoch != e_.leaf_before->epoch;
    if (anew) evidence.push_back("the leaf saw the worker's stream begin anew");
    if (!anew && !broke.sharp) {
      evidence.push_back("what was broken is older than what was kept, as when a cache turns over");
      Add(Cause::kEngineRestarted, 0.5, evidence, broke.decisions);
      Add(Cause::kStaleIndex, 0.5, std::move(evidence), broke.decisions);
      AreAlternatives();
      return;
    }
    const double confidence = anew ? 0.95 : 0.85;
    Add(Cause::kEngineRestarted, confidence, std::move(evidence), broke.decisions);
    return;
  }
  Comparisons promises, broken;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served.has_value() || Promised(c) < 2 * c.block_size) continue;
    promises.push_back(&c);
    if (ServedLess(c)) broken.push_back(&c);
  }
  Checks late;
  size_t settled = 0, whole = 0, elsewhere = 0;
  for (const Check& check : e_.checks) {
    elsewhere += check.turned_up.has_value();
    if (check.late()) late.push_back(&check);
    settled += check.settled;
    whole += check.prompt();
  }
  whole += late.size();
  // The index hears of this worker, under the names that are asked for.
  if (whole < kShownMin || whole * 2 < settled || elsewhere * 4 >= whole) return;
  std::vector<std::string> evidence;
  std::vector<uint64_t> decisions;
  if (broken.size() >= kShownMin && broken.size() * 4 >= promises.size()) {
    evidence.push_back("the engine served less than predicted in " +
                       Share(broken.size(), promises.size(), "requests"));
    decisions = DecisionsOf(broken);
  }
  if (late.size() >= kConfirmedMin && late.size() * 3 >= e_.checks.size()) {
    evidence.push_back(
        Share(late.size(), e_.checks.size(), "prompts came into the index late, up to ") +
        SecondsText(
            (*std::max_element(late.begin(), late.end(),
                               [](const Check* a, const Check* b) { return a->after < b->after; }))
                ->after) +
        " after they were finished");
    for (const Check* check : late) decisions.push_back(check->decision);
  }
  // Nothing at all, ever: that is no matter of time.
  const bool any = std::any_of(e_.comparisons.begin(), e_.comparisons.end(),
                               [](const Comparison& c) { return c.served.value_or(0) > 0; });
  if (evidence.empty() || !any) return;
  double confidence = 0.7;
  if (leaf_.has_value() && leaf_->engine.has_value() && leaf_->engine->lag_ms >= 1000) {
    evidence.push_back("the leaf applies its events " + Number(leaf_->engine->lag_ms / 1000) +
                       " s after the engine wrote them");
    confidence = 0.9;
  }
  if (leaf_.has_value() && leaf_->trust != Trust::kExact) {
    evidence.push_back("the leaf itself doubts what it holds of the worker");
    confidence = 0.85;
  }
  Add(Cause::kStaleIndex, confidence, std::move(evidence), std::move(decisions));
}

void Diagnostician::Unexplained() {
  Comparisons looked_at, parted;
  size_t whole = 0, settled = 0, elsewhere = 0;
  for (const Check& check : e_.checks) {
    whole += check.whole();
    settled += check.settled;
    elsewhere += check.turned_up.has_value();
  }
  if (settled < kConfirmedMin || elsewhere * 4 >= settled) return;
  // Siblings that come before the first one's events are served more than was predicted; the index is right then.
  const bool index_is_right = whole >= kConfirmedMin && whole * 10 >= settled * 8;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served.has_value() || (*c.served < c.block_size && c.predicted == 0)) continue;
    looked_at.push_back(&c);
    if (ServedLess(c) || (ServedMore(c) && !index_is_right)) parted.push_back(&c);
  }
  if (parted.size() < 3 * kShownMin || parted.size() * 2 < looked_at.size()) return;
  Add(Cause::kUnexplained, 0.3,
      {Share(parted.size(), looked_at.size(),
             "requests were served something else than predicted")},
      DecisionsOf(parted));
}

}  // namespace

std::vector<Finding> Diagnose(const WorkerEvidence& evidence) {
  return Diagnostician(evidence).Run();
}

}  // namespace kvatlas
