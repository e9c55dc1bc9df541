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
//      comes again meanwhile stays outside like all others.

// Somebody is alone, or would like to be.
void WriterGate::EnterSlowly(uint32_t who, bool brief) {
  for (int round = 0;; ++round) {
    uint32_t owner = owner_.load(std::memory_order_seq_cst);
    if (owner == 0) return;
    if (owner == (kAlone | who)) {
      if (!brief) {
        // Others may come in beside him; if nobody does, he is alone again the next time.
        Count& mine = CountOf(who);
        mine.stays.store(kInARow - 1, std::memory_order_relaxed);
        mine.others.store(StaysOfOthers(who), std::memory_order_relaxed);
        owner_.store(0, std::memory_order_seq_cst);
      }
      return;
    }
    if ((owner & kAlone) == 0) {
      if (owner_.compare_exchange_strong(owner, 0, std::memory_order_seq_cst)) return;
      continue;
    }
    CountOut(who);
    Pause();
    AwaitOwner(round);
    CountIn(who);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    Pause();
  }
}

// A step towards all being together.
void WriterGate::AwaitOwner(int round) {
  uint32_t owner = owner_.load(std::memory_order_acquire);
  if ((owner & kAlone) == 0) return;
  if ((owner & kRevoked) == 0) {
    owner_.compare_exchange_strong(owner, owner | kRevoked, std::memory_order_seq_cst);
    return;
  }
  // Partner: the fence of `Enter` (G3). Whoever revoked: an owner who did not see it is counted here.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (CountOf(owner & kWho).inside.load(std::memory_order_acquire) != 0) return SpinWait(round);
  Pause();
  owner_.compare_exchange_strong(owner, 0, std::memory_order_seq_cst);
}

void WriterGate::LeaveTogether(uint32_t who) {
  Count& mine = CountOf(who);
  const uint32_t stays = mine.stays.load(std::memory_order_relaxed) + 1;
  mine.stays.store(stays, std::memory_order_relaxed);
  if (stays % kInARow != 0 || Shares(who)) return;
  const uint32_t others = StaysOfOthers(who);
  const bool nobody_came = others == mine.others.load(std::memory_order_relaxed);
  mine.others.store(others, std::memory_order_relaxed);
  if (nobody_came) Claim(who);
}

uint32_t WriterGate::StaysOfOthers(uint32_t who) {
  uint32_t stays = 0;
  for (const Count& count : counts_) {
    if (&count != &CountOf(who)) stays += count.stays.load(std::memory_order_relaxed);
  }
  return stays;
}

void WriterGate::Claim(uint32_t who) {
  uint32_t owner = 0;
  if (!owner_.compare_exchange_strong(owner, who, std::memory_order_seq_cst)) return;
  // Partner: the fence of `Enter` (G1).
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Pause();
  bool others = false;
  for (const Count& count : counts_) {
    const uint32_t inside = count.inside.load(std::memory_order_acquire);
    others = others || inside != (&count == &CountOf(who) ? 1u : 0u);
  }
  Pause();
  owner = who;
  owner_.compare_exchange_strong(owner, others ? 0 : (kAlone | who), std::memory_order_seq_cst);
}

}  // namespace kvatlas::atlas
