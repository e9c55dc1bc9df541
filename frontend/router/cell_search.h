// Which cells are asked next? The hierarchy's cells in the order of their expected cost, and behind
// them one source after the other (`target.h`); of these at most so many at once, and as far as
// they can win over what was found.
//
//   Start ─▶ Take, Take, …        a wave each; none could be taken and nothing was found: `NextSource`, Take again
//              │ nodes among them: `Insert` their cells, Take again
//
// *Threads*: none; one route's. *Bounds*: `FrontendOptions::asked_max` leaves; `kLevelsMax` levels
// of nodes.

#ifndef KVATLAS_FRONTEND_ROUTER_CELL_SEARCH_H_
#define KVATLAS_FRONTEND_ROUTER_CELL_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "frontend/router/candidates.h"
#include "frontend/router/route_request.h"
#include "frontend/router/target.h"

namespace kvatlas {

class CellSearch {
 public:
  static constexpr int kLevelsMax = 4;  // below the top

  CellSearch(RequestPtr request, std::span<const CellSource> sources)
      : request_(std::move(request)), sources_(sources) {}

  // With what the hierarchy said; before any source.
  void Start(std::vector<Target> targets);
  // The cells that nodes named take the nodes' place; the targets that were not asked come behind
  // them.
  void Insert(std::vector<Target> targets);
  // All cells of the hierarchy, for a search that looks for something else.
  void Replace(std::vector<Target> targets) { targets_ = std::move(targets); }
  // False: there is none.
  bool NextSource();
  bool more() const { return !targets_.empty() || sources_used_ < sources_.size(); }
  Fallback fallback() const {
    return sources_used_ == 0 ? Fallback::kNone : sources_[sources_used_ - 1].fallback;
  }

  // The next targets that were not asked in this try, as far as they can cost less than the workers
  // found and than the first of them; empty when there are none left, or enough were asked.
  std::vector<Target> Take(const Answers& answers);
  // These targets are not asked now after all; they come back by `Insert`.
  void Untake(const std::vector<Target>& targets);
  // Whether a target that `Take` left out, as it could not cost less than the expected cost of
  // another one, can cost less than the workers that were really found.
  bool NextCanWin(const Answers& answers) const;

  // One level of nodes further down. False: too many.
  bool GoDown() { return ++levels_ <= kLevelsMax; }
  void DropNodes();

  void CountAsked(const std::vector<Target>& leaves);
  size_t room() const {
    return request_->options().asked_max - std::min<size_t>(request_->options().asked_max, asked_);
  }

  // ---- For searches by something else than cost ----
  const std::vector<Target>& targets() const { return targets_; }
  // The target of this name, or `otherwise`; nothing when it was asked.
  std::optional<Target> TakeCell(const std::string& cell, Target otherwise);
  bool WasAsked(const Target& target) const;

 private:
  bool blind() const { return sources_used_ > 0; }  // it is not known what the cells cover
  uint32_t AtOnce() const;
  // Leaves that answer with workers that stand well before the rest is left out: more where
  // coverage says little of what is reusable, since it is of the main class.
  uint32_t UsefulMax(const Answers& answers) const;

  const RequestPtr request_;
  const std::span<const CellSource> sources_;
  size_t sources_used_ = 0;
  std::vector<Target> targets_;  // best first
  int levels_ = 0;
  size_t asked_ = 0;
  std::set<std::string> taken_addresses_;
  std::set<std::string> asked_cells_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_CELL_SEARCH_H_
