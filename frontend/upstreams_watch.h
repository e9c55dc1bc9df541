// Is a frontend ready? Once a hierarchy node or a leaf has answered, and while some is known: without, no route has a worker.
//
// *Threads*: that of its owner, who looks from time to time.

#ifndef KVATLAS_FRONTEND_UPSTREAMS_WATCH_H_
#define KVATLAS_FRONTEND_UPSTREAMS_WATCH_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/peers/grpc_finders.h"
#include "frontend/route/frontend.h"
#include "indexer/service/health.h"
#include "indexer/service/log.h"

namespace kvatlas {

class UpstreamsWatch {
 public:
  using Tell = std::function<void(Health now, const char* why)>;

  UpstreamsWatch(const Frontend* frontend, GrpcCellFinder* cells, GrpcOverlapFinder* leaves,
                 Tell tell)
      : frontend_(frontend), cells_(cells), leaves_(leaves), tell_(std::move(tell)) {}

  void Look() {
    const bool known = frontend_->HasUpstreams();
    if (known && !answered_) {
      const bool cells = cells_->Reached();  // each connects what is not connected
      answered_ = leaves_->Reached() || cells;
    }
    const char* const why = !known       ? "no hierarchy node and no leaf is known"
                            : !answered_ ? "no hierarchy node and no leaf has answered yet"
                                         : "";
    if (why_ == why) return;
    why_ = why;
    if (!known)
      Log(LogLevel::kWarning, absl::StrCat("not ready: ", why),
          {{"remedy", "--hierarchy=HOST:PORT or --leaves=CELL=HOST:PORT"}});
    tell_(*why == '\0' ? Health::kServing : Health::kLoading, why);
  }

 private:
  const Frontend* const frontend_;
  GrpcCellFinder* const cells_;
  GrpcOverlapFinder* const leaves_;
  const Tell tell_;
  bool answered_ = false;
  std::optional<std::string> why_;  // as last told
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UPSTREAMS_WATCH_H_
