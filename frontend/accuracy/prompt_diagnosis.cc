// The engine reads some requests as other tokens than were hashed for them, and its tokenizer and
// template are ours: by their lengths, by how far finished prompts are in the index, or by what the
// requests have in common. And: no tokens could be made at all.
//
// A prompt that an engine finished has to be announced under our names. Where it is only up to
// block n, though the engine's events come and nothing of them was lost, the engine read block n
// otherwise, or one before it: other requests with the same beginning may have been announced. The
// part of a promise that it served is another such bound.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "frontend/accuracy/diagnosis.h"
#include "frontend/accuracy/diagnostician.h"
#include "frontend/accuracy/evidence_text.h"
#include "frontend/accuracy/patterns.h"

namespace kvatlas {
namespace {

// One in so many requests is no accident.
constexpr size_t kOneIn = 10;
constexpr size_t kNoTokensOneIn = 20;

// Both sides must know the length.
bool LengthsDiffer(const Comparison& c) {
  return c.prompt_tokens > 0 && c.engine_tokens.has_value() && *c.engine_tokens != c.prompt_tokens;
}

bool Has(const Comparison& c, const std::string& trait) {
  return std::find(c.traits.begin(), c.traits.end(), trait) != c.traits.end();
}

size_t CountWith(const Comparisons& of, const std::string& trait) {
  return static_cast<size_t>(
      std::count_if(of.begin(), of.end(), [&](const Comparison* c) { return Has(*c, trait); }));
}

// The trait that at least eight in ten of `wrong` and at most two in ten of `right` have; empty:
// there is none. Among several the one that more of `wrong` have, then that fewer of `right` have.
std::string TraitOf(const Comparisons& wrong, const Comparisons& right) {
  std::set<std::string> traits;
  for (const Comparison* c : wrong) traits.insert(c->traits.begin(), c->traits.end());
  std::string best;
  size_t best_with = 0, best_without = 0;
  for (const std::string& trait : traits) {
    const size_t with = CountWith(wrong, trait), without = CountWith(right, trait);
    if (with * 10 < wrong.size() * 8 || without * 10 > right.size() * 2) continue;
    const bool better =
        best.empty() || with > best_with || (with == best_with && without < best_without);
    if (!better) continue;
    best = trait;
    best_with = with;
    best_without = without;
  }
  return best;
}

// For people: which tokens of the prompt to look at.
std::string TokenRange(uint32_t block, uint32_t block_size) {
  return "block " + Number(block) + " (tokens " + Number(block * block_size) + " to " +
         Number((block + 1) * block_size - 1) + ")";
}

}  // namespace

// About a domain's routes, not about a worker. One request in twenty without tokens is worth a
// finding; the first and the last reason are named, since the first began it and the last is
// current.
std::optional<Finding> DiagnoseTokens(const Domain& domain, const std::vector<TokensMade>& made) {
  std::vector<const TokensMade*> failed;
  std::set<std::string> reasons;
  for (const TokensMade& one : made) {
    if (one.no_tokens.empty()) continue;
    failed.push_back(&one);
    reasons.insert(one.no_tokens);
  }
  if (failed.size() < kShownMin || failed.size() * kNoTokensOneIn < made.size())
    return std::nullopt;
  Finding finding{
      .cause = Cause::kNoTokens,
      .confidence = 0.95,
      .domain = domain,
      .cell = {},
      .worker = {},
      .evidence = {Share(failed.size(), made.size(), "requests for ") + domain.model +
                       " went by load alone, as no tokens could be made of their prompts",
                   "the first reason: " + failed.front()->no_tokens},
      .decisions = {},
      .or_else = {},
      .workers = {}};
  if (reasons.size() > 1) {
    const std::string& last = failed.back()->no_tokens;
    finding.evidence.push_back(
        "there are " + Number(reasons.size()) + " reasons" +
        (last == failed.front()->no_tokens ? "" : ", the last one: " + last));
  }
  for (size_t i = failed.size(); i > 0 && finding.decisions.size() < kFindingDecisionsMax; --i)
    finding.decisions.push_back(failed[i - 1]->decision);
  return finding;
}

// By the latest request: the way tokens are made may have changed.
std::string Diagnostician::TokensText() const {
  for (auto c = e_.comparisons.rbegin(); c != e_.comparisons.rend(); ++c)
    if (!c->tokenizer.empty()) return "our tokens are made by " + c->tokenizer;
  return "our tokens are the caller's";
}

size_t Diagnostician::TellingOf(const Checks& parted) const {
  size_t telling = 0;
  for (const Check* check : parted) {
    telling += std::any_of(e_.comparisons.begin(), e_.comparisons.end(), [&](const Comparison& c) {
      return c.decision == check->decision && (ServedLess(c) || LengthsDiffer(c));
    });
  }
  return telling;
}

// The lowest block from which on some prompt differs at the latest: where the index ends, or where
// the engine stopped serving, whichever is lower. Our tokens there are shown if the block is the
// one that the index lacks.
std::string Diagnostician::FirstDifference(const Checks& parted) const {
  std::map<uint64_t, const Comparison*> of;
  for (const Comparison& c : e_.comparisons) of[c.decision] = &c;
  const Check* first = nullptr;
  uint32_t block = 0;
  for (const Check* check : parted) {
    const auto found = of.find(check->decision);
    uint32_t differs = check->held;
    if (found != of.end() && ServedLess(*found->second))
      differs = std::min(differs, *found->second->served / found->second->block_size);
    if (first != nullptr && differs >= block) continue;
    first = check;
    block = differs;
  }
  if (first == nullptr) return "";
  std::string text = "they differ from " + TokenRange(block, first->block_size) +
                     " on at the latest, in decision " + Number(first->decision);
  if (block != first->held || first->missing_tokens.empty()) return text;
  text += ", where we have";
  for (TokenId token : first->missing_tokens) text += " " + Number(token);
  return text;
}

// Needs some requests on both sides: a trait that all have separates nothing.
bool Diagnostician::DiffersByTrait(const Comparisons& wrong, const Comparisons& right,
                                   Evidence evidence) {
  if (wrong.size() < kConfirmedMin || right.size() < kConfirmedMin) return false;
  const std::string trait = TraitOf(wrong, right);
  if (trait.empty()) return false;
  evidence.push_back("of these " + Number(CountWith(wrong, trait)) + " have " + trait +
                     " in the request, of the other " + Number(right.size()) + " " +
                     Number(CountWith(right, trait)));
  evidence.push_back(TokensText());
  Add(Cause::kPromptDiffers, 0.9, std::move(evidence), DecisionsOf(wrong));
  return true;
}

// Finished prompts that the index has in part, though their worker's events come and none was lost.
// Excluded are prompts that were asked about too early, turned up elsewhere, or finished after the
// stream stopped.
Checks Diagnostician::Parted() const {
  const bool tells = leaf_.has_value() && leaf_->batches > 0 && leaf_->trust == Trust::kExact &&
                     // A hybrid model's index keeps what a prompt can go on from, and no more.
                     !leaf_->hybrid &&
                     (!leaf_->engine.has_value() || leaf_->engine->messages_lost == 0);
  Checks parted;
  for (const Check& check : e_.checks) {
    // Prompts that finished after the last batch may just not have been announced yet.
    const bool heard_since =
        !e_.no_batch_since.has_value() || *e_.no_batch_since >= check.at - check.after;
    if (!tells || !heard_since || !check.settled) continue;
    if (check.whole() || check.turned_up.has_value()) continue;
    if (check.other_worker_held + 1 < check.asked) parted.push_back(&check);
  }
  return parted;
}

// Two independent signs, by length and by blocks; either is enough:
//   1. By length: of one form some requests differ in length and others agree, so template and
//      tokenizer are right.
//   2. By blocks: a share of finished prompts is in the index in part only, and the engine either
//      served more than the index knew, or did not restore what it computed anew.
// For each, what the requests have in common is looked for first (`DiffersByTrait`), since that
// names the feature.
void Diagnostician::PromptDiffers() {
  const Checks parted = Parted();
  const auto settled =
      static_cast<size_t>(std::count_if(e_.checks.begin(), e_.checks.end(), [](const Check& check) {
        return check.settled && !(check.whole() && check.sent_again);
      }));
  Comparisons differing, agreeing, more;
  for (const Comparison& c : e_.comparisons) {
    if (ServedMore(c)) more.push_back(&c);
    if (c.prompt_tokens == 0 || !c.engine_tokens.has_value()) continue;
    (LengthsDiffer(c) ? differing : agreeing).push_back(&c);
  }
  Evidence evidence;
  if (!differing.empty()) {
    const Lengths lengths = LengthsOf(e_);
    evidence.push_back("the engine counts another number of tokens in " +
                       Share(differing.size(), lengths.compared, "prompts") + ": " +
                       Signed(lengths.least) + " to " + Signed(lengths.most));
  }
  if (!parted.empty()) {
    evidence.push_back(Share(parted.size(), settled,
                             "prompts that it finished and that were asked "
                             "about are in the index only in part, though "
                             "its events come"));
    evidence.push_back(FirstDifference(parted));
  }
  // If all requests of the form differ it is the template, which `Diverging` names.
  const bool some_agree =
      !differing.empty() && std::any_of(agreeing.begin(), agreeing.end(), [&](const Comparison* c) {
        return c->form == differing.back()->form;
      });
  const bool by_length = differing.size() >= kShownMin && some_agree &&
                         differing.size() * kOneIn >= differing.size() + agreeing.size();
  // It served more than the index knew of: its cache has blocks that it announced under names that
  // are not ours.
  const bool has_more =
      more.size() >= kConfirmedMin && more.size() * kOneIn >= e_.comparisons.size();
  // Or it broke a promise, and what it computed anew then did not come into the index. An index
  // that is late, or an engine that lost its cache, would have it there in the end.
  const bool is_not_restored = TellingOf(parted) >= kConfirmedMin;
  const bool by_blocks = parted.size() > kConfirmedMin && parted.size() * 4 >= settled &&
                         (has_more || is_not_restored);
  if (!by_length && !by_blocks) return;
  if (by_length && DiffersByTrait(differing, agreeing, evidence)) return;
  if (by_blocks) {
    if (has_more) {
      evidence.push_back("it served more than the index has in " +
                         Share(more.size(), e_.comparisons.size(), "requests"));
    }
    std::set<uint64_t> of_parted;
    for (const Check* check : parted) of_parted.insert(check->decision);
    Comparisons wrong, right;
    for (const Comparison& c : e_.comparisons)
      (of_parted.contains(c.decision) || ServedMore(c) || ServedLess(c) ? wrong : right)
          .push_back(&c);
    if (DiffersByTrait(wrong, right, evidence)) return;
  }
  evidence.push_back(TokensText());
  Decisions decisions = DecisionsOf(parted);
  for (const Comparison* c : differing) decisions.push_back(c->decision);
  Add(Cause::kPromptDiffers, by_length ? 0.85 : 0.75, std::move(evidence), std::move(decisions));
}

// Promises are broken of requests that have something in common, and kept of the others. Runs ahead
// of `Restarted`, which would take the same broken promises for lost blocks.
bool Diagnostician::BrokenByTrait() {
  Comparisons broken, kept;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served.has_value() || Promised(c) < 2 * c.block_size) continue;
    (ServedLess(c) ? broken : kept).push_back(&c);
  }
  if (broken.size() < kShownMin) return false;
  const Comparison& last = *broken.back();
  return DiffersByTrait(broken, kept,
                        {"the engine served less than predicted in " +
                             Share(broken.size(), broken.size() + kept.size(), "requests"),
                         "the last one was served up to " +
                             TokenRange(*last.served / last.block_size, last.block_size) +
                             " of decision " + Number(last.decision) + ", which then differs"});
}

}  // namespace kvatlas
