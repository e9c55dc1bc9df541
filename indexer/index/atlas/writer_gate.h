// Is somebody else writing? A writer that is alone needs no locks inside: a locked instruction a block is a fifth of what a
// store costs, and most indexes have one thread that writes them nearly all of the time.
//
//   together ──one has come so many times in a row, and nobody else is inside──▶ alone: his locks are nothing
//      ▲                                                                           │
//      └──────── he is out ◀── revoked ◀── somebody else wants in ─────────────────┘
//
// *Threads*: everybody who takes a lock of the index is inside meanwhile. Who finds another one alone waits until that
// one leaves; then both are together, until one has come `kInARow` times and nobody else. Readers do not enter.
// *Truth*: whoever is inside and reads `alone()` as true is the only one inside, until he leaves.
// *Cost*: a few stores to a line that is the thread's own, in both states; nothing that many writers share is written but where they
// change. More threads than there are lines share one, with locked instructions, and are never alone.
// *Bounds*: a wait is for one brief stay. A thread that is put to sleep while it is alone costs the others its time slice, once in
// `kInARow` stays. 25 lines of memory.
// *Proof*: `writer_gate_model_test` goes through all interleavings of small programs, on atomics of its own (`Machine`).
// *Source*: biased locking, K. Kawachiya et al., "Lock reservation", 2002; here a count a thread instead of its stack.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_WRITER_GATE_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_WRITER_GATE_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "indexer/index/atlas/pause.h"
#include "indexer/index/atlas/spin_lock.h"

namespace kvatlas::atlas {

// What the gate runs on.
struct RealMachine {
  template <typename T>
  using Atomic = std::atomic<T>;
  static void Fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  static void Pause() { atlas::Pause(); }
  static void SpinWait(int round) { atlas::SpinWait(round); }
  static constexpr uint32_t kCounts = kPauses ? 3 : 24;
  static constexpr uint32_t kInARow = kPauses ? 3 : 64;
  // The upper half of the gate's word counts claims, so that a thread that compares an old state does not take a later one for it.
  static constexpr uint64_t kClaim = uint64_t{1} << 32;
};

template <typename Machine>
class BasicWriterGate {
 public:
  // `who`: a number from 1 on that is the calling thread's alone. `brief`: such a stay may be alone. In three steps, so that
  // one fence serves the caller as well: `Announce`, a fence that is sequentially consistent, `Enter`.
  void Announce(uint32_t who) { CountIn(who); }
  void Enter(uint32_t who, bool brief) {
    Machine::Pause();
    if (const uint32_t state = StateOf(owner_.load(std::memory_order_seq_cst));
        state != 0 && (state != (kAlone | who) || !brief))
      EnterSlowly(who, brief);
  }
  void Leave(uint32_t who, bool brief) {
    if (brief && !alone()) LeaveTogether(who);
    Machine::Pause();
    CountOut(who);
  }

  // REQUIRES: inside.
  bool alone() const { return (owner_.load(std::memory_order_relaxed) & kAlone) != 0; }

 private:
  static constexpr uint32_t kAlone = uint32_t{1} << 31;
  static constexpr uint32_t kRevoked = uint32_t{1} << 30;
  static constexpr uint32_t kWho = kRevoked - 1;
  static constexpr uint32_t kCounts = Machine::kCounts;
  static constexpr uint32_t kInARow = Machine::kInARow;
  static uint32_t StateOf(uint64_t owner) { return static_cast<uint32_t>(owner); }
  static uint64_t Together(uint64_t owner) { return owner & ~uint64_t{UINT32_MAX}; }

  // The last one is of all who have none of their own.
  struct alignas(64) Count {
    typename Machine::template Atomic<uint32_t> inside{0};
    // Brief stays together, about; and how many all others had had when there had last been a multiple of `kInARow`.
    typename Machine::template Atomic<uint32_t> stays{0};
    typename Machine::template Atomic<uint32_t> others{0};
  };
  static bool Shares(uint32_t who) { return who >= kCounts; }
  Count& CountOf(uint32_t who) { return counts_[Shares(who) ? kCounts - 1 : who - 1]; }
  void CountIn(uint32_t who) {
    auto& inside = CountOf(who).inside;
    if (Shares(who)) {
      inside.fetch_add(1, std::memory_order_relaxed);
    } else {
      inside.store(inside.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
  }
  // Partner: the acquire loads of counts.
  void CountOut(uint32_t who) {
    auto& inside = CountOf(who).inside;
    if (Shares(who)) {
      inside.fetch_sub(1, std::memory_order_release);
    } else {
      inside.store(inside.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    }
  }

  void EnterSlowly(uint32_t who, bool brief);
  void AwaitOwner(int round);
  void LeaveTogether(uint32_t who);
  uint32_t StaysOfOthers(uint32_t who);
  void Claim(uint32_t who);

  // Its state 0: together. A number: he would like to be alone. With kAlone: he is, with kRevoked until he leaves.
  alignas(64) typename Machine::template Atomic<uint64_t> owner_{0};
  Count counts_[kCounts];
};

extern template class BasicWriterGate<RealMachine>;
using WriterGate = BasicWriterGate<RealMachine>;

// Holds a lock for who is inside, which costs him nothing while he is alone.
class ABSL_SCOPED_LOCKABLE LockInside {
 public:
  LockInside(const WriterGate& gate, SpinLock* lock)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : lock_(gate.alone() ? nullptr : lock) {
    if (lock_ != nullptr) lock_->Lock();
  }
  ~LockInside() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (lock_ != nullptr) lock_->Unlock();
  }
  LockInside(const LockInside&) = delete;
  LockInside& operator=(const LockInside&) = delete;

 private:
  SpinLock* const lock_;
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_WRITER_GATE_H_
