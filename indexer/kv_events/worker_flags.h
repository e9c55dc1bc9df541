// Which engines does the command line name? Reads --workers, in the form of Dynamo's indexer with
// more to say.
//
//   1=tcp://10.0.0.1:5557                                       instance 1, rank 0
//   1:3=tcp://10.0.0.1:5560;replay=tcp://10.0.0.1:5570          its rank 3, which can replay
//   w7=tcp://0.0.0.0:6000;bind;topic=kv@                        an engine that dials out
//   w8=tcp://10.0.0.8:5557;lora=a;salt=s;type=Mooncake;block_size=32
//   w9=tcp://10.0.0.9:5557;image_token=151655                   its model sees images
//   w10=tcp://10.0.0.10:5557;eagle_drop=all                     it speculates (EAGLE, MTP): the last block is not reused
//   w11=tcp://10.0.0.11:5557;chunk_tokens=8192                  its model has chunked local attention
//   w12=tcp://10.0.0.12:5557;window_tokens=4096                 SGLang's events by component: its sliding window
//   w13=tcp://10.0.0.13:5557;hybrid=true                        a hybrid model of SGLang, whose events tell of full attention alone
//   w14=tcp://10.0.0.14:5557;offload_chunk_tokens=64            its connector loads four blocks of 16 together
//   w15=tcp://10.0.0.15:5557;silent_tiers=host                  its connector does not say what leaves host memory
//   w13=tcp://10.0.0.13:5557;server_key=rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7    its public key: events by CURVE
//   w10=tcp://10.0.0.10:5557;type=SGLang;url=http://10.0.0.10:30000    where its requests go
//
// *Threads*: a pure function.

#ifndef KVATLAS_INDEXER_KV_EVENTS_WORKER_FLAGS_H_
#define KVATLAS_INDEXER_KV_EVENTS_WORKER_FLAGS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

// `of_all` has what each worker has unless it says otherwise. INVALID_ARGUMENT, naming the text:
// not of this form, an endpoint or a text that `CheckRegistration` refuses, or a rank that is there
// twice.
absl::StatusOr<std::vector<EngineRegistration>> ParseWorkers(
    const std::vector<std::string>& workers, const EngineRegistration& of_all);

// `of_all` with the options of a worker, "NAME=VALUE" each, as they stand behind its endpoint.
// INVALID_ARGUMENT, as of any worker.
absl::StatusOr<EngineRegistration> WithWorkerOptions(const EngineRegistration& of_all,
                                                     const std::vector<std::string>& options);

// The difference of two lists: a worker that differs from before goes, and comes again.
struct WorkerChanges {
  std::vector<EngineRegistration> gone;
  std::vector<EngineRegistration> come;
};
WorkerChanges ChangesOf(const std::vector<EngineRegistration>& before,
                        const std::vector<EngineRegistration>& after);

// Makes them count: `registry` has `Register` and `Unregister` as an `EngineDirectory`. New
// instances come before others go, so that a model that stays is always known. A registration that
// is refused is logged, and the others go on.
template <typename Registry>
void ChangeWorkers(const WorkerChanges& changes, Registry* registry) {
  const auto tell = [](const EngineRegistration& worker, const absl::Status& bad) {
    if (bad.ok()) return;
    Log(LogLevel::kWarning, "a worker cannot be changed",
        {{"flag", "workers"}, {"worker", worker.instance}, {"rank", worker.rank}, {"reason", bad}});
  };
  const auto is_new = [&](const EngineRegistration& come) {
    return std::none_of(changes.gone.begin(), changes.gone.end(),
                        [&](const auto& gone) { return gone.instance == come.instance; });
  };
  for (const EngineRegistration& come : changes.come)
    if (is_new(come)) tell(come, registry->Register(come));
  for (const EngineRegistration& gone : changes.gone)
    tell(gone, registry->Unregister(gone.instance, gone.model, gone.group, gone.rank));
  for (const EngineRegistration& come : changes.come)
    if (!is_new(come)) tell(come, registry->Register(come));
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_WORKER_FLAGS_H_
