// The thread of a source that asks, reports and waits.
//
//   Start ─▶ thread: Run ─┬▶ … Tell … ─▶ Wait ─┬▶ true: `Refresh`, or the time has passed: again
//                         ╰◀───────────────────┴▶ false: `Stop`: Run returns
//
// *Threads*: `Run`, `Tell` and `Wait` are of the source's thread.
// *Lifetime*: a source calls `Stop` in its destructor: the thread uses its members.

#ifndef KVATLAS_INDEXER_DISCOVERY_WAITING_SOURCE_H_
#define KVATLAS_INDEXER_DISCOVERY_WAITING_SOURCE_H_

#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/directory_source.h"
#include "indexer/discovery/service_record.h"

namespace kvatlas {

class WaitingSource : public DirectorySource {
 public:
  void Start(Report report) override;
  void Refresh() final;
  void Stop() final;

 protected:
  // Until `Wait` is false, or `Stopping`.
  virtual void Run() = 0;
  // Ends what `Run` waits for outside of `Wait`. Any thread, after `Stopping` has become true;
  // perhaps more than once.
  virtual void Interrupt() {}

  void Tell(absl::StatusOr<std::vector<ServiceRecord>> records) { report_(std::move(records)); }
  // For at most `time`, or until `Refresh`; false: stop.
  bool Wait(Duration time);
  bool Stopping() const;

 private:
  Report report_;  // immutable after Start
  mutable Mutex mutex_;
  CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_WAITING_SOURCE_H_
