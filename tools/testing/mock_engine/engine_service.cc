#include "tools/testing/mock_engine/engine_service.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "tools/testing/mock_engine/hybrid.h"
#include "tools/testing/mock_engine/mock_tokens.h"

namespace kvatlas {

namespace ev1 = engine::v1;

EngineService::EngineService(const EngineOptions& options, Publisher* publisher, bool say_tokens)
    : publisher_(publisher),
      say_tokens_(say_tokens),
      capacity_blocks_(options.capacity_blocks),
      model_(options) {
  MutexLock lock(&mutex_);
  if (!options.hybrid.plain()) publisher_->SetLayout(LayoutOf(options.hybrid, options.block_size));
  publisher_->SetLoad(model_.CurrentLoad());
  publisher_->Flush();
}

grpc::Status EngineService::Submit(grpc::ServerContext*, const ev1::SubmitRequest* request,
                                   ev1::StepResponse* response) {
  if (request->blocks().empty()) return {grpc::StatusCode::INVALID_ARGUMENT, "blocks is empty"};
  if (!std::isfinite(request->time_ms())) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "time_ms is not finite"};
  }
  EngineRequest submitted{.id = request->id(),
                          .blocks = {},
                          .prompt_tokens = request->prompt_tokens(),
                          .output_tokens = request->output_tokens()};
  submitted.blocks.reserve(request->blocks_size());
  for (uint64_t hash : request->blocks()) submitted.blocks.push_back(SequenceHash{hash});
  {
    MutexLock lock(&mutex_);
    EngineStep step;
    const EngineArrival arrival = model_.Submit(request->time_ms(), std::move(submitted), &step);
    Publish(step);
    response->set_too_long(arrival.too_long);
    response->set_cached_blocks(arrival.cached_blocks);
    response->set_held_blocks(arrival.held_blocks);
    response->set_cached_tokens(arrival.cached_blocks * model_.options().block_size);
    Describe(step, response);
  }
  response->set_acknowledged(Wait(request->wait_ack_ms()));
  return grpc::Status::OK;
}

grpc::Status EngineService::Advance(grpc::ServerContext*, const ev1::AdvanceRequest* request,
                                    ev1::StepResponse* response) {
  if (std::isnan(request->time_ms())) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "time_ms is not a number"};
  }
  {
    MutexLock lock(&mutex_);
    EngineStep step;
    model_.AdvanceTo(request->time_ms(), &step);
    Publish(step);
    Describe(step, response);
  }
  response->set_acknowledged(Wait(request->wait_ack_ms()));
  return grpc::Status::OK;
}

grpc::Status EngineService::WaitAcknowledged(grpc::ServerContext*,
                                             const ev1::WaitAcknowledgedRequest* request,
                                             ev1::WaitAcknowledgedResponse* response) {
  publisher_->Flush();
  response->set_acknowledged(
      publisher_->WaitAcknowledged(std::chrono::milliseconds(request->timeout_ms())));
  response->set_connected(Connected());
  return grpc::Status::OK;
}

grpc::Status EngineService::Contents(grpc::ServerContext*, const ev1::ContentsRequest*,
                                     ev1::ContentsResponse* response) {
  MutexLock lock(&mutex_);
  for (SequenceHash hash : model_.Contents()) response->add_blocks(Raw(hash));
  for (SequenceHash hash : model_.Contents(kMockSide)) response->add_side_blocks(Raw(hash));
  return grpc::Status::OK;
}

std::optional<uint32_t> EngineService::Serve(std::span<const TokenId> tokens,
                                             const std::string& cache_salt,
                                             uint32_t output_tokens) {
  MutexLock lock(&mutex_);
  const uint32_t block_size = model_.options().block_size;
  const uint64_t seed = BlockSeed({.lora_name = "", .cache_salt = cache_salt});
  EngineRequest request{
      .id = ++served_,
      .blocks = SequenceHashes(LocalHashes(tokens, {.block_size = block_size}, seed)),
      .prompt_tokens = static_cast<uint32_t>(tokens.size()),
      .output_tokens = output_tokens};
  if (request.blocks.empty()) return 0;
  if (say_tokens_) KeepContent(request.blocks, tokens, cache_salt);
  EngineStep step;
  const EngineArrival arrival = model_.Submit(model_.now_ms(), std::move(request), &step);
  model_.AdvanceTo(EngineModel::kForever, &step);
  Publish(step);
  if (arrival.too_long) return std::nullopt;
  return arrival.cached_blocks * block_size;
}

