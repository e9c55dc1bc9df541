// A leaf's checkpoint file in the form of a dump: which holder held what when it was written.
//
// Holders that streams feed are in it as they were. Of engines that the leaf listened to itself a
// checkpoint has the names of blocks: a rank holds a block in a tier when a name of each attention
// group that the tier needs stands for it, as `EngineWorker` has it. Side blocks that wait for
// their main block belong to no rank yet.
//
// *Truth*: every rank and every stream is a consistent cut, different ones are of different
// moments. *Threads*: none.
// *Cost*: of engines, about 60 bytes a name.

#ifndef KVATLAS_TOOLS_KVATLAS_CHECKPOINT_HOLDINGS_H_
#define KVATLAS_TOOLS_KVATLAS_CHECKPOINT_HOLDINGS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/kvatlas/holdings.h"

namespace kvatlas {

// In pieces; the last piece of a holder says so. NOT_FOUND: no such file, or the domain is not in
// it; else as `ReadCheckpoint`.
absl::Status ReadCheckpointHoldings(const std::string& path, const DumpFilter& filter,
                                    const std::function<void(const v1::DumpResponse&)>& visit);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_CHECKPOINT_HOLDINGS_H_
