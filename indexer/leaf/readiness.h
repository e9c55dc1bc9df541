// May this leaf be asked? Ready once what it knew before is recovered and the stated number of workers is there; ready
// it stays.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_LEAF_READINESS_H_
#define KVATLAS_INDEXER_LEAF_READINESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct Readiness {
  bool ready = false;
  std::string reason;  // why not: "recovering from http://10.0.0.2:8090", "2 of 4 workers"
};

class ReadinessGate {
 public:
  // `workers` says how many there are now; asked until there were `workers_min`.
  ReadinessGate(uint32_t workers_min, std::function<uint64_t()> workers);

  // What recovery is doing; before `Recovered`.
  void Recovering(std::string what);
  void Recovered();

  Readiness Get();

 private:
  const uint32_t workers_min_;
  const std::function<uint64_t()> workers_;
  Mutex mutex_;
  std::string recovering_ ABSL_GUARDED_BY(mutex_) = "starting";  // empty: done
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_READINESS_H_
