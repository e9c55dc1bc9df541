// Blindness: the engine serves from its cache what the index does not know. First it is looked for
// among some requests (those with a namespace, chats), because the others then show that the index
// works at all; then among all. In each case a supposition that hits names the cause
// (`SupposedRight`); without one, lengths, granularity and the leaf's own figures are left to go
// by.

#include <string>
#include <utility>

#include "frontend/accuracy/diagnosis.h"
#include "frontend/accuracy/diagnostician.h"
#include "frontend/accuracy/evidence_text.h"
#include "frontend/accuracy/patterns.h"
#include "frontend/accuracy/what_if.h"

namespace kvatlas {
namespace {

using Kind = Supposition::Kind;

// Requests with a salt or an adapter, or those without.
Among Namespaced(bool wanted) {
  const auto is = [wanted](const auto& one) { return (one.has_lora || one.has_salt) == wanted; };
  return {.comparison = is, .check = is};
}

// Comparisons and checks are both looks at the index; they are counted together.
std::string FoundNothing(const Sight& sight, const std::string& looks) {
  const size_t nothing = sight.blind.size() + sight.missed.size();
  return Share(nothing, nothing + sight.seen.size() + sight.found.size(),
               looks + " found nothing in the index");
}

}  // namespace

// ---- To some requests ----

// A namespace is asked about first: chats with a salt would else be blamed on the template.
void Diagnostician::BlindInPart() {
  if (!BlindInNamespaces()) BlindInChats();
}

// True if the requests inside of a namespace are blind and those outside are not, whatever was
// named. Where the blind ones have salts and adapters both causes are named with less confidence.
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
  std::vector<std::pair<Cause, double>> causes;
  if (salt > 0) causes.emplace_back(Cause::kCacheSalt, lora > 0 ? 0.5 : 0.85);
  if (lora > 0) causes.emplace_back(Cause::kLoraNamespace, salt > 0 ? 0.5 : 0.85);
  AddAlternatives(causes,
                  {FoundNothing(inside, "looks at requests with a salt or an adapter"),
                   "requests without are found"},
                  inside.Decisions());
  return true;
}

// Chats are blind and completions are not: the template, unless completions differ in length too
// (then the tokens do), or the chats' lengths agree with the engine's (then it is something else,
// which later steps look for).
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
  Evidence evidence = {FoundNothing(sight, "looks at chats"), "plain completions are found"};
  if (of_chats.compared > 0) {
    evidence.push_back("the engine counts " + Signed(of_chats.least) + " to " +
                       Signed(of_chats.most) + " tokens in chats, " + Signed(of_plain.least) +
                       " to " + Signed(of_plain.most) + " in completions");
  }
  Add(Cause::kChatTemplate, of_chats.differ() ? 0.95 : 0.8, std::move(evidence), sight.Decisions());
  return true;
}

// ---- To all ----

// The first sentence of the evidence: requests and checks that show it, with the numbers of each.
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

// All requests are blind. From the surest to the least sure:
//   1. a supposition hits; 2. the worker is registered under a namespace; 3. the cached tokens have
//      another granularity;
//   4. the lengths differ: the text is another one (`NameText`);
//   5. the leaf holds nothing that is known of: events off, or names that no query has;
//   6. the leaf holds blocks, prompts stay missing and lengths agree: another hash contract;
//      lengths unknown: one of three.
void Diagnostician::Blind() {
  if (!sight_.IsBlind()) return;
  if (SupposedRight({})) return;
  if (RegisteredNamespace()) return;
  if (OtherGranularity()) return;
  const Decisions decisions = sight_.Decisions();
  Evidence evidence = {BlindText()};
  const bool leaf_holds = leaf_.has_value() && leaf_->blocks > 0;
  if (leaf_holds)
    evidence.push_back("the leaf holds " + Number(leaf_->blocks) + " blocks of the worker");
  const Lengths lengths = LengthsOf(e_);
  if (lengths.differ()) {
    const Lengths plain = LengthsOf(e_, OfForm(PromptForm::kCompletion));
    if (plain.differ() || plain.compared == 0) {
      return NameText(lengths, plain.compared == 0, std::move(evidence), decisions);
    }
  }
  // The leaf knows the worker and holds nothing of it: `Silence` has looked at that.
  if (leaf_.has_value() && !leaf_holds) return;
  if (!leaf_holds) {
    // No view of the leaf: events may be off, or blocks may have names that no query has.
    return AddAlternatives({{Cause::kEventsOff, 0.5}, {Cause::kHashContract, 0.4}}, evidence,
                           decisions);
  }
  // An index that is late has the prompts in the end; only what is still missing then shows other
  // names.
  if (sight_.missed.size() < kConfirmedMin) return;
  if (lengths.agree()) {
    evidence.push_back("the engine counts as many tokens as we do in " +
                       Share(lengths.compared - lengths.differing, lengths.compared, "prompts"));
    return Add(Cause::kHashContract, 0.75, std::move(evidence), decisions);
  }
  if (lengths.compared > 0 || e_.comparisons.size() < 2 * kShownMin) return;
  evidence.push_back("how long the engine found the prompts is not reported, or not known here");
  AddAlternatives(
      {{Cause::kHashContract, 0.4}, {Cause::kTokenizer, 0.3}, {Cause::kChatTemplate, 0.3}},
      evidence, decisions);
}

