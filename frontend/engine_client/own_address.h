// Does this address lead to a listener of this process? A proxy whose engine is itself passes each
// request to itself until no descriptor is left.
//
// *Truth*: of what names resolve to now, and of the addresses that this machine has now: where it
// listens on all of them, any of them. Another name server may say otherwise later, and what is in
// between (NAT, another proxy) is not seen: requests carry `x-kvatlas-hop` for these.
// *Threads*: any. *Cost*: may ask DNS.

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_OWN_ADDRESS_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_OWN_ADDRESS_H_

#include "indexer/base/address.h"

namespace kvatlas {

// Would a connection to `to` reach the listener on `listen`? A port of 0 is none.
bool LeadsTo(const Address& to, const Address& listen);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_OWN_ADDRESS_H_
