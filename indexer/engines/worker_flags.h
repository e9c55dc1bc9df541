// Which engines does the command line name? Reads --workers, in the form of Dynamo's indexer with more to say.
//
//   1=tcp://10.0.0.1:5557                                       instance 1, rank 0
//   1:3=tcp://10.0.0.1:5560;replay=tcp://10.0.0.1:5570          its rank 3, which can replay
//   w7=tcp://0.0.0.0:6000;bind;topic=kv@                        an engine that dials out
//   w8=tcp://10.0.0.8:5557;lora=a;salt=s;type=Mooncake;block_size=32
//   w9=tcp://10.0.0.9:5557;image_token=151655                   its model sees images
//   w10=tcp://10.0.0.10:5557;eagle_drop=all                     it speculates (EAGLE, MTP): the last block is not reused
//   w11=tcp://10.0.0.11:5557;chunk_tokens=8192                  its model has chunked local attention
//   w12=tcp://10.0.0.12:5557;window_tokens=4096                 SGLang's events by component: its sliding window
//   w10=tcp://10.0.0.10:5557;type=SGLang;url=http://10.0.0.10:30000    where its requests go
//
// *Threads*: a pure function.

#ifndef KVATLAS_INDEXER_ENGINES_WORKER_FLAGS_H_
#define KVATLAS_INDEXER_ENGINES_WORKER_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/engines/engine_registration.h"

namespace kvatlas {

// `of_all` has what each worker has unless it says otherwise. INVALID_ARGUMENT, naming the text: not of this form. What
// `CheckRegistration` looks at, such as endpoints, is not looked at here.
absl::StatusOr<std::vector<EngineRegistration>> ParseWorkers(
    const std::vector<std::string>& workers, const EngineRegistration& of_all);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_WORKER_FLAGS_H_
