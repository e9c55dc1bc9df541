#include "frontend/route/in_flight.h"

#include <algorithm>
#include <chrono>

namespace kvatlas {
namespace {

uint64_t RequestsOf(const Load& load) {
  return uint64_t{load.running_requests} + load.waiting_requests;
}

}  // namespace

void InFlightChoices::Choose(uint64_t id, NewChoice choice, Time now) {
  // Released choices at the old end cost nothing but their place: drop them as they are met.
  while (!by_age_.empty() &&
         (choices_.size() >= choices_max_ || !choices_.contains(by_age_.front().second))) {
    Release(by_age_.front().second);
    by_age_.pop_front();
  }
  const CellWorker worker(std::move(choice.cell), std::move(choice.worker));
  Add(worker, choice.blocks);
  OfWorker& of_worker = *Find(worker.first, worker.second);
  of_worker.ids.push_back(id);
  if (!of_worker.requests.has_value() && choice.load.has_value())
    of_worker.requests = RequestsOf(*choice.load);
  if (choice.decode.has_value()) Add(*choice.decode, 0);
  choices_[id] = {.prefill = worker,
                  .decode = std::move(choice.decode),
                  .blocks = choice.blocks,
                  .missing_position = choice.missing_position,
                  .missing_block = choice.missing_block,
                  .made = now};
  by_age_.emplace_back(now, id);
}

const InFlightChoices::OfWorker* InFlightChoices::Find(const std::string& cell,
                                                       const HolderId& worker) const {
  const auto of_cell = to_cell_.find(cell);
  if (of_cell == to_cell_.end()) return nullptr;
  const auto found = of_cell->second.workers.find(worker);
  return found == of_cell->second.workers.end() ? nullptr : &found->second;
}

void InFlightChoices::Add(const CellWorker& worker, uint64_t blocks) {
  OfCell& cell = to_cell_[worker.first];
  for (InFlight* to : {&cell.sum, &cell.workers[worker.second].sum}) {
    to->blocks += blocks;
    to->requests += 1;
  }
}

void InFlightChoices::Subtract(const CellWorker& worker, uint64_t blocks) {
  const auto cell = to_cell_.find(worker.first);
  const auto at = cell->second.workers.find(worker.second);
  for (InFlight* from : {&cell->second.sum, &at->second.sum}) {
    from->blocks -= blocks;
    from->requests -= 1;
  }
  if (at->second.sum.requests == 0) cell->second.workers.erase(at);
  if (cell->second.sum.requests == 0) to_cell_.erase(cell);
}

bool InFlightChoices::ReleaseAtWorker(uint64_t id, bool told) {
  const auto found = choices_.find(id);
  if (found == choices_.end() || !found->second.prefilling) return false;
  Choice& choice = found->second;
  choice.prefilling = false;
  OfWorker& of_worker = *Find(choice.prefill.first, choice.prefill.second);
  of_worker.ids.erase(std::find(of_worker.ids.begin(), of_worker.ids.end(), id));
  if (told) ++of_worker.accepted;
  Subtract(choice.prefill, choice.blocks);
  return true;
}

bool InFlightChoices::ReleasePrefill(uint64_t id) {
  const bool released = ReleaseAtWorker(id, /*told=*/true);
  const auto found = choices_.find(id);
  if (found != choices_.end() && !found->second.decode.has_value()) choices_.erase(found);
  return released;
}

bool InFlightChoices::Release(uint64_t id) {
  ReleaseAtWorker(id, /*told=*/false);
  const auto found = choices_.find(id);
  if (found == choices_.end()) return false;
  if (found->second.decode.has_value()) Subtract(*found->second.decode, 0);
  choices_.erase(found);
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

size_t InFlightChoices::Expire(Time now) {
  size_t expired = 0;
  while (!by_age_.empty() && by_age_.front().first + ttl_ <= now) {
    expired += Release(by_age_.front().second) ? 1 : 0;
    by_age_.pop_front();
  }
  return expired;
}

size_t InFlightChoices::Saw(const std::string& cell, const WorkerFound& found,
                            std::span<const SequenceHash> sequence, Time now) {
  OfWorker* const worker = Find(cell, found.worker);
  if (worker == nullptr) return 0;
  const size_t held = ReleaseHeld(worker, found, sequence);
  return held + ReleaseRisen(cell, found, now);
}

// Equal hashes at a place mean equal prompts up to there, so one comparison tells.
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

size_t InFlightChoices::ReleaseRisen(const std::string& cell, const WorkerFound& found, Time now) {
  OfWorker* const worker = Find(cell, found.worker);
  if (worker == nullptr || !found.load.has_value()) return 0;
  OfWorker& of_worker = *worker;
  const uint64_t requests = RequestsOf(*found.load);
  const uint64_t before = std::exchange(of_worker.requests, requests).value_or(requests);
  uint64_t risen = requests - std::min(before, requests);
  const uint64_t told = std::min(risen, of_worker.accepted);
  of_worker.accepted -= told;
  risen -= told;
  const Time heard = now - std::chrono::milliseconds(found.age_ms);
  std::vector<uint64_t> shown;
  for (uint64_t id : of_worker.ids) {
    if (shown.size() == risen || choices_.at(id).made >= heard) break;
    shown.push_back(id);
  }
  for (uint64_t id : shown) {
    ReleaseAtWorker(id, /*told=*/false);
    const auto choice = choices_.find(id);
    if (!choice->second.decode.has_value()) choices_.erase(choice);
  }
  return shown.size();
}

InFlight InFlightChoices::To(const std::string& cell, const HolderId& worker) const {
  const OfWorker* const found = Find(cell, worker);
  return found == nullptr ? InFlight{} : found->sum;
}

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
