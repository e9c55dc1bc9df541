#include "indexer/index/field/candidates.h"

#include <bit>

namespace kvatlas {
namespace {

template <typename Visit>
void ForEachBit(uint32_t word, uint64_t bits, Visit visit) {
  for (; bits != 0; bits &= bits - 1) {
    visit(HolderIndex{word * 64 + static_cast<uint32_t>(std::countr_zero(bits))});
  }
}

}  // namespace

void Candidates::Start(const HolderSet& holders) {
  holders.ForEachWord(query_.tiers, [&](uint32_t word, uint64_t bits) {
    words_.push_back({.word = word, .bits = bits});
    size_ += static_cast<uint32_t>(std::popcount(bits));
    removals_.resize(64 * (word + 1));
    ForEachBit(word, bits,
               [&](HolderIndex holder) { removals_[Raw(holder)] = table_.Removals(holder); });
  });
}

template <typename Visit>
void Candidates::TakeOutEach(const HolderSet& holders, Visit visit) {
  HolderSet::WordReader reader(holders, query_.tiers);
  size_t kept = 0;
  for (const Word& each : words_) {
    const uint64_t stay = each.bits & reader.Bits(each.word);
    const uint64_t leave = each.bits & ~stay;
    size_ -= static_cast<uint32_t>(std::popcount(leave));
    ForEachBit(each.word, leave, visit);
    if (stay != 0) words_[kept++] = {.word = each.word, .bits = stay};
  }
  words_.resize(kept);
}

void Candidates::Keep(const HolderSet& holders, uint32_t depth) {
  TakeOutEach(holders, [&](HolderIndex holder) { Drop(holder, depth); });
}

std::vector<HolderIndex> Candidates::TakeOut(const HolderSet& holders) {
  std::vector<HolderIndex> left;
  TakeOutEach(holders, [&](HolderIndex holder) { left.push_back(holder); });
  return left;
}

void Candidates::DropAll(uint32_t depth) {
  for (const Word& each : words_) {
    ForEachBit(each.word, each.bits, [&](HolderIndex holder) { Drop(holder, depth); });
  }
  words_.clear();
  size_ = 0;
}

void Candidates::Drop(HolderIndex holder, uint32_t depth) {
  const uint64_t answering = table_.Answering(Raw(holder) / 64);
  if ((answering >> Raw(holder) % 64 & 1) == 0 || !IsAskedFor(query_.only, holder)) return;
  const uint64_t before = removals_[Raw(holder)];
  const bool is_sure = before % 2 == 0 && table_.Removals(holder) == before;
  overlaps_.push_back({.holder = holder, .blocks = is_sure ? depth : 1});
}

}  // namespace kvatlas
