// The bytes of a message on the wire. The size of its serialized form (proto/kvatlas/v1), computed
// without serializing: for figures of traffic.
//
// *Truth*: equal to the serialized size of the `SenderMessage` that carries it.
// *Threads*: pure functions. *Cost*: a few nanoseconds an event; blocks are not read.

#ifndef KVATLAS_INDEXER_STREAM_MESSAGE_SIZE_H_
#define KVATLAS_INDEXER_STREAM_MESSAGE_SIZE_H_

#include <cstddef>

#include "indexer/stream/messages.h"

namespace kvatlas {

// The size of batches and snapshot parts; 0 for the others, which carry no holdings.
size_t HoldingsBytes(const SenderMessage& message);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_STREAM_MESSAGE_SIZE_H_
