// Requests and responses without an allocation per field: both messages of a unary callback method
// live in an arena that is used again for later calls.
//
// *Threads*: any; a short lock to take and to give back an arena.
// *Cost*: per call nothing of the heap as long as both messages fit `kArenaBytes` (strings beyond
// 15 bytes aside) and at most `reused_max` calls are open.
// *Bounds*: `reused_max` arenas of `kArenaBytes`, which are kept. A call beyond that has an arena
// of its own that starts empty and is freed with the call: thousands of calls that are begun and
// reset cost what their messages hold.
// *Lifetime*: it outlives the server.
//
// Example:
//   ArenaMessages<v1::FindOverlapsRequest, v1::FindOverlapsResponse> messages;
//   service.SetMessageAllocatorFor_FindOverlaps(&messages);   // before the server starts

#ifndef KVATLAS_INDEXER_NET_ARENA_MESSAGES_H_
#define KVATLAS_INDEXER_NET_ARENA_MESSAGES_H_

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

  explicit ArenaMessages(size_t reused_max = 256) : reused_max_(reused_max) {}
  // REQUIRES: every message was released.
  ~ArenaMessages() override = default;

  grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    std::unique_ptr<Holder> holder = Take();
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
    // `bytes` are what the arena starts with; it comes back to `owner` if it has some.
    Holder(ArenaMessages* owner, size_t bytes)
        : owner_(owner),
          bytes_(bytes > 0 ? std::make_unique_for_overwrite<char[]>(bytes) : nullptr),
          arena_(bytes_.get(), bytes) {}

    void Make() {
      this->set_request(google::protobuf::Arena::CreateMessage<Request>(&arena_));
      this->set_response(google::protobuf::Arena::CreateMessage<Response>(&arena_));
    }

    void Release() override {
      std::unique_ptr<Holder> self(this);
      if (bytes_ == nullptr) return;
      arena_.Reset();
      owner_->Keep(std::move(self));
    }

   private:
    ArenaMessages* const owner_;
    const std::unique_ptr<char[]> bytes_;
    google::protobuf::Arena arena_;  // starts in `bytes_`
  };

  std::unique_ptr<Holder> Take() {
    bool reused = false;
    {
      MutexLock lock(&mutex_);
      if (!kept_.empty()) {
        std::unique_ptr<Holder> holder = std::move(kept_.back());
        kept_.pop_back();
        return holder;
      }
      reused = reused_ < reused_max_;
      if (reused) ++reused_;
    }
    return std::make_unique<Holder>(this, reused ? kArenaBytes : 0);
  }

  void Keep(std::unique_ptr<Holder> holder) {
    MutexLock lock(&mutex_);
    kept_.push_back(std::move(holder));
  }

  const size_t reused_max_;
  mutable Mutex mutex_;
  size_t reused_ ABSL_GUARDED_BY(mutex_) = 0;  // arenas of `kArenaBytes` that exist
  std::vector<std::unique_ptr<Holder>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_ARENA_MESSAGES_H_
