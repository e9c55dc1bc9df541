// The tellings of frontends about prompts that they have sent (`Told`), as leaves and nodes take
// them.
//
// A frontend tells on its streams of questions. When the last stream that it told on has ended, it
// is no more, whatever ended it: what it sent is not waited for, and weighs on no choice
// (`PendingBlocks::Leave`). Where only its connection was lost, that costs nothing but the
// knowledge.
//
// *Threads*: any; of one stream one after the other.
// *Lifetime*: `ToldStreams` outlives its streams.

#ifndef KVATLAS_INDEXER_TRANSPORT_TOLD_WIRE_H_
#define KVATLAS_INDEXER_TRANSPORT_TOLD_WIRE_H_

#include <grpcpp/server_context.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/security/security.h"
#include "proto/kvatlas/v1/types.pb.h"

namespace kvatlas {

class ToldStreams {
 public:
  // Frontends that one stream tells of; what others tell on it is not taken.
  static constexpr size_t kFrontendsMax = 16;

  ToldStreams(Security* security, HolderRegistry* registry)
      : security_(security), registry_(registry) {}

  class Stream {
   public:
    Stream(ToldStreams* owner, std::shared_ptr<const Identity> teller, std::string peer)
        : owner_(owner), teller_(std::move(teller)), peer_(std::move(peer)) {}
    ~Stream();

    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // Returns of how many prompts nothing was taken: their worker or domain is not known here, the
    // teller does not see it, it is beyond its quota of questions, or the message is not whole. At
    // most `kRoutedBlocksMax` blocks of one prompt are taken.
    int Hear(const v1::Told& told);

   private:
    bool Knows(uint64_t frontend);

    ToldStreams* const owner_;
    const std::shared_ptr<const Identity> teller_;
    const std::string peer_;  // its address
    absl::InlinedVector<uint64_t, 2> frontends_;
  };

  // Opens one of `streams`, in which the caller of `context` asks and tells; under a policy each
  // question is taken from its quota. `answer(asker, request, response)` returns a status;
  // `unknown`, which may be null, is called with what `Stream::Hear` returned.
  template <typename Streams, typename Answer>
  typename Streams::Reactor* Open(Streams* streams, grpc::CallbackServerContext* context,
                                  Answer answer, std::function<void(int)> unknown = nullptr) {
    const std::shared_ptr<const Identity> asker = IdentityOf(security_, *context);
    const std::string peer = context->peer();
    const auto hear = [stream = std::make_shared<Stream>(this, asker, peer),
                       unknown = std::move(unknown)](const auto& request) {
      for (const v1::Told& told : request.told()) {
        const int untaken = stream->Hear(told);
        if (unknown != nullptr) unknown(untaken);
      }
    };
    if (!security_->enforces()) return streams->OpenHearing(hear);
    return streams->Open(
        [security = security_, asker, peer, answer](const auto& request, auto* response) {
          absl::Status over =
              security->Take(*asker, QuotaKind::kQueries, 1, peer, request.domain().tenant());
          return over.ok() ? answer(*asker, request, response) : over;
        },
        security_->UnreadOf(asker, peer, [context] { context->TryCancel(); }), hear);
  }

 private:
  Security* const security_;
  HolderRegistry* const registry_;
  Mutex mutex_;
  absl::flat_hash_map<uint64_t, size_t> streams_ ABSL_GUARDED_BY(mutex_);  // of each frontend
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_TOLD_WIRE_H_
