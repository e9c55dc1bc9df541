// How does a structure for one thread serve many? It belongs to one lane of an executor, and everything is a
// message to it.
//
//   Apply ──▶ copy ──▶┐
//   Find… ──▶ wait ──▶┤ queue ──▶ one lane ──▶ structure
//
// *From*: "Flash Indexer" §2; Dynamo's first indexer was one around its radix tree, which `MakeActorIndex` makes.
// *Truth*: that of the structure inside; each call is one instant. A question comes after every event that was
// applied before it, and waits for all of them: reads queue behind writes.
// *Events* are copied and not waited for: `Apply` is OK when the event is in the queue. What the structure says
// of it later is counted: "failed_events" in `IndexStats::shape`, beside "queued_events_max". With a `ChangeLog`
// `Apply` waits, because the sink is told before it returns; then it returns what the structure says.
// *Threads*: any but the executor's own: a call from a task of lane 0 would wait for itself. Without an executor
// calls run on their caller's thread, one at a time.
// *Bounds*: `kActorEventsMax` events wait at most; `Apply` waits for room.
// *Lifetime*: the destructor waits until the queue is empty.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_ACTOR_H_
#define KVATLAS_INDEXER_INDEX_FIELD_ACTOR_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "indexer/index/index.h"

namespace kvatlas {

inline constexpr size_t kActorEventsMax = 2048;

// Around `radix`, on lane 0 of `options.executor`.
std::unique_ptr<Index> MakeActorIndex(const IndexOptions& options);

// Around any structure; `name` outlives it. `executor` may be null.
std::unique_ptr<Index> MakeActorIndex(std::string_view name, std::unique_ptr<Index> inside,
                                      Executor* executor);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_ACTOR_H_
