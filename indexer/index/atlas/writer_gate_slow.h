// What `WriterGate` does where somebody is alone, or would like to be. A part of `writer_gate.h`.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_WRITER_GATE_SLOW_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_WRITER_GATE_SLOW_H_

#include <atomic>
#include <cstdint>

#include "indexer/index/atlas/writer_gate.h"

namespace kvatlas::atlas {

// ---- Why at most one is alone, and then nobody else inside ----
//
//  G1  Who enters counts himself first and looks at `owner_` then; who claims writes `owner_` first and looks at the
//      counts then, both with a fence in between. Of two who do so one sees the other: the one who enters takes the claim
//      back, or the one who claims does.
//  G2  A claim becomes `kAlone` only from the claim, while its owner is inside and all other counts are 0. From then
//      on who enters sees it, takes his count back, and stays outside.
//  G3  `kAlone` ends only with `kRevoked`, and that only when the owner's count is 0, or by the owner himself; an owner who
//      comes again meanwhile stays outside like all others. Who ends it compares its claim, too: one who slept between looking at
//      the count and ending would else end a later time alone of the same owner, who is inside.

// Somebody is alone, or would like to be.
template <typename Machine>
void BasicWriterGate<Machine>::EnterSlowly(uint32_t who, bool brief) {
  for (int round = 0;; ++round) {
    uint64_t owner = owner_.load(std::memory_order_seq_cst);
    const uint32_t state = StateOf(owner);
    if (state == 0) return;
    if (state == (kAlone | who)) {
      if (!brief) {
        // Others may come in beside him; if nobody does, he is alone again the next time.
        Count& mine = CountOf(who);
        mine.stays.store(kInARow - 1, std::memory_order_relaxed);
        mine.others.store(StaysOfOthers(who), std::memory_order_relaxed);
        owner_.store(Together(owner), std::memory_order_seq_cst);
      }
      return;
    }
    if ((state & kAlone) == 0) {
      if (owner_.compare_exchange_strong(owner, Together(owner), std::memory_order_seq_cst)) return;
      continue;
    }
    CountOut(who);
    Machine::Pause();
    AwaitOwner(round);
    CountIn(who);
    Machine::Fence();
    Machine::Pause();
  }
}

// A step towards all being together.
template <typename Machine>
void BasicWriterGate<Machine>::AwaitOwner(int round) {
  uint64_t owner = owner_.load(std::memory_order_acquire);
  if ((owner & kAlone) == 0) return;
  if ((owner & kRevoked) == 0) {
    owner_.compare_exchange_strong(owner, owner | kRevoked, std::memory_order_seq_cst);
    return;
  }
  // Partner: the fence of `Enter` (G3). Whoever revoked: an owner who did not see it is counted here.
  Machine::Fence();
  if (CountOf(StateOf(owner) & kWho).inside.load(std::memory_order_acquire) != 0)
    return Machine::SpinWait(round);
  Machine::Pause();
  owner_.compare_exchange_strong(owner, Together(owner), std::memory_order_seq_cst);
}

template <typename Machine>
void BasicWriterGate<Machine>::LeaveTogether(uint32_t who) {
  Count& mine = CountOf(who);
  const uint32_t stays = mine.stays.load(std::memory_order_relaxed) + 1;
  mine.stays.store(stays, std::memory_order_relaxed);
  if (stays % kInARow != 0 || Shares(who)) return;
  const uint32_t others = StaysOfOthers(who);
  const bool nobody_came = others == mine.others.load(std::memory_order_relaxed);
  mine.others.store(others, std::memory_order_relaxed);
  if (nobody_came) Claim(who);
}

template <typename Machine>
uint32_t BasicWriterGate<Machine>::StaysOfOthers(uint32_t who) {
  uint32_t stays = 0;
  for (const Count& count : counts_) {
    if (&count != &CountOf(who)) stays += count.stays.load(std::memory_order_relaxed);
  }
  return stays;
}

template <typename Machine>
void BasicWriterGate<Machine>::Claim(uint32_t who) {
  uint64_t owner = owner_.load(std::memory_order_seq_cst);
  if (StateOf(owner) != 0) return;
  const uint64_t claim = owner + Machine::kClaim + who;
  if (!owner_.compare_exchange_strong(owner, claim, std::memory_order_seq_cst)) return;
  // Partner: the fence of `Enter` (G1).
  Machine::Fence();
  Machine::Pause();
  bool others = false;
  for (const Count& count : counts_) {
    const uint32_t inside = count.inside.load(std::memory_order_acquire);
    others = others || inside != (&count == &CountOf(who) ? 1u : 0u);
  }
  Machine::Pause();
  owner = claim;
  owner_.compare_exchange_strong(owner, others ? Together(claim) : (claim | kAlone),
                                 std::memory_order_seq_cst);
}

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_WRITER_GATE_SLOW_H_