// Names the supposition with the most hits. False: none hits often enough (`HitsOf`).
bool Diagnostician::SupposedRight(const Among& among) {
  const std::vector<Hit> hits = HitsOf(e_, among);
  if (hits.empty()) return false;
  NameSupposition(hits.front());
  return true;
}

// The cause of each kind. The engine lacking our first token is told apart by our prompts: if they
// begin with that token twice the doubling is ours, else the engine leaves BOS out.
void Diagnostician::NameSupposition(const Hit& hit) {
  Evidence evidence = {BlindText(), "supposed " + ToString(hit.what) + ", " +
                                        Share(hit.hits, hit.asked, "of these") +
                                        " are in the index, with " + Number(hit.blocks) +
                                        " blocks"};
  const bool ours_twice = BeginTwice();
  switch (hit.what.kind) {
    case Kind::kFirstTokenTwice:
      evidence.push_back("the engine has the first token twice, the prompts as routed once");
      return Add(Cause::kBosDoubled, 0.96, std::move(evidence), hit.decisions);
    case Kind::kFirstTokenDropped:
      evidence.push_back(ours_twice ? "the prompts as routed begin with the same token twice"
                                    : "the prompts as routed begin with a token that the engine "
                                      "does not have");
      return Add(ours_twice ? Cause::kBosDoubled : Cause::kBosMissing, 0.96, std::move(evidence),
                 hit.decisions);
    case Kind::kBosAdded:
      evidence.push_back("the prompts as routed do not begin with BOS");
      return Add(Cause::kBosMissing, 0.96, std::move(evidence), hit.decisions);
    case Kind::kBlockSize:
      return Add(Cause::kWrongBlockSize, 0.96, std::move(evidence), hit.decisions);
    case Kind::kNoSalt:
      return Add(Cause::kCacheSalt, 0.96, std::move(evidence), hit.decisions);
    case Kind::kNoLora:
      return Add(Cause::kLoraNamespace, 0.96, std::move(evidence), hit.decisions);
    case Kind::kNoNamespace:
      Add(Cause::kCacheSalt, 0.9, evidence, hit.decisions);
      return Add(Cause::kLoraNamespace, 0.9, std::move(evidence), hit.decisions);
    case Kind::kSeed:
    case Kind::kLookAhead:
      return Add(Cause::kHashContract, 0.96, std::move(evidence), hit.decisions);
  }
}

// Whether all that the leaf has of the worker is in a namespace that at least eight in ten requests
// are not in.
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

// Two signs of another block size: the cached tokens are multiples of something that our size does
// not divide, or callers that hash themselves cover another number of tokens with each block.
bool Diagnostician::OtherGranularity() {
  if (e_.comparisons.empty()) return false;
  const uint32_t ours = e_.comparisons.back().block_size;
  const Granularity granularity = GranularityOf(e_);
  if (ours != 0 && granularity.values >= 2 && sight_.blind.size() >= kShownMin &&
      granularity.divisor % ours != 0) {
    Add(Cause::kWrongBlockSize, 0.85,
        {BlindText(), "the engine's cached_tokens are multiples of " + Number(granularity.divisor) +
                          ", the index has blocks of " + Number(ours)},
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
      {BlindText(),
       "callers hash about " + Number(tokens) + " tokens a block, the index has " + Number(ours)},
      DecisionsOf(other));
  return true;
}

}  // namespace kvatlas
