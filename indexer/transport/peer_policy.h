// What does the policy say of a stream of holdings? What its hello claims, and what its identity may take.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_TRANSPORT_PEER_POLICY_H_
#define KVATLAS_INDEXER_TRANSPORT_PEER_POLICY_H_

#include <memory>
#include <string>

#include "indexer/service/security/security.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

// What a hello claims. A worker (`kPublish`) is in the cell of the leaf that it talks to; a leaf's holder (`kReport`) is its cell. An
// address and the labels named url are where others would send requests.
PolicyTarget TargetOf(const Hello& hello, Verb verb, const std::string& cell);

// Quotas of what `identity` announces (`quotas.h`).
std::shared_ptr<PeerAllowance> AllowanceOf(std::shared_ptr<Security> security,
                                           std::shared_ptr<const Identity> identity);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_PEER_POLICY_H_
