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
  OfWorker& of_worker = to_worker_[worker];
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

void InFlightChoices::Add(const CellWorker& worker, uint64_t blocks) {
  for (InFlight* to : {&to_worker_[worker].sum, &to_cell_[worker.first]}) {
    to->blocks += blocks;
    to->requests += 1;
  }
}

void InFlightChoices::Subtract(const CellWorker& worker, uint64_t blocks) {
  const auto at = to_worker_.find(worker);
  const auto cell = to_cell_.find(worker.first);
  for (InFlight* from : {&at->second.sum, &cell->second}) {
    from->blocks -= blocks;
    from->requests -= 1;
  }
  if (at->second.sum.requests == 0) to_worker_.erase(at);
  if (cell->second.requests == 0) to_cell_.erase(cell);
}

bool InFlightChoices::ReleaseAtWorker(uint64_t id, bool told) {
  const auto found = choices_.find(id);
  if (found == choices_.end() || !found->second.prefilling) return false;
  Choice& choice = found->second;
  choice.prefilling = false;
  OfWorker& of_worker = to_worker_.at(choice.prefill);
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

std::optional<InFlightChoices::CellWorker> InFlightChoices::TakerOf(uint64_t id) const {
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
  const CellWorker worker(cell, found.worker);
  const auto at = to_worker_.find(worker);
  if (at == to_worker_.end()) return 0;
  const size_t held = ReleaseHeld(&at->second, found, sequence);
  return held + ReleaseRisen(worker, found, now);
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

size_t InFlightChoices::ReleaseRisen(const CellWorker& worker, const WorkerFound& found, Time now) {
  const auto at = to_worker_.find(worker);
  if (at == to_worker_.end() || !found.load.has_value()) return 0;
  OfWorker& of_worker = at->second;
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
  const auto found = to_worker_.find({cell, worker});
  return found == to_worker_.end() ? InFlight{} : found->second.sum;
}

InFlight InFlightChoices::To(const std::string& cell) const {
  const auto found = to_cell_.find(cell);
  return found == to_cell_.end() ? InFlight{} : found->second;
}

}  // namespace kvatlas
