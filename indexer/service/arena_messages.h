// How does a service answer a question of a thousand fields without a thousand allocations? Request and response of a
// unary callback method live in an arena that is used again for later calls.
//
// *Threads*: any; a short lock to take and to give back an arena.
// *Cost*: per call nothing of the heap as long as both messages fit `kArenaBytes` (strings beyond 15 bytes aside).
// *Bounds*: at most `kept_max` arenas of `kArenaBytes` are kept; beyond, they are made and freed.
// *Lifetime*: it outlives the server.
//
// Example:
//   ArenaMessages<v1::FindOverlapsRequest, v1::FindOverlapsResponse> messages;
//   service.SetMessageAllocatorFor_FindOverlaps(&messages);   // before the server starts

#ifndef KVATLAS_INDEXER_SERVICE_ARENA_MESSAGES_H_
#define KVATLAS_INDEXER_SERVICE_ARENA_MESSAGES_H_

#include <google/protobuf/arena.h>
#include <grpcpp/support/message_allocator.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "indexer/base/mutex.h"

namespace kvatlas {

template <typename Request, typename Response>
class ArenaMessages : public grpc::MessageAllocator<Request, Response> {
 public:
  static constexpr size_t kArenaBytes = 32 << 10;

  explicit ArenaMessages(size_t kept_max = 256) : kept_max_(kept_max) {}
  // REQUIRES: every message was released.
  ~ArenaMessages() override = default;

  grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    std::unique_ptr<Holder> holder = TakeKept();
    if (holder == nullptr) holder = std::make_unique<Holder>(this);
    holder->Make();
    return holder.release();  // comes back by Release
  }

  size_t kept() const {
    MutexLock lock(&mutex_);
    return kept_.size();
  }

 private:
  class Holder : public grpc::MessageHolder<Request, Response> {
   public:
    explicit Holder(ArenaMessages* owner)
        : owner_(owner),
          bytes_(std::make_unique_for_overwrite<char[]>(kArenaBytes)),
          arena_(bytes_.get(), kArenaBytes) {}

    void Make() {
      this->set_request(google::protobuf::Arena::CreateMessage<Request>(&arena_));
      this->set_response(google::protobuf::Arena::CreateMessage<Response>(&arena_));
    }

    void Release() override {
      arena_.Reset();
      owner_->Keep(std::unique_ptr<Holder>(this));
    }

   private:
    ArenaMessages* const owner_;
    const std::unique_ptr<char[]> bytes_;
    google::protobuf::Arena arena_;  // starts in `bytes_`
  };

  std::unique_ptr<Holder> TakeKept() {
    MutexLock lock(&mutex_);
    if (kept_.empty()) return nullptr;
    std::unique_ptr<Holder> holder = std::move(kept_.back());
    kept_.pop_back();
    return holder;
  }

  void Keep(std::unique_ptr<Holder> holder) {
    MutexLock lock(&mutex_);
    if (kept_.size() < kept_max_) kept_.push_back(std::move(holder));
  }

  const size_t kept_max_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Holder>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_ARENA_MESSAGES_H_
