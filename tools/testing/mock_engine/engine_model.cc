#include "tools/testing/mock_engine/engine_model.h"

#include <algorithm>
#include <cmath>

namespace kvatlas {

EngineModel::EngineModel(const EngineOptions& options)
    : options_(options),
      cache_({.capacity_blocks = options.capacity_blocks,
              .block_size = options.block_size,
              .hybrid = options.hybrid,
              .chunk_tokens = options.prefill_step_tokens}) {}

uint32_t EngineModel::Reusable(std::span<const SequenceHash> sequence,
                               uint32_t prompt_tokens) const {
  return cache_.Reusable(sequence, ReuseLimit(sequence.size(), prompt_tokens, options_.block_size));
}

EngineArrival EngineModel::Submit(double time_ms, EngineRequest request, EngineStep* step) {
  if (std::isfinite(time_ms)) AdvanceTo(time_ms, step);
  EngineArrival arrival{.too_long = cache_.Needs(request.blocks.size()) > options_.capacity_blocks,
                        .cached_blocks = Reusable(request.blocks, request.prompt_tokens),
                        .held_blocks = cache_.Held(request.blocks)};
  if (arrival.too_long) return arrival;
  const uint64_t to_prefill = request.blocks.size() - arrival.cached_blocks;
  waiting_prefill_blocks_ += to_prefill;
  waiting_.push_back(
      {.arrival_ms = now_ms_, .to_prefill = to_prefill, .request = std::move(request)});
  AdmitWaiting(step);
  return arrival;
}

void EngineModel::AdvanceTo(double time_ms, EngineStep* step) {
  while (!running_.empty() && running_.begin()->first.first <= time_ms) {
    now_ms_ = std::max(now_ms_, running_.begin()->first.first);
    Finish();
    AdmitWaiting(step);
  }
  if (std::isfinite(time_ms)) now_ms_ = std::max(now_ms_, time_ms);
  while (!prefills_.empty() && prefills_.front().end_ms <= now_ms_) prefills_.pop_front();
}

std::optional<double> EngineModel::NextEventMs() const {
  if (running_.empty()) return std::nullopt;  // then no request waits and nothing is prefilled
  double next = running_.begin()->first.first;
  if (!prefills_.empty()) {
    const Prefill& first = prefills_.front();
    const double steps = std::floor(std::max(0.0, now_ms_ - first.start_ms) / first.step_ms) + 1;
    // A step's end is at least a little later than now, whatever rounding does.
    const double step_end =
        std::max(first.start_ms + steps * first.step_ms, std::nextafter(now_ms_, kForever));
    next = std::min({next, step_end, first.end_ms});
  }
  return next;
}

Load EngineModel::CurrentLoad() const {
  Load load;
  load.running_requests = static_cast<uint32_t>(running_.size());
  load.waiting_requests = static_cast<uint32_t>(waiting_.size());
  load.used_blocks = cache_.pool().in_use();
  load.free_blocks = cache_.pool().capacity() - cache_.pool().in_use();
  load.waiting_prefill_blocks = waiting_prefill_blocks_;
  for (const Prefill& prefill : prefills_) load.waiting_prefill_blocks += BlocksLeft(prefill);
  load.tokens_per_s = static_cast<double>(running_.size() - prefills_.size()) *
                      (options_.decode_ms_per_token > 0 ? 1000 / options_.decode_ms_per_token : 0);
  return load;
}

void EngineModel::AdmitWaiting(EngineStep* step) {
  while (!waiting_.empty() && cache_.Fits(waiting_.front().request.blocks)) {
    const Waiting waiting = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_prefill_blocks_ -= waiting.to_prefill;
    Admit(waiting, step);
  }
}

void EngineModel::Admit(const Waiting& waiting, EngineStep* step) {
  const EngineRequest& request = waiting.request;
  const uint32_t cached = Reusable(request.blocks, request.prompt_tokens);
  EngineCache::Holding holding = cache_.Take(request.blocks, cached, &step->events);
  // An engine computes at least the last token of a prompt, to have something to decode from.
  const double tokens =
      std::max(1.0, double(request.prompt_tokens) - double(cached) * options_.block_size);
  const double start_ms = std::max(now_ms_, prefill_free_ms_);
  const double ms_per_token = 1000 / options_.prefill_tokens_per_s;
  prefill_free_ms_ = start_ms + tokens * ms_per_token;
  prefills_.push_back({.start_ms = start_ms,
                       .end_ms = prefill_free_ms_,
                       .step_ms = options_.prefill_step_tokens * ms_per_token,
                       .blocks = static_cast<uint32_t>(request.blocks.size() - cached)});
  const double finish_ms =
      prefill_free_ms_ + double(request.output_tokens) * options_.decode_ms_per_token;
  running_.emplace(std::pair(finish_ms, ++admissions_), std::move(holding));
  step->admitted.push_back({.id = request.id,
                            .time_ms = now_ms_,
                            .cached_blocks = cached,
                            .ttft_ms = prefill_free_ms_ - waiting.arrival_ms,
                            .finish_ms = finish_ms});
}

void EngineModel::Finish() {
  cache_.Free(running_.begin()->second);
  running_.erase(running_.begin());
  while (!prefills_.empty() && prefills_.front().end_ms <= now_ms_) prefills_.pop_front();
}

uint64_t EngineModel::BlocksLeft(const Prefill& prefill) const {
  const double steps = std::floor(std::max(0.0, now_ms_ - prefill.start_ms) / prefill.step_ms);
  const uint64_t done =
      static_cast<uint64_t>(steps * options_.prefill_step_tokens / options_.block_size);
  return prefill.blocks - std::min<uint64_t>(prefill.blocks, done);
}

}  // namespace kvatlas
