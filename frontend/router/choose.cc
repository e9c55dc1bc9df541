// `Chooser` is one call of `Choose`. Its constructor sums up how each cell stands; `Run` picks the
// rung (good cells, suspects, memory), a `Pool` of workers is built for it, and `Rank` pairs,
// scores and takes the best. Nothing here asks, locks or remembers, so the same cells and view give
// the same choice.

#include "frontend/router/choose.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "indexer/base/durations.h"

namespace kvatlas {
namespace {

// Workers to choose among.
struct Pool {
  std::vector<ChosenWorker> prefillers;  // those that decode too among them
  std::vector<ChosenWorker> decoders;
};

// `Standing` is ordered best first, so the minimum is the best.
Standing BestStanding(const std::vector<ChosenWorker>& workers) {
  Standing best = Standing::kUnavailable;
  for (const ChosenWorker& worker : workers) best = std::min(best, worker.standing);
  return best;
}

void LeaveTheBestStanding(std::vector<ChosenWorker>* workers) {
  const Standing best = BestStanding(*workers);
  std::erase_if(*workers, [&](const ChosenWorker& worker) { return worker.standing != best; });
}

// The role was read from the labels once, when the candidate was made.
Role RoleOf(const ChosenWorker& worker) { return worker.cell->traits[worker.worker].role; }

class Chooser {
 public:
  Chooser(const RouteRequest& request, const std::vector<CandidateCellPtr>& cells,
          const FleetView& view)
      : request_(request), cells_(cells), view_(view) {
    for (size_t i = 0; i < cells.size(); ++i) {
      standings_.push_back(StandingOf(request, view, *cells[i], view.cells[i]));
      const CellStanding& standing = standings_.back();
      // These counts are for the receipt and for the error of a route without a worker.
      choice_.not_allowed += standing.not_allowed;
      choice_.draining += standing.draining;
      choice_.overloaded += standing.overloaded;
      choice_.overloaded_decoders += standing.overloaded_decoders;
      choice_.least_excess = std::min(choice_.least_excess, standing.least_excess);
      decoder_answered_ = decoder_answered_ || standing.decodes == Standing::kGood;
      (standing.best() == Standing::kGood ? good_ : others_).push_back(i);
      suspect_has_room_ = suspect_has_room_ || standing.best() == Standing::kSuspect;
    }
  }

  // The rungs of the header's table, top down. `kNeedsMemory` is an intermediate answer: the caller
  // adds what is remembered to the view and calls again, so that routes with a good answer never
  // copy the memory.
  Choice Run() && {
    Verdict verdict = !good_.empty()           ? Rank(OfCells(good_))
                      : choice_.overloaded > 0 ? Verdict::kOverloaded
                      : !view_.with_memory     ? Verdict::kNeedsMemory
                      : OnlySuspectsRemain()   ? Rank(OfCells(others_))
                                               : Rank(OfMemory());
    // Workers that have already failed to take this very request are no remedy.
    if (verdict == Verdict::kOverloaded && suspect_has_room_) verdict = Rank(OfCells(others_));
    choice_.verdict = verdict;
    if (verdict == Verdict::kChosen) choice_.best_blocks = BestBlocks();
    return std::move(choice_);
  }

 private:
  // The most blocks that any allowed worker could have reused, whatever its load: statistics
  // compare it with what the chosen one reuses, to show what balancing costs.
  uint32_t BestBlocks() const {
    uint32_t best = choice_.overlap_blocks;
    for (const CandidateCellPtr& cell : cells_) {
      for (size_t i = 0; i < cell->traits.size(); ++i) {
        if (cell->traits[i].allowed && cell->traits[i].role != Role::kDecode)
          best = std::max(best, OverlapOf(request_, *cell, i));
      }
    }
    return best;
  }

  // The workers of `cells`, and the decoders of all cells: a decoder is useful wherever it is.
  Pool OfCells(const std::vector<size_t>& cells) const {
    Pool pool;
    for (size_t i = 0; i < cells_.size(); ++i) {
      const bool prefills = std::find(cells.begin(), cells.end(), i) != cells.end();
      Add(*cells_[i], view_.cells[i], prefills, /*decodes=*/true, &pool);
    }
    return pool;
  }

  // Remembered workers prefill; the cells that answered have no good prefiller, but their decoders
  // are current. Such a cell is remembered too, as it answered: its workers are counted already.
  Pool OfMemory() {
    Pool pool;
    for (size_t i = 0; i < view_.remembered.size(); ++i) {
      const CandidateCell& cell = *view_.remembered[i];
      Add(cell, view_.remembered_now[i], /*prefills=*/true, /*decodes=*/false, &pool);
      const bool answered = std::any_of(cells_.begin(), cells_.end(), [&](const auto& other) {
        return other->cell == cell.cell;
      });
      if (answered) continue;
      for (const CandidateCell::Traits& worker : cell.traits)
        choice_.not_allowed += !worker.allowed, choice_.draining += worker.draining;
    }
    for (size_t i : others_)
      Add(*cells_[i], view_.cells[i], /*prefills=*/false, /*decodes=*/true, &pool);
    return pool;
  }