void EngineService::Publish(const EngineStep& step) {
  for (const Event& event : step.events) {
    if (say_tokens_) {
      PublishTokens(event);
    } else if (const auto* stored = std::get_if<Stored>(&event)) {
      if (stored->side != 0) {
        publisher_->StoredSideHashed(stored->side, stored->tier, stored->blocks);
      } else {
        publisher_->StoredHashed(stored->tier, stored->position, stored->parent, stored->blocks);
      }
    } else if (const auto* removed = std::get_if<Removed>(&event)) {
      if (removed->side != 0) {
        publisher_->RemovedSideHashed(removed->side, removed->tier, removed->blocks);
      } else {
        publisher_->RemovedHashed(removed->tier, removed->blocks);
      }
    }
  }
  publisher_->SetLoad(model_.CurrentLoad());
  publisher_->Flush();
}

void EngineService::KeepContent(const std::vector<SequenceHash>& blocks,
                                std::span<const TokenId> tokens, const std::string& cache_salt) {
  const uint32_t size = model_.options().block_size;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto own = tokens.subspan(i * size, size);
    contents_.try_emplace(blocks[i],
                          Content{.tokens = {own.begin(), own.end()}, .cache_salt = cache_salt});
  }
}

Load EngineService::CurrentLoad() {
  MutexLock lock(&mutex_);
  return model_.CurrentLoad();
}

// The engine's own names of its blocks are the trace's hashes.
void EngineService::PublishTokens(const Event& event) {
  const auto names = [](const std::vector<SequenceHash>& blocks) {
    std::vector<EngineHash> names;
    names.reserve(blocks.size());
    for (const SequenceHash block : blocks) names.push_back(Raw(block));
    return names;
  };
  if (const auto* stored = std::get_if<Stored>(&event)) {
    std::optional<EngineHash> parent;
    if (stored->parent != kNoParent) parent = Raw(stored->parent);
    std::vector<TokenId> tokens = MockTokens(stored->blocks, model_.options().block_size);
    std::string cache_salt;  // of the request that they are of
    for (size_t i = 0; i < stored->blocks.size(); ++i) {
      const auto own = contents_.find(stored->blocks[i]);
      if (own == contents_.end()) continue;
      cache_salt = own->second.cache_salt;
      std::copy(own->second.tokens.begin(), own->second.tokens.end(),
                tokens.begin() + static_cast<ptrdiff_t>(i * model_.options().block_size));
    }
    publisher_->Stored(stored->tier, names(stored->blocks), parent, tokens,
                       {.lora_name = "", .cache_salt = cache_salt});
  } else if (const auto* removed = std::get_if<Removed>(&event)) {
    publisher_->Removed(removed->tier, names(removed->blocks));
    for (const SequenceHash block : removed->blocks) contents_.erase(block);
  }
}

void EngineService::Describe(const EngineStep& step, ev1::StepResponse* response) {
  for (const EngineAdmission& admission : step.admitted) {
    ev1::Admission* out = response->add_admitted();
    out->set_id(admission.id);
    out->set_time_ms(admission.time_ms);
    out->set_cached_blocks(admission.cached_blocks);
    out->set_ttft_ms(admission.ttft_ms);
    out->set_finish_ms(admission.finish_ms);
  }
  response->set_next_event_ms(model_.NextEventMs().value_or(EngineModel::kForever));
  const Load load = model_.CurrentLoad();
  v1::Load* out = response->mutable_load();
  out->set_running_requests(load.running_requests);
  out->set_waiting_requests(load.waiting_requests);
  out->set_used_blocks(load.used_blocks);
  out->set_free_blocks(load.free_blocks);
  out->set_waiting_prefill_blocks(load.waiting_prefill_blocks);
  out->set_tokens_per_s(load.tokens_per_s);
  out->set_workers(load.workers);
}

bool EngineService::Connected() const {
  const PublisherStats stats = publisher_->Stats();
  return std::any_of(stats.replicas.begin(), stats.replicas.end(),
                     [](const ReplicaStats& replica) { return replica.connected; });
}

// In slices, so that a leaf that dies meanwhile does not cost the whole time.
bool EngineService::Wait(uint32_t wait_ms) {
  constexpr uint32_t kSliceMs = 100;
  while (wait_ms > 0) {
    const uint32_t slice = std::min(wait_ms, kSliceMs);
    if (publisher_->WaitAcknowledged(std::chrono::milliseconds(slice))) return true;
    if (!Connected()) return false;
    wait_ms -= slice;
  }
  return false;
}

}  // namespace kvatlas
