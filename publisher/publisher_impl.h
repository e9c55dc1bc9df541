// The parts of a `Publisher`, for `publisher.cc` (threads and replicas) and `publisher_calls.cc`
// (the engine's calls).

#ifndef KVATLAS_PUBLISHER_PUBLISHER_IMPL_H_
#define KVATLAS_PUBLISHER_PUBLISHER_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/found_leaves.h"
#include "indexer/net/connection_watch.h"
#include "indexer/security/security.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/transport/grpc_link.h"
#include "indexer/transport/redis/redis_link.h"
#include "publisher/engine_batches.h"
#include "publisher/publisher.h"
#include "publisher/record_buffer.h"
#include "publisher/resident_blocks.h"
#include "publisher/zmq_publisher.h"

namespace kvatlas {

// Bounds of one call.
inline constexpr size_t kNamespaceBytesMax = 4096;    // of a LoRA's name, of a salt
inline constexpr size_t kCallBlocksMax = 1 << 20;     // blocks named in one call
inline constexpr size_t kPayloadBytesMax = 16 << 20;  // of an engine's batch

// The queue has two buffers: `waiting` is filled by the engine's thread, `working` is worked off by
// the thread that holds `contents_mutex`, which takes `waiting` when `working` is used up. So calls
// are worked off in the order they were made, by the publisher's thread or, when the queue is full,
// the engine's.
//
// Waking a thread costs the waker a system call, and often its processor. So while there is
// something to do the publisher's thread wakes by itself; only one that fell asleep for want of
// work (`asleep`) is woken, by the first call.
//
// Locks, outer first: contents_mutex, queue_mutex; contents_mutex, a pump's own; layout_mutex, all
// of them.
struct Publisher::Impl {
  struct Replica {
    std::string address;
    // Owned by the pump; both null when `make_link` made it.
    const GrpcLink* grpc_link = nullptr;
    const RedisLink* redis_link = nullptr;
    std::unique_ptr<SenderPump> pump;
    std::unique_ptr<ConnectionWatch> watch;
    // The code of its trouble when last looked at, and that trouble's number among all errors.
    // Guarded by `contents_mutex`.
    absl::StatusCode trouble = absl::StatusCode::kOk;
    uint64_t trouble_number = 0;

    // `SenderPump::Progress`, and through Redis what readers say.
    std::optional<absl::Status> Progress() const;
  };

  // How the engine speaks: by calls, or in batches of its own; settled by the first one.
  enum Way : uint8_t { kUnsettled, kCalls, kBatches };

  using ReplicaPtr = std::shared_ptr<Replica>;  // of readers while it is dropped

