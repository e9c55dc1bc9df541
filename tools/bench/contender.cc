#include "tools/bench/contender.h"

#include <algorithm>
#include <utility>

namespace kvatlas {
namespace {

// More than any input needs.
constexpr uint64_t kRetainedBytes = uint64_t{64} << 30;

class NullIndex : public Index {
 public:
  std::string_view Name() const override { return "null"; }
  absl::StatusOr<HolderIndex> AddHolder() override { return HolderIndex{holders_++}; }
  void RemoveHolder(HolderIndex) override {}
  void SetMasked(HolderIndex, bool) override {}
  absl::Status Apply(HolderIndex, const Event&, ChangeLog*) override { return absl::OkStatus(); }
  bool Sweep(HolderIndex, size_t, ChangeLog*) override { return false; }
  void FindOverlaps(const OverlapQuery&, std::vector<Overlap>*) const override {}
  void FindSteps(const OverlapQuery&, OverlapSteps* steps) const override {
    steps->words_per_step = 0;
    steps->depths.clear();
    steps->words.clear();
  }
  std::vector<Holding> HoldingsOf(HolderIndex) const override { return {}; }
  Digest DigestOf(HolderIndex) const override { return {}; }
  IndexStats Stats() const override { return {}; }
  absl::Status Check() const override { return absl::OkStatus(); }

 private:
  uint32_t holders_ = 0;
};

// `name`: the kind's, or NAME*N.
Contender OfKind(const IndexKind& kind, const std::string& name) {
  return {.name = name,
          .holders_max = kind.holders_max,
          .make = [name](const IndexOptions& options) { return MakeIndex(name, options); }};
}

}  // namespace

Contender NullContender() {
  return {.name = "null",
          .holders_max = 0,
          .make = [](const IndexOptions&) -> absl::StatusOr<std::unique_ptr<Index>> {
            return std::make_unique<NullIndex>();
          }};
}

absl::StatusOr<std::vector<Contender>> ContendersByName(const std::vector<std::string>& names) {
  std::vector<Contender> contenders;
  for (const std::string& name : names) {
    const IndexKind* kind = FindIndexKind(name.substr(0, name.find('*')));
    if (name == "all") {
      for (const IndexKind& one : IndexKinds())
        contenders.push_back(OfKind(one, std::string(one.name)));
    } else if (kind != nullptr) {
      contenders.push_back(OfKind(*kind, name));
    }
    if (name == "all" || name == "null") contenders.push_back(NullContender());
    if (name != "all" && name != "null" && kind == nullptr) {
      std::string known = "all null";
      for (const IndexKind& one : IndexKinds()) known += " " + std::string(one.name);
      return absl::InvalidArgumentError("no index structure '" + name + "'; there are: " + known);
    }
  }
  return contenders;
}

IndexOptions WarmOptions(uint32_t workers) {
  IndexOptions options;
  options.holders_max = std::max(1u, workers);
  options.retained_bytes = kRetainedBytes;
  return options;
}

absl::StatusOr<std::unique_ptr<Index>> MakeWithHolders(const Contender& contender,
                                                       const IndexOptions& options,
                                                       uint32_t workers) {
  if (contender.holders_max > 0 && workers > contender.holders_max) {
    return absl::ResourceExhaustedError("has at most " + std::to_string(contender.holders_max) +
                                        " holders, the input has " + std::to_string(workers));
  }
  absl::StatusOr<std::unique_ptr<Index>> index = contender.make(options);
  if (!index.ok()) return index.status();
  for (uint32_t worker = 0; worker < workers; ++worker) {
    const absl::StatusOr<HolderIndex> holder = (*index)->AddHolder();
    if (!holder.ok()) return holder.status();
    if (Raw(*holder) != worker) return absl::InternalError("holders are not numbered from 0");
  }
  return index;
}

absl::StatusOr<std::unique_ptr<Index>> NextIndex(const Contender& contender, uint32_t workers,
                                                 bool reuse, std::unique_ptr<Index> old) {
  if (old == nullptr || !reuse) {
    old.reset();
    return MakeWithHolders(contender, WarmOptions(workers), workers);
  }
  for (uint32_t worker = 0; worker < workers; ++worker) {
    old->Apply(HolderIndex{worker}, Cleared{}, nullptr).IgnoreError();
  }
  return old;
}

}  // namespace kvatlas
