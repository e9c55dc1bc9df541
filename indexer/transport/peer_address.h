// The host's address of a connection, from what gRPC calls a peer, "ipv4:10.0.0.7:4711" for
// instance.
//
// Without the port, and of IPv6 the first 64 bits: a host that has one of their addresses has them
// all. An IPv4 address inside IPv6 is that address. Any other peer (a Unix socket) is kept as it
// is, up to a bound.

#ifndef KVATLAS_INDEXER_TRANSPORT_PEER_ADDRESS_H_
#define KVATLAS_INDEXER_TRANSPORT_PEER_ADDRESS_H_

#include <string>
#include <string_view>

namespace kvatlas {

std::string PeerAddress(std::string_view grpc_peer);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_PEER_ADDRESS_H_