  Impl(PublisherOptions options_in, std::shared_ptr<Security> security_in,
       std::unique_ptr<FoundLeaves> leaves_in);
  // The log in Redis as a replica.
  ReplicaPtr MakeRedis() ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);
  ReplicaPtr MakeLeaf(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);
  std::unique_ptr<ConnectionWatch> MakeWatch(std::string_view what,
                                             const std::string& address) const;
  std::unique_ptr<SenderPump> MakePump(std::unique_ptr<SenderLink> link)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);
  std::vector<ReplicaPtr> Replicas() ABSL_LOCKS_EXCLUDED(contents_mutex);
  void SetError(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex) {
    last_error = why;
    last_error_number = ++errors;
  }
  void NoteTrouble(Replica* replica, absl::StatusCode now) ABSL_LOCKS_EXCLUDED(contents_mutex);
  // Takes up leaves that are found now and drops those that are no longer. The publisher's thread.
  void LookForLeaves() ABSL_LOCKS_EXCLUDED(contents_mutex);

  void Enqueue(const Record& record) ABSL_LOCKS_EXCLUDED(queue_mutex, contents_mutex);
  void EnqueueRemoved(Record::Kind kind, Tier tier, std::span<const uint64_t> blocks,
                      SideClass side = 0) ABSL_LOCKS_EXCLUDED(queue_mutex, contents_mutex);
  bool SetLayout(const CacheLayout& layout)
      ABSL_LOCKS_EXCLUDED(layout_mutex, queue_mutex, contents_mutex);
  // Whether calls may name the class: `SetLayout` was called with it, and its blocks end where main
  // blocks do.
  absl::Status CheckSide(SideClass side) ABSL_LOCKS_EXCLUDED(layout_mutex);
  void WorkOffAtLeast(size_t bytes) ABSL_LOCKS_EXCLUDED(queue_mutex, contents_mutex);
  // Works off about `kSliceBlocks` and gives the changes to the replicas. Returns the bytes that
  // waited no longer; 0: nothing waits.
  size_t WorkOffSlice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);
  void WorkOff(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);
  // The part of a call that `contents` dropped, in words.
  static absl::Status DroppedSince(const ContentsStats& before, const ContentsStats& now);
  void Refused(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);
  // Tells the replicas `changes` and `load`.
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);
  // Before `contents` knows of it.
  void TellZmq(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(contents_mutex);

  void Run();
  // Says that there is none.
  void WatchLeaves(Time now) ABSL_LOCKS_EXCLUDED(contents_mutex);
  void TickEngine() ABSL_LOCKS_EXCLUDED(queue_mutex, contents_mutex);
  // False, and counted and kept: the call does not fit, or the engine has spoken in the other way
  // before.
  bool Takes(absl::Status fits, Way by) ABSL_LOCKS_EXCLUDED(contents_mutex);
  bool RefuseCall(const absl::Status& why) ABSL_LOCKS_EXCLUDED(contents_mutex);
  // Until a batch is due, or a tick. False: stop, once the queue is empty.
  bool WaitForWork() ABSL_LOCKS_EXCLUDED(queue_mutex);
  void FlushPumps();
  bool AllAcknowledged(Duration look_for);

  const PublisherOptions options;
  const uint64_t instance_id = RandomInstanceId();
  std::atomic<uint64_t> invalid_calls{0};
  std::atomic<uint8_t> way{kUnsettled};
  std::atomic<uint64_t> inline_records{0};
  const std::shared_ptr<Security> security;  // of the links; null: that of the process
  const bool looks_for_leaves;

  // Also the pumps' `resident_mutex`.
  Mutex contents_mutex;
  Contents contents ABSL_GUARDED_BY(contents_mutex);
  std::vector<ReplicaPtr> replicas ABSL_GUARDED_BY(contents_mutex);  // leaves, then Redis
  Epoch epoch ABSL_GUARDED_BY(contents_mutex);                       // of the latest replica
  std::optional<Load> last_load ABSL_GUARDED_BY(contents_mutex);
  EngineBatches engine_batches ABSL_GUARDED_BY(contents_mutex);
  std::unique_ptr<ZmqPublisher> zmq;  // immutable; null: none. Told with contents_mutex
  RecordBuffer working ABSL_GUARDED_BY(contents_mutex);
  std::vector<Event> changes ABSL_GUARDED_BY(contents_mutex);  // of the slice
  std::optional<Load> load ABSL_GUARDED_BY(contents_mutex);    // of the slice
  absl::Status last_error ABSL_GUARDED_BY(contents_mutex);     // of a call
  uint64_t last_error_number ABSL_GUARDED_BY(contents_mutex) = 0;
  uint64_t errors ABSL_GUARDED_BY(contents_mutex) =
      0;  // so far, of calls and replicas: the last number

  Mutex layout_mutex;
  CacheLayout call_layout ABSL_GUARDED_BY(layout_mutex);  // as calls set it, which may still wait

  mutable Mutex queue_mutex;
  CondVar work;      // something for the publisher's thread
  CondVar progress;  // `records_done` has grown
  RecordBuffer waiting ABSL_GUARDED_BY(queue_mutex);
  size_t working_bytes ABSL_GUARDED_BY(queue_mutex) = 0;  // of `working`, about
  Time first_at ABSL_GUARDED_BY(queue_mutex){0};          // of the oldest record in `waiting`
  uint64_t records_queued ABSL_GUARDED_BY(queue_mutex) = 0;
  uint64_t records_done ABSL_GUARDED_BY(queue_mutex) = 0;
  bool flush_now ABSL_GUARDED_BY(queue_mutex) = false;
  bool asleep ABSL_GUARDED_BY(queue_mutex) = false;
  bool stopping ABSL_GUARDED_BY(queue_mutex) = false;

  // The publisher's thread alone, but that `Stop` ends it:
  std::unique_ptr<FoundLeaves> leaves;
  // The publisher's thread alone:
  EveryMinute no_leaves;
  Time next_tick{0};
  Time next_engine_tick{0};
  Time attentive_until{0};
  std::thread thread;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_PUBLISHER_IMPL_H_
