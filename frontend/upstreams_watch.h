// Is a frontend ready? Once a hierarchy node or a leaf has answered, and while some is known:
// without, no route has a worker.
//
// *Threads*: that of its owner, which calls `Look` from time to time.

#ifndef KVATLAS_FRONTEND_UPSTREAMS_WATCH_H_
#define KVATLAS_FRONTEND_UPSTREAMS_WATCH_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/router/frontend.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

class UpstreamsWatch {
 public:
  using Tell = std::function<void(Health now, const char* why)>;

  // `proxies`: requests are taken for engines. Where some are known, it is ready from the start:
  //   they get requests by turns.
  UpstreamsWatch(const Frontend* frontend, GrpcCellFinder* cells, GrpcOverlapFinder* leaves,
                 bool proxies, Tell tell)
      : frontend_(frontend),
        cells_(cells),
        leaves_(leaves),
        proxies_(proxies),
        tell_(std::move(tell)) {}

  void Look() {
    const bool known = frontend_->HasUpstreams();
    if (known && !answered_) {
      const bool cells = cells_->Reached();  // each connects what is not connected
      answered_ = leaves_->Reached() || cells;
    } else {
      cells_->LookForTheLost();
      leaves_->LookForTheLost();
    }
    const char* const why = !known       ? "no hierarchy node and no leaf is known"
                            : !answered_ ? "no hierarchy node and no leaf has answered yet"
                                         : "";
    const bool by_turns = *why != '\0' && proxies_ && !frontend_->Engines(1).empty();
    if (why_ == why && by_turns_ == by_turns) return;
    why_ = why;
    by_turns_ = by_turns;
    if (!known || by_turns)
      Log(LogLevel::kWarning,
          absl::StrCat(by_turns ? "engines get requests by turns: " : "not ready: ", why),
          {{"remedy", "--hierarchy=HOST:PORT or --leaves=CELL=HOST:PORT"}});
    const bool ready = *why == '\0' || by_turns;
    tell_(ready ? Health::kServing : Health::kLoading, ready ? "" : why);
  }

 private:
  const Frontend* const frontend_;
  GrpcCellFinder* const cells_;
  GrpcOverlapFinder* const leaves_;
  const bool proxies_;
  const Tell tell_;
  bool answered_ = false;
  bool by_turns_ = false;
  std::optional<std::string> why_;  // as last told
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UPSTREAMS_WATCH_H_
