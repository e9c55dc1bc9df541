// Another worker rank, or another worker, serves what this one was sent. Three signs, in this
// order: the report says so; finished prompts turn up there, where they were not sent; the cached
// tokens fit what the index promised for another rank.

#include <string>

#include "frontend/accuracy/diagnosis.h"
#include "frontend/accuracy/diagnostician.h"
#include "frontend/accuracy/evidence_text.h"
#include "frontend/accuracy/patterns.h"

namespace kvatlas {

// The last sign, fitting another rank's prediction, is the weakest: a fit at 0 tokens may be a
// plain miss, so some of them (`telling`) must fit more than nothing.
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
  // Six or seven in ten: a rank is often the right one by chance.
  const std::string rank = Number(e_.worker.rank);
  if (by_rank.size() >= kShownMin && by_rank.size() * 10 >= said.size() * 6) {
    Add(Cause::kRankMixedUp, 0.97,
        {Share(by_rank.size(), said.size(), "requests") + " for rank " + rank +
         " were served by rank " + Number(by_rank.back()->served_by.rank)},
        DecisionsOf(by_rank));
  } else if (at_rank.size() >= kConfirmedMin &&
             at_rank.size() * 10 >= (at_rank.size() + whole.size()) * 6) {
    Add(Cause::kRankMixedUp, 0.92,
        {Share(at_rank.size(), at_rank.size() + whole.size(), "prompts") + " sent to rank " + rank +
         " turned up at rank " + Number(at_rank.back()->turned_up->rank) +
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

// Prompts must turn up at one and the same other worker: a wrong map from names to addresses leads
// to one place.
void Diagnostician::WorkerMixedUp() {
  Comparisons by_worker, said;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served_by.name.empty()) said.push_back(&c);
    if (c.other_worker_served) by_worker.push_back(&c);
  }
  if (by_worker.size() >= kShownMin && by_worker.size() * 10 >= said.size() * 8) {
    return Add(Cause::kWorkerMixedUp, 0.9,
               {Share(by_worker.size(), said.size(), "requests") + " were served by " +
                by_worker.back()->served_by.name},
               DecisionsOf(by_worker));
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

}  // namespace kvatlas
