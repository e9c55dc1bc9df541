// The book-keeping of choices. A choice counts in two sums at once, its worker's and its cell's,
// and every change goes through `Add`, `Subtract` or `LeavePrefill`, which keep these invariants:
// * `OfCell::sum` is the sum of its workers' `sum`, but for `ended`, which is kept per worker
//   alone.
// * `OfWorker::ids` are the choices with `prefilling` at the worker, oldest first.
// * `running` of worker, cell and all counts the choices with `running_since`.
// * A cell is in `to_cell_` as long as it has a request or a running choice (`ForgetIfIdle`).
// Life of a choice: prefilling → (with `end_follows`) running → gone; or prefilling → gone. One
// with a decoder counts there until `Release`.

#include "frontend/router/in_flight.h"

#include <algorithm>
#include <chrono>

namespace kvatlas {
namespace {

uint64_t RequestsOf(const Load& load) {
  return uint64_t{load.running_requests} + load.waiting_requests;
}

}  // namespace

std::optional<Load> LoadNow(std::optional<Load> load, const InFlight& in_flight) {
  if (load.has_value()) load->running_requests -= std::min(load->running_requests, in_flight.ended);
  return load;
}

// Makes room, counts the choice at its worker, and as a request at its decoder, and files it by
// age.
void InFlightChoices::Choose(uint64_t id, NewChoice choice, Time now) {
  // Released choices at the old end cost nothing but their place: drop them as they are met.
  // Requests that run on are ended by their callers and count in no bound.
  for (; !by_age_.empty(); by_age_.pop_front()) {
    const auto oldest = choices_.find(by_age_.front().second);
    if (oldest == choices_.end()) continue;
    if (size() < choices_max_) break;
    if (!oldest->second.running_since.has_value()) Release(oldest->first);
  }
  const CellWorker worker(std::move(choice.cell), std::move(choice.worker));
  Add(worker, choice.blocks);
  OfWorker& of_worker = *Find(worker.first, worker.second);
  of_worker.ids.push_back(id);
  // The load that the worker was chosen by is what a later rise is compared with.
  if (!of_worker.requests.has_value() && choice.load.has_value())
    of_worker.requests = RequestsOf(*choice.load);
  if (choice.decode.has_value()) {
    choice.end_follows = false;  // what runs on is at the worker that decodes
    Add(*choice.decode, 0);
  }
  choices_[id] = {.prefill = worker,
                  .decode = std::move(choice.decode),
                  .blocks = choice.blocks,
                  .missing_position = choice.missing_position,
                  .missing_block = choice.missing_block,
                  .made = now,
                  .end_follows = choice.end_follows};
  by_age_.emplace_back(now, id);
}

// Null: nothing is in flight to the worker.
const InFlightChoices::OfWorker* InFlightChoices::Find(const std::string& cell,
                                                       const HolderId& worker) const {
  const auto of_cell = to_cell_.find(cell);
  if (of_cell == to_cell_.end()) return nullptr;
  const auto found = of_cell->second.workers.find(worker);
  return found == of_cell->second.workers.end() ? nullptr : &found->second;
}

void InFlightChoices::Add(const CellWorker& worker, uint64_t blocks) {
  OfCell& cell = to_cell_[worker.first];
  // Workers without a choice are kept for what their load still counts; some may never be heard of
  // again.
  if (cell.workers.size() >= kIdleWorkersMax) {
    absl::erase_if(cell.workers, [](const auto& of) {
      return of.second.sum.requests == 0 && of.second.running == 0;
    });
  }
  for (InFlight* to : {&cell.sum, &cell.workers[worker.second].sum}) {
    to->blocks += blocks;
    to->requests += 1;
  }
}

// REQUIRES: so much was added before; the sums are unsigned.
void InFlightChoices::Subtract(const CellWorker& worker, uint64_t blocks, uint32_t requests) {
  OfCell& cell = to_cell_.at(worker.first);
  for (InFlight* from : {&cell.sum, &cell.workers.at(worker.second).sum}) {
    from->blocks -= blocks;
    from->requests -= requests;
  }
}

// Must follow every `Subtract`. It may erase the worker and the cell: references into them are dead
// afterwards.
void InFlightChoices::ForgetIfIdle(const CellWorker& worker) {
  const auto cell = to_cell_.find(worker.first);
  if (cell == to_cell_.end()) return;
  const auto at = cell->second.workers.find(worker.second);
  if (at != cell->second.workers.end() && at->second.sum == InFlight() && at->second.running == 0)
    cell->second.workers.erase(at);
  if (cell->second.sum.requests == 0 && cell->second.running == 0) to_cell_.erase(cell);
}

// The choice stops counting its blocks at the prefiller. `how` says why, and what remains:
//   * kTold: the worker has it. Its load will rise by one, which must not release another choice
//     too (`accepted`).
//   * kShownByLoad: the load has risen by it and counts the request already.
//   * kOver: the request is over; `Release` forgets the choice itself.
// With `end_follows` the choice runs on as a request. It counts in `sum.requests` until the load
// shows it; one that the load shows already leaves the sum at once. `running_since` is the number
// of the load since which it is not shown; one less marks it as shown, so that `EndRunning` can
// tell.
bool InFlightChoices::LeavePrefill(uint64_t id, Left how) {
  const auto found = choices_.find(id);
  if (found == choices_.end() || !found->second.prefilling) return false;
  Choice& choice = found->second;
  choice.prefilling = false;
  OfCell& cell = to_cell_.at(choice.prefill.first);
  OfWorker& of_worker = cell.workers.at(choice.prefill.second);
  of_worker.ids.erase(std::find(of_worker.ids.begin(), of_worker.ids.end(), id));
  if (how == Left::kTold) ++of_worker.accepted;
  const bool runs_on = choice.end_follows && how != Left::kOver;
  const bool in_load = how == Left::kShownByLoad;
  if (runs_on) {
    choice.running_since = of_worker.loads_seen - (in_load ? 1 : 0);
    of_worker.since_load += in_load ? 0 : 1;
    ++of_worker.running;
    ++cell.running;
    ++running_;
  }
  Subtract(choice.prefill, choice.blocks, /*requests=*/runs_on && !in_load ? 0 : 1);
  ForgetIfIdle(choice.prefill);
  if (how != Left::kOver && !choice.goes_on()) choices_.erase(found);
  return true;
}

// The end of a running request. If no load was seen since it began to run, it still counts in the
// sum and is subtracted. Otherwise the worker's last load counts it, and will until the next one:
// `ended` takes it off (`LoadNow`).
void InFlightChoices::EndRunning(const Choice& choice) {
  OfCell& cell = to_cell_.at(choice.prefill.first);
  OfWorker& of_worker = cell.workers.at(choice.prefill.second);
  --of_worker.running;
  --cell.running;
  --running_;
  if (*choice.running_since == of_worker.loads_seen) {
    --of_worker.since_load;
    Subtract(choice.prefill, 0);
  } else {
    ++of_worker.sum.ended;
  }
  ForgetIfIdle(choice.prefill);
}

bool InFlightChoices::ReleasePrefill(uint64_t id) { return LeavePrefill(id, Left::kTold); }

// `kOver` keeps the choice in the map, so that what it still counts (running, decoder) can be taken
// off here. It is moved out before the erasure, since the map's entry is needed no more.
bool InFlightChoices::Release(uint64_t id) {
  LeavePrefill(id, Left::kOver);
  const auto found = choices_.find(id);
  if (found == choices_.end()) return false;
  const Choice choice = std::move(found->second);
  choices_.erase(found);
  if (choice.running_since.has_value()) EndRunning(choice);
  if (choice.decode.has_value()) {
    Subtract(*choice.decode, 0);
    ForgetIfIdle(*choice.decode);
  }
  return true;
}

std::optional<InFlightChoices::CellWorker> InFlightChoices::WorkerOf(uint64_t id) const {
  const auto found = choices_.find(id);
  if (found == choices_.end()) return std::nullopt;
  return found->second.prefill;
}

std::optional<InFlightChoices::CellWorker> InFlightChoices::DestinationOf(uint64_t id) const {
  const auto found = choices_.find(id);
  if (found == choices_.end()) return std::nullopt;
  return found->second.decode.has_value() ? found->second.decode : found->second.prefill;
}

// `by_age_` is in the order of `made`, so this looks at the expired ones alone. A choice whose end
// follows is only taken as prefilled: it counts as a request until its caller ends it.
size_t InFlightChoices::Expire(Time now) {
  size_t expired = 0;
  while (!by_age_.empty() && by_age_.front().first + ttl_ <= now) {
    const uint64_t id = by_age_.front().second;
    const auto found = choices_.find(id);
    const bool end_follows = found != choices_.end() && found->second.end_follows;
    expired += (end_follows ? ReleasePrefill(id) : Release(id)) ? 1 : 0;
    by_age_.pop_front();
  }
  return expired;
}

// Two ways in which an answer shows choices, in this order: blocks that the worker now holds tell
// which choice it is; a risen load only tells how many. The worker is looked up again in between,
// since the first may have forgotten it.
size_t InFlightChoices::Saw(const std::string& cell, const WorkerFound& found,
                            std::span<const SequenceHash> sequence, Time now) {
  OfWorker* const worker = Find(cell, found.worker);
  if (worker == nullptr) return 0;
  const size_t held = ReleaseHeld(worker, found, sequence);
  return held + ReleaseRisen(cell, found, now);
}

// Releases choices whose first missing block the worker now holds. Equal hashes at a position mean
// equal prompts up to there, so one comparison tells. The ids are gathered first because
// `ReleasePrefill` erases from `ids`.
size_t InFlightChoices::ReleaseHeld(OfWorker* of_worker, const WorkerFound& found,
                                    std::span<const SequenceHash> sequence) {
  std::vector<uint64_t> held;
  for (uint64_t id : of_worker->ids) {
    const Choice& choice = choices_.at(id);
    const Position at = choice.missing_position;
    if (choice.missing_block.has_value() && at < found.blocks && at < sequence.size() &&
        sequence[at] == *choice.missing_block)
      held.push_back(id);
  }
  for (uint64_t id : held) ReleasePrefill(id);
  return held.size();
}

// The worker reports its load. An unchanged number of requests says nothing: it may be the same
// report again. Another one is newer and counts all that runs there:
//   1. Running requests that were counted beside the older load are in this one: they leave the
//      sum; `ended` is cleared.
//   2. A rise is first explained by requests whose acceptance was reported (`accepted`).
//   3. The rest of the rise releases the oldest choices made before the load was heard; later ones
//      cannot be in it.
size_t InFlightChoices::ReleaseRisen(const std::string& cell, const WorkerFound& found, Time now) {
  OfWorker* const worker = Find(cell, found.worker);
  if (worker == nullptr || !found.load.has_value()) return 0;
  OfWorker& of_worker = *worker;
  const uint64_t requests = RequestsOf(*found.load);
  const uint64_t before = std::exchange(of_worker.requests, requests).value_or(requests);
  if (requests == before) return 0;
  // A new load: it is later than the one before, and counts all that runs there.
  ++of_worker.loads_seen;
  Subtract({cell, found.worker}, 0, std::exchange(of_worker.since_load, 0));
  of_worker.sum.ended = 0;
  uint64_t risen = requests - std::min(before, requests);
  const uint64_t told = std::min(risen, of_worker.accepted);
  of_worker.accepted -= told;
  risen -= told;
  // When the leaf heard the load.
  const Time heard = now - std::chrono::milliseconds(found.age_ms);
  std::vector<uint64_t> shown;
  for (uint64_t id : of_worker.ids) {
    if (shown.size() == risen || choices_.at(id).made >= heard) break;
    shown.push_back(id);
  }
  for (uint64_t id : shown) LeavePrefill(id, Left::kShownByLoad);
  ForgetIfIdle({cell, found.worker});
  return shown.size();
}

InFlight InFlightChoices::To(const std::string& cell, const HolderId& worker) const {
  const OfWorker* const found = Find(cell, worker);
  return found == nullptr ? InFlight{} : found->sum;
}

// One look-up of the cell, then one per worker; an empty list costs the caller nothing to store.
std::vector<InFlight> InFlightChoices::To(const std::string& cell,
                                          std::span<const WorkerFound> workers) const {
  const auto of_cell = to_cell_.find(cell);
  if (of_cell == to_cell_.end()) return {};
  std::vector<InFlight> all(workers.size());
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto found = of_cell->second.workers.find(workers[i].worker);
    if (found != of_cell->second.workers.end()) all[i] = found->second.sum;
  }
  return all;
}

InFlight InFlightChoices::To(const std::string& cell) const {
  const auto found = to_cell_.find(cell);
  return found == to_cell_.end() ? InFlight{} : found->second.sum;
}

}  // namespace kvatlas
