// Which ready addresses does a Service of Kubernetes have now? A source of a directory that lists
// EndpointSlices and then watches them, so that a change is known when the API server knows it.
//
//   1. `List`: GET …/endpointslices?labelSelector=kubernetes.io/service-name=SERVICE, page by page;
//     what it says is reported.
//   2. `Watch`: the same from the list's resource version on, with bookmarks; each line that
//      changes the addresses is reported. The API server ends a watch after
//      `K8sOptions::watch_for`; the next one begins where it ended.
//   3. 410 Gone, in the answer or in the stream, or a line that cannot be read: 1 again.
//   4. A request that fails is reported, and followed by 1 after a wait that doubles up to
//     `backoff_max`, each shortened by up to a half.
//
// *Truth*: what was named stays until the API server says otherwise; a Service without ready
// endpoints says nothing of who is there.
// *Threads*: one of its own, which waits in the request; `Stop` ends it.
// *Cost*: a connection and a small request each `watch_for`; a line for each change of the
// Service's pods.
// *Bounds*: those of `endpoint_slices.h`; a page has at most 64 MiB, a line 8 MiB.

#ifndef KVATLAS_INDEXER_DISCOVERY_K8S_SOURCE_H_
#define KVATLAS_INDEXER_DISCOVERY_K8S_SOURCE_H_

#include <memory>

#include "indexer/discovery/directory.h"
#include "indexer/discovery/directory_source.h"
#include "indexer/discovery/k8s_pods.h"
#include "indexer/discovery/k8s_service.h"

namespace kvatlas {

std::unique_ptr<DirectorySource> MakeK8sSource(const K8sService& service,
                                               const DirectoryOptions& options);
// The same of pods: their names, and their addresses without a port.
std::unique_ptr<DirectorySource> MakeK8sPodsSource(const K8sPodsQuery& query,
                                                   const DirectoryOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_K8S_SOURCE_H_
