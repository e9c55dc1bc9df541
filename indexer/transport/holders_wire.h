// Answers of a registry of holders over gRPC and HTTP, at every level: its statistics, its metrics
// and its contents.
//
// *Place*: the services of leaf and hierarchy.
// *Threads*: any.

#ifndef KVATLAS_INDEXER_TRANSPORT_HOLDERS_WIRE_H_
#define KVATLAS_INDEXER_TRANSPORT_HOLDERS_WIRE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/sync_stream.h>
#include <cstdint>

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/process/admin_http.h"
#include "indexer/registry/holder_registry.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

// Fills `domains` and `streams_open`.
void FillStats(const HolderRegistry& registry, v1::StatsResponse* response);
// The same for one domain alone, if it is there.
void FillStats(const HolderRegistry& registry, const Domain& domain, v1::StatsResponse* response);

// Fills `process`, in a process of ours.
void FillProcess(v1::StatsResponse* response);

// Statistics as JSON, every field under its name in the proto, for GET /status.
HttpResponse StatusPage(const v1::StatsResponse& stats);

// Memory of all indexes, side classes included: a part of the budget.
uint64_t IndexBytes(const HolderRegistry& registry);
// Memory for snapshots that are being received, of all holders. Walks them all.
uint64_t SnapshotBytes(const HolderRegistry& registry);

// Gives everything asked for to `write`, a run per message, so that none is large; the last message
// of a holder has no run. CANCELLED: `write` said false. NOT_FOUND: the domain was never announced.
absl::Status DumpHolders(const HolderRegistry& registry, const v1::DumpRequest& request,
                         const std::function<bool(const v1::DumpResponse&)>& write);

// The same as a method of a service. RESOURCE_EXHAUSTED: there are as many long answers as may be
// (`long_answers.h`). A caller that takes nothing for half a minute is cut off.
absl::Status ServeDump(const HolderRegistry& registry, grpc::ServerContext* context,
                       const v1::DumpRequest& request,
                       grpc::ServerWriter<v1::DumpResponse>* writer);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_HOLDERS_WIRE_H_
