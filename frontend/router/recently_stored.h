// How much more was lately stored at a worker than at an average one of its fleet?
//
//   requests sent ──▶ blocks that they store there ──▶ a sum per worker that fades as the fleet stores ──▶ crowding
//
// A pool is full soon, and what is stored then evicts what was there. Where most requests go to few
// workers, because these have the first block of every prompt, their pools turn over and the
// others' rest: a hit of one block is paid for with blocks that would have been hits. So a block to
// store costs more where more was stored lately.
//
// *Truth*: an estimate, by what this process sent. The sum fades by 1/e while the fleet stores
// `kRoomBlocks` per worker, about what a pool holds. A worker that stores its share and a sixteenth
// of a room more is not crowded, so a fleet that has stored little has no crowded worker.
// *Place*: behind `FleetMemory`; models of fleets count by it too. *Threads*: none; the owner
// serialises. *Cost*: constant.
//
// Example:
//   RecentlyStored fleet; RecentlyStored::Sum w0;
//   fleet.Store(100, /*workers=*/8, &w0);
//   const auto crowding_of = fleet.CrowdingAmong(8);
//   input.crowding = crowding_of(w0);

#ifndef KVATLAS_FRONTEND_ROUTER_RECENTLY_STORED_H_
#define KVATLAS_FRONTEND_ROUTER_RECENTLY_STORED_H_

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvatlas {

class RecentlyStored {
 public:
  static constexpr double kRoomBlocks = 2048;
  static constexpr double kSpareRooms = 1.0 / 16;

  // The sum of one worker. Zero: nothing was stored there.
  struct Sum {
    double blocks = 0;
    double at = 0;  // as of when the fleet had stored so many blocks in all
  };

  // REQUIRES: workers > 0, those of the fleet.
  void Store(double blocks, size_t workers, Sum* worker) {
    Fade(workers, worker);
    Fade(workers, &all_);
    stored_ += blocks;
    worker->blocks += blocks;
    all_.blocks += blocks;
  }

  // A function of a worker's sum, valid until the next `Store`: by how many rooms of `kRoomBlocks`
  // the worker is above the average and `kSpareRooms`; 0: not above.
  auto CrowdingAmong(size_t workers) const {
    Sum all = all_;
    Fade(workers, &all);
    const double average = all.blocks / static_cast<double>(workers);
    return [this, workers, average](Sum worker) {
      // It only fades.
      if (worker.blocks - average <= kSpareRooms * kRoomBlocks) return 0.0;
      Fade(workers, &worker);
      return std::max(0.0, (worker.blocks - average) / kRoomBlocks - kSpareRooms);
    };
  }

 private:
  void Fade(size_t workers, Sum* sum) const {
    const double rooms = static_cast<double>(workers) * kRoomBlocks;
    sum->blocks *= std::exp((sum->at - stored_) / rooms);
    sum->at = stored_;
  }

  double stored_ = 0;  // by all, ever
  Sum all_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_RECENTLY_STORED_H_
