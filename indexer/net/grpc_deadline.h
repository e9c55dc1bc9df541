// Deadlines for gRPC's calls and alarms, from now, by its own monotonic clock.

#ifndef KVATLAS_INDEXER_NET_GRPC_DEADLINE_H_
#define KVATLAS_INDEXER_NET_GRPC_DEADLINE_H_

#include <grpc/support/time.h>

#include "indexer/base/clock.h"

namespace kvatlas {

inline gpr_timespec DeadlineIn(Duration duration) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(duration.count(), GPR_TIMESPAN));
}

inline bool HasPassed(gpr_timespec deadline) {
  return gpr_time_cmp(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC),
                      gpr_now(GPR_CLOCK_MONOTONIC)) <= 0;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_DEADLINE_H_
