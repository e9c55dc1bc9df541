// The policy of a stream of holdings: the claims of its hello, the limits of its identity, and its
// lines in the audit log.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_TRANSPORT_PEER_POLICY_H_
#define KVATLAS_INDEXER_TRANSPORT_PEER_POLICY_H_

#include <memory>
#include <string>

#include "indexer/security/security.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

// The claims of a hello. A worker (`kPublish`) is in the cell of the leaf that it talks to; a
// leaf's holder (`kReport`) is its cell. An address and the labels named url are where others would
// send requests.
PolicyTarget TargetOf(const Hello& hello, Verb verb, const std::string& cell);

// Where a stream comes from, for the audit log.
struct StreamOrigin {
  std::shared_ptr<const Identity> identity;
  Verb verb = Verb::kPublish;
  std::string cell = {};  // of the leaf that it talks to
  std::string peer = {};  // "ipv4:10.0.0.7:4711", "redis"
};

// Quotas of what the identity announces (`quotas.h`). A hello that the policy allows and the
// receiver refuses, such as one of an epoch that is not to be, is audited as "refusal"; one that
// takes a stream over from another instance as "takeover".
std::shared_ptr<PeerAllowance> AllowanceOf(std::shared_ptr<Security> security, StreamOrigin origin);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_PEER_POLICY_H_