  // Adds the allowed workers below their thresholds. A remembered load may be long over, so
  // thresholds do not apply to it.
  void Add(const CandidateCell& cell, const std::vector<WorkerNow>& now, bool prefills,
           bool decodes, Pool* pool) const {
    if (!prefills && !cell.has(Role::kDecode)) return;
    for (size_t i = 0; i < cell.traits.size(); ++i) {
      const auto& [role, allowed, draining, reading] = cell.traits[i];
      const WorkerNow& worker = NowOf(now, i);
      const WorkerFound& found = cell.answer->workers[i];
      if (!allowed || !(role == Role::kDecode ? decodes : prefills)) continue;
      if (!cell.remembered &&
          IsOverloaded(*request_.overload, found.load, AllInFlight(cell, i, worker)))
        continue;
      (role == Role::kDecode ? pool->decoders : pool->prefillers)
          .push_back({.cell = &cell,
                      .worker = i,
                      .standing = StandingOf(request_, view_, cell.cell, found.worker),
                      .input = CostInputOf(request_, view_, cell, i, worker)});
    }
  }

  // Some worker that answered is suspected, and none that is remembered stands better than the best
  // of them.
  bool OnlySuspectsRemain() const {
    if (others_.empty()) return false;
    Standing best = Standing::kUnavailable;
    for (size_t i : others_) best = std::min(best, standings_[i].best());
    for (const CandidateCellPtr& cell : view_.remembered) {
      for (size_t i = 0; i < cell->traits.size(); ++i) {
        const auto& [role, allowed, draining, reading] = cell->traits[i];
        const HolderId& worker = cell->answer->workers[i].worker;
        if (allowed && role != Role::kDecode &&
            StandingOf(request_, view_, cell->cell, worker) < best)
          return false;
      }
    }
    return true;
  }

  // Steps: decoders are found for pools with workers that only prefill; each such worker gets the
  // cost of the way to its best decoder (`PairWithDecoders`); only prefillers of the best standing
  // stay; the cheapest is taken (`TakeBest`).
  Verdict Rank(Pool pool) {
    const bool split = std::any_of(pool.prefillers.begin(), pool.prefillers.end(),
                                   [](const auto& w) { return RoleOf(w) == Role::kPrefill; });
    // Decoders that answered that they have no room, or have none since, are not chosen for what
    // they once said.
    const bool over =
        choice_.overloaded_decoders > 0 || (decoder_answered_ && pool.decoders.empty());
    if (split) {
      if (!over && BestStanding(pool.decoders) != Standing::kGood) {
        if (!view_.with_memory) return Verdict::kNeedsMemory;
        for (size_t i = 0; i < view_.remembered.size(); ++i)
          Add(*view_.remembered[i], view_.remembered_now[i], /*prefills=*/false,
              /*decodes=*/true, &pool);
      }
      PairWithDecoders(&pool);
    }
    LeaveTheBestStanding(&pool.prefillers);
    choice_.considered = static_cast<uint32_t>(pool.prefillers.size());
    if (pool.prefillers.empty()) return split && over ? Verdict::kOverloaded : Verdict::kNone;
    TakeBest(std::move(pool));
    return Verdict::kChosen;
  }

  // Every worker that only prefills gets the way to the best decoder into its cost, or is left out
  // when there is none.
  // O(cells · decoders): the transfer cost depends on the prefiller only through its cell, so it is
  // computed once a cell.
  void PairWithDecoders(Pool* pool) const {
    LeaveTheBestStanding(&pool->decoders);
    std::map<std::string, double> transfer;  // by the cell that prefills
    for (ChosenWorker& worker : pool->prefillers) {
      if (RoleOf(worker) != Role::kPrefill || pool->decoders.empty()) continue;
      const auto [cost, is_new] = transfer.try_emplace(worker.cell->cell);
      if (is_new) cost->second = DecodeCost(BestDecoder(*pool, worker), worker);
      worker.input.transfer = cost->second;
    }
    if (!pool->decoders.empty()) return;
    std::erase_if(pool->prefillers,
                  [](const ChosenWorker& worker) { return RoleOf(worker) == Role::kPrefill; });
  }

  // Cells stand for network distance: two workers of one cell are near.
  double DecodeCost(const ChosenWorker& decoder, const ChosenWorker& prefiller) const {
    return DecodeElsewhereCost(decoder.input, /*far=*/decoder.cell->cell != prefiller.cell->cell,
                               request_.policy->weights());
  }

