// How does an operator have a checkpoint written now?
//
//     POST /checkpoint   200 {"number":7,"path":"/var/lib/kvatlas/checkpoint-…","bytes":…,
//                             "holders":…,"blocks":…,"engine_blocks":…,"seconds":…}
//                        404 there is no --checkpoint_dir; 507 the disk is full; 503 stopping;
//                        500 any other reason
//
// It answers once the file and its name are durable, after the one being written if there is one.

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_HTTP_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_HTTP_H_

#include "indexer/checkpoint/checkpointer.h"
#include "indexer/process/admin_http.h"

namespace kvatlas {

// `checkpointer` outlives the server; null: there are none.
void AddCheckpointHttp(Checkpointer* checkpointer, AdminHttp* http);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_HTTP_H_