  // The cheapest decoder; equals by cell and name, so that the choice does not depend on the order
  // of answers. REQUIRES: `pool.decoders` is not empty.
  const ChosenWorker& BestDecoder(const Pool& pool, const ChosenWorker& prefiller) const {
    const ChosenWorker* best = nullptr;
    double least = 0;
    for (const ChosenWorker& decoder : pool.decoders) {
      const double cost = DecodeCost(decoder, prefiller);
      if (best != nullptr && std::tie(least, best->cell->cell, best->id()) <=
                                 std::tie(cost, decoder.cell->cell, decoder.id()))
        continue;
      best = &decoder;
      least = cost;
    }
    return *best;
  }

  // The key of the tie-break: the first block that no candidate has. Requests that begin alike, and
  // come through several frontends before any of them could hear of the others, thus meet at one
  // worker.
  uint64_t MissingKey(const std::vector<ChosenWorker>& workers) const {
    const std::span<const SequenceHash> sequence = request_.prompt->sequence();
    size_t had = 0;
    for (const ChosenWorker& worker : workers)
      // Blocks of another reading are positions in another sequence.
      if (worker.reading() == 0) had = std::max<size_t>(had, worker.input.overlap_blocks);
    return PromptKey(sequence.first(std::min(sequence.size(), had + 1)));
  }

  // Scores all, sorts the best `kReceiptCandidatesMax` for the receipt, and takes the first. The
  // policy's cost decides, then the draw, then cell and name.
  void TakeBest(Pool pool) {
    const CostWeights& weights = request_.policy->weights();
    const uint64_t prompt_key = MissingKey(pool.prefillers);
    std::vector<Scored> scored;
    scored.reserve(pool.prefillers.size());
    for (size_t i = 0; i < pool.prefillers.size(); ++i) {
      const ChosenWorker& worker = pool.prefillers[i];
      // Equal remembered workers take turns: the one longest without a request is first, and a hash
      // of names would always pick the same one.
      const uint64_t draw = worker.cell->remembered ? worker.input.turn
                                                    : TieBreak(worker.cell->cell, worker.id(),
                                                               weights.seed, prompt_key);
      scored.push_back(Score(i, request_.policy->CostOf(worker.input), draw, weights));
    }
    SortBest(kReceiptCandidatesMax, &scored, [&](size_t a, size_t b) {
      const ChosenWorker& x = pool.prefillers[a];
      const ChosenWorker& y = pool.prefillers[b];
      return std::tie(x.cell->cell, x.id()) < std::tie(y.cell->cell, y.id());
    });
    for (const Scored& best : scored) choice_.ranked.push_back(ToReceipt(pool, best));
    choice_.overlap_blocks = choice_.ranked.front().overlap_blocks;
    choice_.worker = std::move(pool.prefillers[scored.front().candidate]);
    choice_.fallback = choice_.worker->cell->fallback;
    if (RoleOf(*choice_.worker) == Role::kPrefill)
      choice_.decoder = BestDecoder(pool, *choice_.worker);
  }

  // The receipt says what may be promised (`OverlapOf`) and shows pending blocks apart: the cost's
  // input has both in one figure.
  ReceiptCandidate ToReceipt(const Pool& pool, const Scored& scored) const {
    const ChosenWorker& worker = pool.prefillers[scored.candidate];
    const WorkerFound& found = worker.cell->answer->workers[worker.worker];
    ReceiptCandidate row{.worker = found.worker,
                         .cell = worker.cell->cell,
                         .overlap_blocks = OverlapOf(request_, *worker.cell, worker.worker),
                         .trust = found.trust,
                         .age_ms = found.age_ms,
                         .cost = scored.cost,
                         .fetched = worker.input.fetched,
                         .store_blocks = worker.cell->remembered ? 0 : found.stored,
                         .pending_blocks = PendingOf(request_, *worker.cell, worker.worker),
                         .prefill_only = RoleOf(worker) == Role::kPrefill,
                         .reading = request_.NameOf(worker.reading())};
    if (worker.cell->remembered) {
      row.trust = Trust::kStale;
      row.age_ms = Milliseconds(view_.at - worker.cell->seen);
    }
    return row;
  }

  const RouteRequest& request_;
  const std::vector<CandidateCellPtr>& cells_;
  const FleetView& view_;
  std::vector<CellStanding> standings_;
  std::vector<size_t> good_, others_;  // cells with a worker that stands well, and without
  bool decoder_answered_ = false;
  bool suspect_has_room_ = false;
  Choice choice_;
};

}  // namespace

Choice Choose(const RouteRequest& request, const std::vector<CandidateCellPtr>& cells,
              const FleetView& view) {
  return Chooser(request, cells, view).Run();
}

}  // namespace kvatlas
